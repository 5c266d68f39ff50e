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
pub(crate) fn is_at(parent: impl AsFd, name: &OsStr, opened: impl AsFd) -> rustix::io::Result<bool> {
    let opened = rustix::fs::fstat(opened)?;
    match rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(there) => Ok((there.st_dev, there.st_ino) == (opened.st_dev, opened.st_ino)),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Whether a directory is empty. One that was removed meanwhile is.
pub(crate) fn is_empty(directory: &OwnedFd) -> rustix::io::Result<bool> {
    let mut buffer = [MaybeUninit::uninit(); 512];
    rustix::fs::seek(directory, rustix::fs::SeekFrom::Start(0))?;
    let mut entries = RawDir::new(directory, &mut buffer);
    while let Some(entry) = entries.next() {
        match entry {
            Ok(entry) if matches!(entry.file_name().to_bytes(), b"." | b"..") => {}
            Ok(_) => return Ok(false),
            Err(Errno::NOENT) => return Ok(true),
            Err(errno) => return Err(errno),
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_another_run_removes_is_empty_and_one_that_cannot_be_read_is_not_judged() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path().join("a");
        std::fs::create_dir(&at).unwrap();
        let opened = OwnedFd::from(std::fs::File::open(&at).unwrap());
        std::fs::write(at.join("b"), "").unwrap();
        assert_eq!(is_empty(&opened), Ok(false));
        std::fs::remove_dir_all(&at).unwrap();
        assert_eq!(is_empty(&opened), Ok(true));
        assert_eq!(is_empty(&crate::source::open(folder.path()).unwrap()), Err(Errno::BADF));
    }
}
