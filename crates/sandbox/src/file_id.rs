//! The identity of a file, independent of its name: it also tells a file from a later one that got the same inode number.

use std::ffi::OsStr;
use std::io;
use std::os::fd::BorrowedFd;

use rustix::fs::{AtFlags, Statx, StatxFlags};
use rustix::io::Errno;

/// A file's inode number, birth time and device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileId {
    inode: u64,
    /// Zeros if the file system has no birth times.
    born: (i64, u32),
    device: (u32, u32),
}

const WANTED: StatxFlags = StatxFlags::INO.union(StatxFlags::BTIME);

impl FileId {
    /// Returns the identity of a name in a directory, if it exists.
    pub(crate) fn at(directory: BorrowedFd<'_>, name: &OsStr) -> io::Result<Option<Self>> {
        match rustix::fs::statx(directory, name, AtFlags::SYMLINK_NOFOLLOW, WANTED) {
            Ok(stat) => Ok(Some(Self::told(&stat))),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Returns the identity of an open file.
    pub(crate) fn of(opened: BorrowedFd<'_>) -> io::Result<Self> {
        Ok(Self::told(&rustix::fs::statx(opened, c"", AtFlags::EMPTY_PATH, WANTED)?))
    }

    fn told(stat: &Statx) -> Self {
        Self {
            inode: stat.stx_ino,
            born: (stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec),
            device: (stat.stx_dev_major, stat.stx_dev_minor),
        }
    }

    /// Whether this is the file that was recorded, possibly before a reboot, which may change device numbers.
    pub(crate) fn is_still(self, noted: Self) -> bool {
        let is_known_by_birth = self.born != (0, 0);
        (self.inode, self.born) == (noted.inode, noted.born)
            && (is_known_by_birth || self.device == noted.device)
    }

    /// Whether this may be the file that was recorded. Without birth times another one of a file system that was mounted in its place may
    /// be taken for it.
    pub(crate) fn may_still_be(self, noted: Self) -> bool {
        (self.inode, self.born) == (noted.inode, noted.born)
    }

    /// Formats the identity as one word for a log.
    pub(crate) fn written(self) -> String {
        let Self { inode, born: (seconds, nanoseconds), device: (major, minor) } = self;
        format!("{inode}:{seconds}:{nanoseconds}:{major}:{minor}")
    }

    pub(crate) fn read(text: &str) -> Option<Self> {
        let mut numbers = text.split(':');
        let inode = numbers.next()?.parse().ok()?;
        let born = (numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?);
        let device = (numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?);
        numbers.next().is_none().then_some(Self { inode, born, device })
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_folder_is_itself_by_any_name_and_not_another_by_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let top = std::fs::File::open(folder.path()).unwrap();
        let at = |name: &str| FileId::at(top.as_fd(), OsStr::new(name)).unwrap();
        std::fs::create_dir(folder.path().join("one")).unwrap();
        let one = at("one").unwrap();
        let opened = std::fs::File::open(folder.path().join("one")).unwrap();
        assert!(one == FileId::of(opened.as_fd()).unwrap() && FileId::read(&one.written()) == Some(one));
        std::fs::rename(folder.path().join("one"), folder.path().join("other")).unwrap();
        std::fs::create_dir(folder.path().join("one")).unwrap();
        assert!(at("other").unwrap().is_still(one) && !at("one").unwrap().is_still(one));
        let elsewhere = FileId { device: (one.device.0 + 1, 0), ..one };
        assert_eq!(one.is_still(elsewhere), one.born != (0, 0));
        assert!(!FileId { born: (0, 0), ..one }.is_still(FileId { born: (0, 0), ..elsewhere }));
        assert!(one.may_still_be(elsewhere) && !at("one").unwrap().may_still_be(one));
        assert!(at("none").is_none());
        for text in ["", "1", "1:2:3:4", "1:2:3:4:5:6", "1:2:3:4:x", "1:2:3:4:5%"] {
            assert_eq!(FileId::read(text), None, "{text}");
        }
    }
}
