//! A placeholder: an empty directory or a file without write permission that occupies a protected name on the host during a run, so that
//! nobody inside can make something there.
//!
//! Git ignores empty directories, so no placeholder enters a commit. The user's own files are never taken for placeholders.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, ResolveFlags, Stat, Uid};
use rustix::io::Errno;

use super::kind::Kind;
use super::row::may_be_held_by;
use crate::open_file::{is_empty, lookup, lookup_with};
use crate::source;

/// The modes that mark a placeholder: nobody may write to it. Everybody may see that there is nothing in it, or another user's git could not
/// read the repository, and another user's run could not hold the same name.
pub(super) const DIRECTORY_MODE: u32 = 0o555;
pub(super) const FILE_MODE: u32 = 0o444;
/// The mode of a directory on its way into or out of the cache. Its owner, unless that is root, can move only a directory that they may
/// write to.
const MOVING_MODE: u32 = 0o1755;
/// The rights of others, which mark nothing: the ACL of the folder around it may take them from a placeholder.
const OF_OTHERS: u32 = 0o055;
/// The mode bits that are compared. A directory may have inherited the set-group-id bit.
pub(super) const TELLING: u32 = 0o1777;
/// The path of the repository itself, so written that every program takes it from the repository: libgit2 takes a bare `.` from the current
/// directory, and GitPython finds no branches by `./`.
pub(super) const DOT: &[u8] = b"./.\n";

/// The place, kind and owner of a placeholder.
pub(super) struct HeldPath<'a> {
    pub(super) parent: &'a Arc<OwnedFd>,
    pub(super) name: &'a OsStr,
    pub(super) kind: Kind,
    pub(super) owner: Option<(Uid, Gid)>,
}

/// Opens the parent directory of a path beneath a workspace. Returns `None` if it does not exist, or is behind a link.
pub(super) fn parent_of(root: &Arc<OwnedFd>, path: &Path) -> rustix::io::Result<Option<Arc<OwnedFd>>> {
    match path.parent() {
        None => Ok(Some(Arc::clone(root))),
        Some(parent) if parent.as_os_str().is_empty() => Ok(Some(Arc::clone(root))),
        Some(parent) => match open_directory(root, parent, ResolveFlags::BENEATH) {
            Err(Errno::ACCESS) => Ok(None),
            opened => opened,
        },
    }
}

/// Opens a directory through no link. Returns `None` if it does not exist or is behind a link; a directory that is closed by its mode is an
/// error.
pub(super) fn open_directory(
    root: impl AsFd,
    path: &Path,
    within: ResolveFlags,
) -> rustix::io::Result<Option<Arc<OwnedFd>>> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = within | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    match lookup_with(root, path, flags, resolve) {
        Ok(opened) => Ok(Some(Arc::new(opened))),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Returns the owner of the workspace if root makes placeholders in another user's folder. `None` if they get the right owner anyway.
pub(super) fn owner_to_be(root: impl AsFd) -> rustix::io::Result<Option<(Uid, Gid)>> {
    let (uid, gid) = source::owner(root.as_fd())?;
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    let own = (rustix::process::geteuid(), rustix::process::getegid());
    Ok((own.0.is_root() && own != (uid, gid)).then_some((uid, gid)))
}

/// Gives a placeholder to `owner`, or back to this process if there is none.
pub(super) fn own(opened: &OwnedFd, owner: Option<(Uid, Gid)>) -> rustix::io::Result<()> {
    let (uid, gid) = owner.unwrap_or_else(|| (rustix::process::geteuid(), rustix::process::getegid()));
    let stat = rustix::fs::fstat(opened)?;
    if (stat.st_uid, stat.st_gid) == (uid.as_raw(), gid.as_raw()) || owner.is_none() && !uid.is_root() {
        return Ok(());
    }
    rustix::fs::fchown(opened, Some(uid), Some(gid))
}

/// The flags by which an unknown file is opened for a check. Opening a device or pipe does not block.
pub(super) const LOOK: OFlags =
    OFlags::RDONLY.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

/// The most looks at a name that is exchanged meanwhile.
const LOOKS: usize = 8;

/// Whether a placeholder is at a path. What its mode, a link or its kind keeps from being opened is none.
pub(crate) fn is_placeholder(root: impl AsFd, path: &Path) -> rustix::io::Result<bool> {
    match lookup(root, path, LOOK) {
        Ok(opened) => is_one(&opened, path),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::ACCESS | Errno::NXIO | Errno::NODEV) => {
            Ok(false)
        }
        Err(errno) => Err(errno),
    }
}

