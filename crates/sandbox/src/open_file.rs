//! Checks of an open file by its descriptor: its owner, whether a name still leads to it, whether it is empty. Another process that can
//! write in its directory can put another file at its name at any moment.

use std::ffi::OsStr;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, RawDir};
use rustix::io::Errno;

/// Whether this process's user owns an open file.
pub(crate) fn is_own(opened: impl AsFd) -> rustix::io::Result<bool> {
    Ok(rustix::fs::fstat(opened)?.st_uid == rustix::process::geteuid().as_raw())
}

/// Whether two descriptors refer to the same file.
pub(crate) fn is_same(one: impl AsFd, other: impl AsFd) -> rustix::io::Result<bool> {
    let (one, other) = (rustix::fs::fstat(one)?, rustix::fs::fstat(other)?);
    Ok((one.st_dev, one.st_ino) == (other.st_dev, other.st_ino))
}

/// Whether a name leads to an open file.
pub(crate) fn is_at(parent: impl AsFd, name: &OsStr, opened: &OwnedFd) -> rustix::io::Result<bool> {
    let opened = rustix::fs::fstat(opened)?;
    match rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(there) => Ok((there.st_dev, there.st_ino) == (opened.st_dev, opened.st_ino)),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Whether a directory is empty.
pub(crate) fn is_empty(directory: &OwnedFd) -> bool {
    let mut buffer = [MaybeUninit::uninit(); 512];
    if rustix::fs::seek(directory, rustix::fs::SeekFrom::Start(0)).is_err() {
        return false;
    }
    let mut entries = RawDir::new(directory, &mut buffer);
    while let Some(entry) = entries.next() {
        match entry {
            Ok(entry) if matches!(entry.file_name().to_bytes(), b"." | b"..") => {}
            _ => return false,
        }
    }
    true
}
