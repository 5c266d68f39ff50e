//! The identity of a folder, independent of its name: it also tells a folder from a later one that got the same inode number.
//!
//! Overlayfs numbers folders anew whenever it has forgotten them, if its layers are on several file systems, so only the birth time tells
//! there. That is the lower layer's until the folder first changes: then it is copied to the upper layer, and born again.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::fs::{AtFlags, StatxFlags};

/// A folder's inode number, birth time and device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileId {
    /// Zero on overlayfs.
    inode: u64,
    /// Zeros if the file system has no birth times.
    born: (i64, u32),
    device: (u32, u32),
}

const WANTED: StatxFlags = StatxFlags::INO.union(StatxFlags::BTIME);

/// `OVERLAYFS_SUPER_MAGIC`, statfs(2).
const OVERLAYFS: i64 = 0x794c_7630;

impl FileId {
    /// Returns the identity of an open folder.
    pub(crate) fn of(opened: BorrowedFd<'_>) -> io::Result<Self> {
        let stat = rustix::fs::statx(opened, c"", AtFlags::EMPTY_PATH, WANTED)?;
        let born = (stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec);
        let is_by_birth = born != (0, 0) && is_on_overlayfs(opened)?;
        let inode = if is_by_birth { 0 } else { stat.stx_ino };
        Ok(Self { inode, born, device: (stat.stx_dev_major, stat.stx_dev_minor) })
    }

    /// Returns the identity that an open folder has from now on. On overlayfs it is copied to the upper layer for that, by a change of
    /// owner that changes none, and needs no rights.
    pub(crate) fn lasting(opened: BorrowedFd<'_>) -> io::Result<Self> {
        if is_on_overlayfs(opened)? {
            // Where it cannot be copied, as in a read-only mount, nobody changes it either.
            let _ = rustix::fs::chownat(opened, c"", None, None, AtFlags::EMPTY_PATH);
        }
        Self::of(opened)
    }

    /// Whether this is the folder that was recorded, possibly before a reboot, which may change device numbers.
    pub(crate) fn is_still(self, noted: Self) -> bool {
        let is_known_by_birth = self.born != (0, 0);
        (self.inode, self.born) == (noted.inode, noted.born)
            && (is_known_by_birth || self.device == noted.device)
    }

    /// Whether this may be the folder that was recorded. Without birth times another one of a file system that was mounted in its place may
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

fn is_on_overlayfs(opened: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(rustix::fs::fstatfs(opened)?.f_type == OVERLAYFS)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_folder_is_itself_by_any_name_and_not_another_by_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let at =
            |name: &str| FileId::of(std::fs::File::open(folder.path().join(name)).unwrap().as_fd()).unwrap();
        std::fs::create_dir(folder.path().join("one")).unwrap();
        let one = at("one");
        assert_eq!(FileId::read(&one.written()), Some(one));
        std::fs::rename(folder.path().join("one"), folder.path().join("other")).unwrap();
        std::fs::create_dir(folder.path().join("one")).unwrap();
        assert!(at("other").is_still(one) && !at("one").is_still(one));
        let elsewhere = FileId { device: (one.device.0 + 1, 0), ..one };
        assert_eq!(one.is_still(elsewhere), one.born != (0, 0));
        assert!(!FileId { born: (0, 0), ..one }.is_still(FileId { born: (0, 0), ..elsewhere }));
        assert!(one.may_still_be(elsewhere) && !at("one").may_still_be(one));
        for text in ["", "1", "1:2:3:4", "1:2:3:4:5:6", "1:2:3:4:x", "1:2:3:4:5%"] {
            assert_eq!(FileId::read(text), None, "{text}");
        }
    }
}
