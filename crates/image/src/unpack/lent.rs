//! Layers with lent ids: they keep their files' owners without root, in a user namespace with the caller's subordinate ids.
//!
//! The command of an image is the caller outside, so files of the image's user must belong to the caller. Only the unpacked image
//! says who that user is, so its files change owner after that, one by one. Hence such layers are not shared between images.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;

use super::ownership::NOBODY;
use super::tree::DEEPEST;

/// The caller's id in the user namespace in which such layers are maintained: no file of an image has it.
const CALLER: u32 = NOBODY + 1;

/// Gives the files of a user or a group in a layer's directory to the caller. Files that are the caller's already stay as they are.
pub(crate) fn give(tree: &Path, user: u32, group: u32) -> io::Result<()> {
    let root = rustix::fs::openat(CWD, tree, DIRECTORY, Mode::empty())?;
    Ok(give_below(root, (user, group), 0)?)
}

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

fn give_below(directory: OwnedFd, whose: (u32, u32), depth: usize) -> Result<(), Errno> {
    if depth > DEEPEST {
        return Err(Errno::NAMETOOLONG);
    }
    for entry in Dir::read_from(&directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        let stat = rustix::fs::statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            let below = rustix::fs::openat(&directory, name, DIRECTORY, Mode::empty())?;
            give_below(below, whose, depth + 1)?;
        } else {
            give_one(directory.as_fd(), name, (stat.st_uid, stat.st_gid), whose)?;
        }
    }
    let stat = rustix::fs::fstat(&directory)?;
    give_one(directory.as_fd(), c"", (stat.st_uid, stat.st_gid), whose)
}

fn give_one(
    directory: BorrowedFd<'_>,
    name: &std::ffi::CStr,
    (uid, gid): (u32, u32),
    (user, group): (u32, u32),
) -> Result<(), Errno> {
    let user = (uid == user).then(|| Uid::from_raw(CALLER));
    let group = (gid == group).then(|| Gid::from_raw(CALLER));
    if user.is_none() && group.is_none() {
        return Ok(());
    }
    let flags =
        AtFlags::SYMLINK_NOFOLLOW | if name.is_empty() { AtFlags::EMPTY_PATH } else { AtFlags::empty() };
    rustix::fs::chownat(directory, name, user, group, flags)
}
