//! The two sides that are compared: what was written, and the workspace. Each is opened once; its files are opened beneath it, through no
//! link and into no mount.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{AtFlags, Dir, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use crate::open_file::lookup_with;

/// Opens a path beneath a side. Follows no link, and enters no mount: the run has seen none.
pub(super) fn open(side: BorrowedFd<'_>, path: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    lookup_with(side, path, flags | OFlags::NOFOLLOW | OFlags::CLOEXEC, resolve)
}

pub(super) fn open_parent(side: BorrowedFd<'_>, path: &Path) -> rustix::io::Result<OwnedFd> {
    open(side, path.parent().unwrap_or(Path::new("")), OFlags::PATH | OFlags::DIRECTORY)
}

pub(super) fn file_name(path: &Path) -> &OsStr {
    path.file_name().unwrap_or_default()
}

/// Opens a regular file of a side for reading.
pub(super) fn open_file(side: BorrowedFd<'_>, path: &Path) -> io::Result<File> {
    let file = File::from(open(side, path, OFlags::RDONLY | OFlags::NONBLOCK)?);
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::ErrorKind::InvalidInput.into()) }
}

/// Returns the status of a path of a side. `None` if it does not exist, or is behind a link.
pub(super) fn stat(side: BorrowedFd<'_>, path: &Path) -> io::Result<Option<Stat>> {
    let parent = match open_parent(side, path) {
        Ok(parent) => parent,
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(None),
        Err(errno) => return Err(errno.into()),
    };
    match rustix::fs::statat(parent.as_fd(), file_name(path), AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// Whether an error is that there is nothing any more, or a file, link or mount where a folder was, or that it is moved again and again. A
/// run that goes on removes, moves and replaces its files.
pub(super) fn is_elsewhere(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
        || matches!(Errno::from_io_error(error), Some(Errno::LOOP | Errno::XDEV | Errno::AGAIN))
}

/// Refuses what cannot be opened for reading, since it can neither be shown nor applied.
pub(super) fn refuse_unreadable(side: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    match open(side, path, OFlags::RDONLY | OFlags::NONBLOCK) {
        Err(errno @ (Errno::ACCESS | Errno::PERM)) => Err(errno.into()),
        _ => Ok(()),
    }
}

pub(super) fn entries(directory: &OwnedFd) -> io::Result<Vec<std::ffi::OsString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(OsStr::from_bytes(name).to_owned());
        }
    }
    Ok(names)
}
