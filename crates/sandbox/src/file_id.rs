//! The identity of a folder, independent of its name: it also tells a folder from a later one that got the same inode number.
//!
//! Overlayfs numbers folders anew whenever it has forgotten them, if its layers are on several file systems, so only the birth time is sure
//! to stay there. That is the lower layer's until the folder first changes: then it is copied to the upper layer, and born again.
//! Two folders that were made at once may share it.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::fs::{AtFlags, StatxFlags};

/// A folder's inode number, birth time and device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileId {
    /// Zero if it was recorded on overlayfs by an earlier version.
    inode: u64,
    /// Zeros if the file system has no birth times.
    born: (i64, u32),
    device: (u32, u32),
}

/// How likely it is that a folder is the one that was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Likeness {
    Same,
    /// It was born at the same time, and has another number, which overlayfs may have given to it since.
    Perhaps,
    Another,
}

/// How a file system numbers its folders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Numbers {
    Lasting,
    /// It may give a folder another one, and keeps the time of its birth.
    Changing,
}

const WANTED: StatxFlags = StatxFlags::INO.union(StatxFlags::BTIME);

/// `OVERLAYFS_SUPER_MAGIC`, statfs(2).
const OVERLAYFS: i64 = 0x794c_7630;

impl FileId {
    /// Returns the identity of an open folder.
    pub(crate) fn of(opened: BorrowedFd<'_>) -> io::Result<Self> {
        let stat = rustix::fs::statx(opened, c"", AtFlags::EMPTY_PATH, WANTED)?;
        let born = (stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec);
        Ok(Self { inode: stat.stx_ino, born, device: (stat.stx_dev_major, stat.stx_dev_minor) })
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

    /// Whether an open folder is this one, which was recorded, possibly before a reboot, which may change device numbers. Where inode
    /// numbers do not last, the time of birth tells alone.
    pub(crate) fn is_still(self, opened: BorrowedFd<'_>) -> io::Result<bool> {
        let now = Self::of(opened)?;
        Ok(self.is_found_in(now, now.numbers(opened)?))
    }

    /// Whether an open folder may be this one, which was recorded. Without birth times another one of a file system that was mounted in its
    /// place may be taken for it.
    pub(crate) fn likeness(self, opened: BorrowedFd<'_>) -> io::Result<Likeness> {
        let now = Self::of(opened)?;
        Ok(self.like(now, now.numbers(opened)?))
    }

    fn is_found_in(self, now: Self, numbers: Numbers) -> bool {
        let is_known_by_birth = now.born != (0, 0);
        let has_number = numbers == Numbers::Changing || now.inode == self.inode;
        has_number && now.born == self.born && (is_known_by_birth || now.device == self.device)
    }

    fn like(self, now: Self, numbers: Numbers) -> Likeness {
        match numbers {
            _ if now.born != self.born => Likeness::Another,
            _ if now.inode == self.inode => Likeness::Same,
            Numbers::Lasting => Likeness::Another,
            Numbers::Changing if self.inode == 0 => Likeness::Same,
            Numbers::Changing => Likeness::Perhaps,
        }
    }

    fn numbers(self, opened: BorrowedFd<'_>) -> io::Result<Numbers> {
        let is_changing = self.born != (0, 0) && is_on_overlayfs(opened)?;
        Ok(if is_changing { Numbers::Changing } else { Numbers::Lasting })
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

    use super::Likeness::{Another, Perhaps, Same};
    use super::Numbers::{Changing, Lasting};
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
        let is_still = |name: &str| {
            one.is_still(std::fs::File::open(folder.path().join(name)).unwrap().as_fd()).unwrap()
        };
        assert!(is_still("other") && !is_still("one"));
        let elsewhere = FileId { device: (one.device.0 + 1, 0), ..one };
        let (unborn, elsewhere_unborn) =
            (FileId { born: (0, 0), ..one }, FileId { born: (0, 0), ..elsewhere });
        assert_eq!(one.is_found_in(elsewhere, Lasting), one.born != (0, 0));
        assert!(!unborn.is_found_in(elsewhere_unborn, Lasting));
        assert_eq!((one.like(elsewhere, Lasting), one.like(at("one"), Lasting)), (Same, Another));
        // On overlayfs: another number, and none, as it was recorded by an earlier version.
        let born = FileId { born: (7, 7), ..one };
        let other = FileId { inode: one.inode + 1, ..born };
        let earlier = FileId { inode: 0, ..born };
        assert!(born.is_found_in(other, Changing) && !born.is_found_in(other, Lasting));
        for (noted, now, numbers, like) in [
            (born, born, Changing, Same),
            (born, other, Changing, Perhaps),
            (born, other, Lasting, Another),
            (earlier, other, Changing, Same),
            (earlier, other, Lasting, Another),
            (born, FileId { born: (7, 8), ..born }, Changing, Another),
        ] {
            assert_eq!(noted.like(now, numbers), like, "{noted:?} {now:?}");
        }
        for text in ["", "1", "1:2:3:4", "1:2:3:4:5:6", "1:2:3:4:x", "1:2:3:4:5%"] {
            assert_eq!(FileId::read(text), None, "{text}");
        }
    }
}
