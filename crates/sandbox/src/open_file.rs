//! What is known of a file by its descriptor, whatever has its name by now: whose it is, whether a name leads to it, whether it is
//! empty. Whoever can write in its directory can put another under that name at any moment.

use std::ffi::OsStr;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, RawDir};
use rustix::io::Errno;

/// Whether what was opened is this process's own.
pub(crate) fn is_own(opened: impl AsFd) -> rustix::io::Result<bool> {
    Ok(rustix::fs::fstat(opened)?.st_uid == rustix::process::geteuid().as_raw())
}

/// Whether two descriptors are of one file.
pub(crate) fn is_same(one: impl AsFd, other: impl AsFd) -> rustix::io::Result<bool> {
    let (one, other) = (rustix::fs::fstat(one)?, rustix::fs::fstat(other)?);
    Ok((one.st_dev, one.st_ino) == (other.st_dev, other.st_ino))
}

/// Whether what was opened is what a name leads to.
pub(crate) fn is_at(parent: impl AsFd, name: &OsStr, opened: &OwnedFd) -> rustix::io::Result<bool> {
    let opened = rustix::fs::fstat(opened)?;
    match rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(there) => Ok((there.st_dev, there.st_ino) == (opened.st_dev, opened.st_ino)),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Whether nothing is in a directory.
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
