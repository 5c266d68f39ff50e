//! Writes a layer's directory. Every path is opened relative to it and cannot leave it: the kernel resolves links as if the directory
//! were the root.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, ResolveFlags, Timestamps, Uid, XattrFlags, openat2};
use rustix::io::Errno;
use rustix::time::Timespec;

use super::archive::Meta;
use super::ownership::{NOBODY, Ownership};
use crate::error::UnpackError;

/// The attribute that marks an opaque directory for overlayfs mounted with `userxattr`.
const OPAQUE: &std::ffi::CStr = c"user.overlay.opaque";

/// For how many directories the time is restored, which writing into them changes, and how many octets their names may take.
const MOST_TIMES: usize = 100_000;
const MOST_OCTETS: usize = 32 << 20;
/// How deep a directory may really be, with links resolved, so that it can be removed again.
pub(super) const DEEPEST: usize = 256;
/// The mode of a directory that no entry names.
const IMPLIED: Mode = Mode::RWXU.union(Mode::RGRP).union(Mode::XGRP).union(Mode::ROTH).union(Mode::XOTH);
/// How many octets are copied at once.
const BUFFER: usize = 256 << 10;

/// Why an entry was not written.
pub(super) enum Failure {
    /// Its content could not be read.
    Archive(UnpackError),
    /// The file system refused.
    Write(io::Error),
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Self {
        Self::Write(errno.into())
    }
}

type Done = Result<(), Failure>;

/// A layer's directory in the making.
pub(super) struct Tree<'a> {
    root: BorrowedFd<'a>,
    ownership: Ownership,
    /// The last parent, cached since entries come directory by directory.
    last: Option<(PathBuf, OwnedFd)>,
    times: Vec<(Box<Path>, i64)>,
    /// How many octets the names of those directories take.
    named: usize,
    buffer: Vec<u8>,
    /// How many directories were made that no entry names.
    implied: u64,
}

impl<'a> Tree<'a> {
    pub(super) fn new(root: BorrowedFd<'a>, ownership: Ownership) -> Self {
        Self { root, ownership, last: None, times: Vec::new(), named: 0, buffer: vec![0; BUFFER], implied: 0 }
    }

    /// Returns how many directories were made that no entry names.
    pub(super) fn implied(&self) -> u64 {
        self.implied
    }