/// Whether a name does not exist, or only as another run's placeholder. That run may remove it, and a third make another, at any moment.
pub(super) fn is_free(root: BorrowedFd<'_>, path: &Path) -> rustix::io::Result<bool> {
    for _ in 0..LOOKS {
        let Some(seen) = stat(root, path)? else { return Ok(true) };
        if !may_be(&seen) {
            return Ok(false);
        }
        match lookup(root, path, LOOK) {
            Ok(opened) if is_one(&opened, path)? => return Ok(true),
            Ok(opened) => {
                let opened = rustix::fs::fstat(&opened)?;
                if (opened.st_dev, opened.st_ino) == (seen.st_dev, seen.st_ino) {
                    return Ok(false);
                }
            }
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(true),
            // Root's, until it has given it to the owner of the workspace; or somebody's own.
            Err(Errno::LOOP | Errno::ACCESS | Errno::NXIO | Errno::NODEV) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(false)
}

/// Returns the status of what is at a path, and follows no link there. `None` if nothing is.
pub(super) fn stat(root: BorrowedFd<'_>, path: &Path) -> rustix::io::Result<Option<Stat>> {
    match rustix::fs::statat(root, path, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Whether an open file is a placeholder of the kind that holds its path. What is of another kind is the user's own.
pub(super) fn is_one(opened: &OwnedFd, path: &Path) -> rustix::io::Result<bool> {
    Ok(kind_of(opened)?.is_some_and(|kind| may_be_held_by(kind, path)))
}

/// Whether a file's mode is that of a placeholder.
pub(super) fn may_be(stat: &Stat) -> bool {
    let is = |mode: u32| (stat.st_mode & TELLING) & !OF_OTHERS == mode & !OF_OTHERS;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => is(DIRECTORY_MODE) || is(MOVING_MODE),
        FileType::RegularFile => is(FILE_MODE),
        _ => false,
    }
}

/// Whether a file that may not be opened can be empty, or have the content of a placeholder. Each folder in a directory is a link to it,
/// but on file systems that count none.
fn may_be_empty(stat: &Stat) -> bool {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => stat.st_nlink <= 2,
        _ => stat.st_size == 0 || usize::try_from(stat.st_size).is_ok_and(|size| size == DOT.len()),
    }
}

/// Returns the user whose run may hold a name, or have left it, where this user may not see whether a placeholder is there.
pub(super) fn holder_unseen(root: BorrowedFd<'_>, path: &Path) -> Option<Uid> {
    let seen = stat(root, path).ok().flatten().filter(|seen| may_be(seen) && may_be_empty(seen))?;
    let is_closed = matches!(lookup(root, path, LOOK), Err(Errno::ACCESS));
    let user = Uid::from_raw(seen.st_uid);
    (is_closed && user != rustix::process::geteuid()).then_some(user)
}

/// Returns the kind of a placeholder: an empty directory, or a file with `./.` or nothing, without write permission. `None` for any other
/// file.
pub(super) fn kind_of(opened: &OwnedFd) -> rustix::io::Result<Option<Kind>> {
    let stat = rustix::fs::fstat(opened)?;
    if !may_be(&stat) {
        return Ok(None);
    }
    if FileType::from_raw_mode(stat.st_mode).is_dir() {
        return Ok(is_empty(opened)?.then_some(Kind::Directory));
    }
    let mut content = [0; 8];
    Ok(match rustix::io::pread(opened, &mut content, 0)? {
        0 => Some(Kind::Void),
        read => (content[..read] == *DOT).then_some(Kind::Dot),
    })
}

/// Gives a moved directory the mode of a placeholder.
pub(super) fn settle(opened: &OwnedFd) -> rustix::io::Result<()> {
    match rustix::fs::fstat(opened)?.st_mode & TELLING {
        DIRECTORY_MODE => Ok(()), // root moved it unchanged
        _ => rustix::fs::fchmod(opened, Mode::from_raw_mode(DIRECTORY_MODE)),
    }
}

/// Makes a directory that holds a name movable. Root can move it unchanged.
pub(super) fn unsettle(opened: &OwnedFd) -> rustix::io::Result<()> {
    match rustix::process::geteuid().is_root() {
        true => Ok(()),
        false => rustix::fs::fchmod(opened, Mode::from_raw_mode(MOVING_MODE)),
    }
}
