//! Everything below a folder, each name once and no link followed.

use std::ffi::OsStr;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;

/// How a folder is gone through.
pub(super) struct Walk<'a> {
    /// How many names there may be.
    pub(super) most: usize,
    /// The folders that are not entered, by their paths from the top.
    pub(super) leaves: &'a dyn Fn(&Path) -> bool,
    pub(super) shut: Shut,
}

/// What is done about a folder that its mode shuts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Shut {
    Refuse,
    /// It is one's own, and gets a mode by which its owner may use it.
    Open,
}

/// A name that was found.
pub(super) struct Found<'a> {
    pub(super) folder: &'a OwnedFd,
    pub(super) name: &'a OsStr,
    /// Its path from the top.
    pub(super) path: PathBuf,
    pub(super) kind: FileType,
}

impl Walk<'_> {
    /// Visits every name below a folder, until a visit breaks it off.
    pub(super) fn visit(
        &self,
        top: BorrowedFd<'_>,
        visit: &mut dyn FnMut(&Found<'_>) -> io::Result<ControlFlow<()>>,
    ) -> io::Result<()> {
        let mut looked_at = 0;
        // Names and not descriptors: there may be more folders beside each other than a process may have open.
        let mut waiting = vec![PathBuf::new()];
        while let Some(within) = waiting.pop() {
            let Some(folder) = self.open(top, &within)? else { continue };
            for entry in Dir::read_from(&folder)? {
                let entry = entry?;
                let name = OsStr::from_bytes(entry.file_name().to_bytes());
                if name == "." || name == ".." {
                    continue;
                }
                looked_at += 1;
                if looked_at > self.most {
                    return Err(io::Error::other(format!("there are more than {} files in it", self.most)));
                }
                let Some(kind) = kind(&folder, name, entry.file_type())? else { continue };
                let found = Found { folder: &folder, name, path: within.join(name), kind };
                if visit(&found)?.is_break() {
                    return Ok(());
                }
                if kind == FileType::Directory && !(self.leaves)(&found.path) {
                    waiting.push(found.path);
                }
            }
        }
        Ok(())
    }

    /// A folder, to be read; nothing where it is gone, or so deep that nobody comes there by its path.
    fn open(&self, top: BorrowedFd<'_>, within: &Path) -> io::Result<Option<OwnedFd>> {
        let here = if within.as_os_str().is_empty() { Path::new(".") } else { within };
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let open = |flags: OFlags| openat2(top, here, flags | OFlags::CLOEXEC, Mode::empty(), resolve);
        let opened = match open(OFlags::RDONLY | OFlags::DIRECTORY) {
            Err(Errno::ACCESS) if self.shut == Shut::Open => {
                let shut = open(OFlags::PATH)?;
                rustix::fs::chmod(format!("/proc/self/fd/{}", shut.as_raw_fd()), Mode::RWXU)?;
                open(OFlags::RDONLY | OFlags::DIRECTORY)
            }
            other => other,
        };
        match opened {
            Ok(opened) => Ok(Some(opened)),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::NAMETOOLONG) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// What a name is; nothing where it is gone.
fn kind(folder: &OwnedFd, name: &OsStr, told: FileType) -> io::Result<Option<FileType>> {
    if told != FileType::Unknown {
        return Ok(Some(told));
    }
    match rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(FileType::from_raw_mode(stat.st_mode))),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}