    /// Sets the root's own owner and mode.
    pub(super) fn root(&mut self, meta: &Meta) -> Done {
        let here = rustix::fs::openat(self.root, c".", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        self.dress_directory(here.as_fd(), meta)?;
        if matches!(self.ownership, Ownership::Lent(_)) {
            // The store reads it with the caller's id, which is not that of the image's root; a run makes it readable for all as well.
            let mode = Mode::from_raw_mode(rustix::fs::fstat(&here)?.st_mode & 0o1777 | 0o055);
            rustix::fs::fchmod(&here, mode)?;
        }
        Ok(())
    }

    pub(super) fn directory(&mut self, parent: &Path, name: &Path, meta: &Meta) -> Done {
        let above = self.parent(parent)?;
        let mut hides = false;
        match rustix::fs::mkdirat(&above, name, Mode::RWXU) {
            Ok(()) => {}
            Err(Errno::EXIST) if is_directory(above.as_fd(), name) => {}
            Err(Errno::EXIST) => {
                // A whiteout has already removed the lower layers' content.
                hides = is_whiteout(above.as_fd(), name);
                self.clear(above.as_fd(), name)?;
                rustix::fs::mkdirat(&above, name, Mode::RWXU)?;
            }
            Err(errno) => return Err(errno.into()),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = rustix::fs::openat(&above, name, flags, Mode::empty())?;
        if hides {
            rustix::fs::fsetxattr(&made, OPAQUE, b"y", XattrFlags::empty())?;
        }
        self.dress_directory(made.as_fd(), meta)?;
        let path = parent.join(name);
        let named = self.named + path.as_os_str().len();
        if self.times.len() < MOST_TIMES && named <= MOST_OCTETS {
            self.named = named;
            self.times.push((path.into_boxed_path(), meta.mtime));
        }
        self.keep(parent, above);
        Ok(())
    }

    pub(super) fn file(
        &mut self,
        parent: &Path,
        name: &Path,
        meta: &Meta,
        content: &mut dyn FnMut(&mut [u8]) -> Result<usize, UnpackError>,
    ) -> Done {
        let above = self.parent(parent)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let open = || rustix::fs::openat(&above, name, flags, Mode::RUSR | Mode::WUSR);
        let file = match open() {
            Err(Errno::EXIST) => {
                self.clear(above.as_fd(), name)?;
                open()?
            }
            opened => opened?,
        };
        loop {
            let read = content(&mut self.buffer).map_err(Failure::Archive)?;
            if read == 0 {
                break;
            }
            let mut rest = &self.buffer[..read];
            while !rest.is_empty() {
                let written = rustix::io::retry_on_intr(|| rustix::io::write(&file, rest))?;
                rest = &rest[written..];
            }
        }
        if self.ownership != Ownership::Squash {
            let (uid, gid) = owner(meta);
            rustix::fs::fchown(&file, Some(uid), Some(gid))?;
        }
        rustix::fs::fchmod(&file, Mode::from_raw_mode(meta.mode & 0o777))?;
        rustix::fs::futimens(&file, &times(meta.mtime))?;
        self.keep(parent, above);
        Ok(())
    }

    pub(super) fn link(&mut self, parent: &Path, name: &Path, target: &[u8], meta: &Meta) -> Done {
        self.make(parent, name, |above, name| rustix::fs::symlinkat(target, above, name))?;
        self.dress(parent, name, meta)
    }

    pub(super) fn pipe(&mut self, parent: &Path, name: &Path, meta: &Meta) -> Done {
        let mode = Mode::from_raw_mode(meta.mode & 0o777);
        self.make(parent, name, |above, name| {
            rustix::fs::mknodat(above, name, FileType::Fifo, mode, 0)?;
            rustix::fs::chmodat(above, name, mode, AtFlags::empty())
        })?;
        self.dress(parent, name, meta)
    }

    /// Makes a second name for a file of this layer. The first is looked up beneath the root like any other.
    pub(super) fn hard_link(&mut self, parent: &Path, name: &Path, from: &Path, file: &Path) -> Done {
        let source = self.parent(from)?;
        self.make(parent, name, |above, name| {
            rustix::fs::linkat(&source, file, above, name, AtFlags::empty())
        })
    }

    /// Removes a name of lower layers: makes a device 0/0, overlayfs's whiteout. A file that this layer has itself is kept, and hides
    /// the lower one.
    pub(super) fn whiteout(&mut self, parent: &Path, name: &Path) -> Done {
        let above = self.parent(parent)?;
        match rustix::fs::mknodat(&above, name, FileType::CharacterDevice, Mode::empty(), 0) {
            Ok(()) => {}
            Err(Errno::EXIST) if is_directory(above.as_fd(), name) => self.opaque(&parent.join(name))?,
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
        Ok(())
    }

    /// Hides a directory's content in lower layers.
    pub(super) fn opaque(&mut self, directory: &Path) -> Done {
        let directory = self.parent(directory)?;
        Ok(hide_lower(&directory)?)
    }

    /// Restores the times of directories, which writing into them has changed.
    pub(super) fn finish(self) {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        for (path, mtime) in &self.times {
            // A failure is ignored: the directory may have been replaced.
            if let Ok(found) = open_in_root(self.root, path, flags) {
                let _ = rustix::fs::utimensat(&found, c"", &times(*mtime), AtFlags::EMPTY_PATH);
            }
        }
    }

    /// Opens a parent, and makes its missing directories.
    fn parent(&mut self, path: &Path) -> Result<OwnedFd, Failure> {
        // The cached parent is dropped if it is another: this entry may replace it.
        if let Some((_, known)) = self.last.take().filter(|(last, _)| last == path) {
            return Ok(known);
        }
        match open_directory(self.root, path) {
            Err(Errno::NOENT | Errno::NOTDIR) => self.way(path),
            opened => {
                let opened = opened?;
                self.refuse_too_deep(&opened)?;
                Ok(opened)
            }
        }
    }

    /// Goes to a directory name by name, and makes those that are missing. From the root it looks up only what leads through a link: a
    /// look-up of every name from there would let a small layer take minutes.
    fn way(&mut self, path: &Path) -> Result<OwnedFd, Failure> {
        let mut above = open_directory(self.root, Path::new(""))?;
        let mut walked = PathBuf::new();
        for name in path {
            walked.push(name);
            let below = match open_below(&above, name) {
                Err(Errno::NOENT) => self.imply(&above, name)?,
                Err(Errno::NOTDIR) if is_whiteout(above.as_fd(), Path::new(name)) => {
                    // Removed by an earlier entry, and implied by this one.
                    rustix::fs::unlinkat(&above, name, AtFlags::empty())?;
                    let made = self.imply(&above, name)?;
                    hide_lower(&made)?;
                    made
                }
                Err(Errno::NOTDIR) => open_directory(self.root, &walked)?,
                opened => opened?,
            };
            self.refuse_too_deep(&below)?;
            above = below;
        }
        Ok(above)
    }

    /// Makes a directory that no entry names, and opens it.
    fn imply(&mut self, above: &OwnedFd, name: &OsStr) -> Result<OwnedFd, Failure> {
        rustix::fs::mkdirat(above, name, IMPLIED)?;
        self.implied += 1;
        // Whatever the caller's umask is.
        rustix::fs::chmodat(above, name, IMPLIED, AtFlags::empty())?;
        if matches!(self.ownership, Ownership::Lent(_)) {
            // The directory of a process in a user namespace is the caller's, who is the image's user.
            rustix::fs::chownat(above, name, Some(Uid::ROOT), Some(Gid::ROOT), AtFlags::SYMLINK_NOFOLLOW)?;
        }
        Ok(open_below(above, name)?)
    }

    /// Refuses a directory that is too deep: links can lead deeper than any name.
    fn refuse_too_deep(&self, opened: &OwnedFd) -> Done {
        use std::os::fd::AsRawFd;
        let depth = |fd: i32| {
            let path = rustix::fs::readlink(format!("/proc/self/fd/{fd}"), Vec::new())?;
            Ok::<_, Errno>(path.to_bytes().iter().filter(|b| **b == b'/').count())
        };
        let deep = depth(opened.as_raw_fd())?.saturating_sub(depth(self.root.as_raw_fd())?);
        if deep > DEEPEST { Err(Errno::NAMETOOLONG.into()) } else { Ok(()) }
    }

    fn keep(&mut self, path: &Path, opened: OwnedFd) {
        self.last = Some((path.to_owned(), opened));
    }

    /// Makes a file that is not a directory, and replaces what is there.
    fn make(
        &mut self,
        parent: &Path,
        name: &Path,
        make: impl Fn(BorrowedFd<'_>, &Path) -> rustix::io::Result<()>,
    ) -> Done {
        let above = self.parent(parent)?;
        match make(above.as_fd(), name) {
            Err(Errno::EXIST) => {
                self.clear(above.as_fd(), name)?;
                Ok(make(above.as_fd(), name)?)
            }
            made => Ok(made?),
        }
    }

    /// Removes what an earlier entry made under a name.
    fn clear(&self, above: BorrowedFd<'_>, name: &Path) -> Done {
        if !is_directory(above, name) {
            return Ok(rustix::fs::unlinkat(above, name, AtFlags::empty())?);
        }
        // Through the descriptor of its parent, so that no link on the way is followed; the library does the same below.
        use std::os::fd::AsRawFd;
        let path = Path::new("/proc/self/fd").join(above.as_raw_fd().to_string()).join(name);
        std::fs::remove_dir_all(path).map_err(Failure::Write)
    }

    fn dress_directory(&self, made: BorrowedFd<'_>, meta: &Meta) -> Done {
        let mut mode = meta.mode & 0o1777;
        if self.ownership != Ownership::Squash {
            let (uid, gid) = owner(meta);
            rustix::fs::fchown(made, Some(uid), Some(gid))?;
        } else {
            mode |= 0o700; // or nobody could enter or remove it
        }
        Ok(rustix::fs::fchmod(made, Mode::from_raw_mode(mode))?)
    }

    /// Sets the owner and the time of a file that is not opened.
    fn dress(&mut self, parent: &Path, name: &Path, meta: &Meta) -> Done {
        let above = self.parent(parent)?;
        if self.ownership != Ownership::Squash {
            let (uid, gid) = owner(meta);
            rustix::fs::chownat(&above, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
        }
        rustix::fs::utimensat(&above, name, &times(meta.mtime), AtFlags::SYMLINK_NOFOLLOW)?;
        self.keep(parent, above);
        Ok(())
    }
}

/// Whether a directory hides its content in lower layers.
pub(crate) fn is_opaque(directory: &Path) -> bool {
    let mut value = [0; 2];
    rustix::fs::lgetxattr(directory, OPAQUE, &mut value).is_ok_and(|length| value[..length] == *b"y")
}

/// Opens a path beneath a directory. Retries on `EAGAIN`, which the kernel returns if a path goes upwards while anything is renamed.
pub(crate) fn open_beneath(
    root: BorrowedFd<'_>,
    path: &Path,
    flags: OFlags,
    resolve: ResolveFlags,
) -> rustix::io::Result<OwnedFd> {
    const TRIES: usize = 10_000;
    for _ in 0..TRIES {
        match openat2(root, path, flags, Mode::empty(), resolve) {
            Err(Errno::AGAIN) => {}
            opened => return opened,
        }
    }
    Err(Errno::AGAIN)
}

fn open_in_root(root: BorrowedFd<'_>, path: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    open_beneath(root, path, flags, ResolveFlags::IN_ROOT)
}

/// Opens a directory beneath the root, for look-ups in it.
fn open_directory(root: BorrowedFd<'_>, path: &Path) -> rustix::io::Result<OwnedFd> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    open_in_root(root, path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC)
}

/// Opens a directory by its name in another. Of a link it fails with `ENOTDIR`.
fn open_below(above: &OwnedFd, name: &OsStr) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(above, name, flags, Mode::empty())
}

/// Marks a directory as opaque.
fn hide_lower(directory: &OwnedFd) -> rustix::io::Result<()> {
    let directory = rustix::fs::openat(directory, c".", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::fs::fsetxattr(&directory, OPAQUE, b"y", XattrFlags::empty())
}

fn is_directory(above: BorrowedFd<'_>, name: &Path) -> bool {
    rustix::fs::statat(above, name, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
}

fn is_whiteout(above: BorrowedFd<'_>, name: &Path) -> bool {
    rustix::fs::statat(above, name, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|stat| {
        FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice && stat.st_rdev == 0
    })
}

fn owner(meta: &Meta) -> (Uid, Gid) {
    let id = |id: u64| u32::try_from(id).unwrap_or(NOBODY).min(NOBODY);
    (Uid::from_raw(id(meta.uid)), Gid::from_raw(id(meta.gid)))
}

fn times(seconds: i64) -> Timestamps {
    let at = Timespec { tv_sec: seconds, tv_nsec: 0 };
    Timestamps { last_access: at, last_modification: at }
}
