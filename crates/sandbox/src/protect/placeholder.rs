//! One placeholder: what is at a protected name on the host while a run lasts, so that nobody inside can make something there.
//!
//! It is an empty directory or a file that nobody may write to. Git does not see empty directories, so nothing of this enters a
//! commit. What is somebody's own is never taken for one.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{FileType, Gid, Mode, OFlags, ResolveFlags, Stat, Uid};
use rustix::io::Errno;

use crate::open_file::is_empty;
use crate::source;

/// What holds a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// An empty directory.
    Directory,
    /// A file that says, in `.git/commondir`, that the repository is its own.
    Dot,
    /// An empty file.
    Void,
}

/// How one can tell a placeholder: nobody may write to it.
pub(super) const DIRECTORY_MODE: u32 = 0o500;
pub(super) const FILE_MODE: u32 = 0o400;
/// A directory on its way into or out of the cache: to be moved at all it must be one that its owner, unless that is root, may write to.
const MOVING_MODE: u32 = 0o1700;
/// The bits that tell: a directory may have inherited its group's.
const TELLING: u32 = 0o1777;
pub(super) const DOT: &[u8] = b".\n";

/// Where one is to be, and whose.
pub(super) struct HeldPath<'a> {
    pub(super) parent: &'a Arc<OwnedFd>,
    pub(super) name: &'a OsStr,
    pub(super) kind: Kind,
    pub(super) owner: Option<(Uid, Gid)>,
}

/// The directory in which a path's last name is, beneath a workspace; nothing where it is not there, or behind a link.
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

/// A directory that can be reached without a link; one that is shut is an error.
pub(super) fn open_directory(
    root: impl AsFd,
    path: &Path,
    within: ResolveFlags,
) -> rustix::io::Result<Option<Arc<OwnedFd>>> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = within | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    match rustix::fs::openat2(root, path, flags, Mode::empty(), resolve) {
        Ok(opened) => Ok(Some(Arc::new(opened))),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Who is to own what root makes in somebody's folder: they, and so the run. Nobody where it is theirs anyway.
pub(super) fn owner_to_be(root: impl AsFd) -> Option<(Uid, Gid)> {
    let (uid, gid) = source::owner(root.as_fd()).ok()?;
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    let own = (rustix::process::geteuid(), rustix::process::getegid());
    (own.0.is_root() && own != (uid, gid)).then_some((uid, gid))
}

/// Gives one to whoever is to own it: the workspace's owner where root runs, and oneself again after that.
pub(super) fn own(opened: &OwnedFd, owner: Option<(Uid, Gid)>) -> rustix::io::Result<()> {
    let (uid, gid) = owner.unwrap_or_else(|| (rustix::process::geteuid(), rustix::process::getegid()));
    let stat = rustix::fs::fstat(opened)?;
    if (stat.st_uid, stat.st_gid) == (uid.as_raw(), gid.as_raw()) || owner.is_none() && !uid.is_root() {
        return Ok(());
    }
    rustix::fs::fchown(opened, Some(uid), Some(gid))
}

/// What can be opened to be looked at: never a device or a pipe that would wait.
pub(super) const LOOK: OFlags =
    OFlags::RDONLY.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

pub(super) fn is_placeholder(root: impl AsFd, path: &Path) -> bool {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    rustix::fs::openat2(root, path, LOOK, Mode::empty(), resolve)
        .is_ok_and(|opened| kind_of(&opened).is_some())
}

/// Whether something may be a placeholder by its mode alone.
pub(super) fn may_be(stat: &Stat) -> bool {
    let mode = stat.st_mode & TELLING;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => mode == DIRECTORY_MODE || mode == MOVING_MODE,
        FileType::RegularFile => mode == FILE_MODE,
        _ => false,
    }
}

/// An empty directory that nobody can write into, or a file that nobody can write and that holds a dot or nothing, is one of ours.
pub(super) fn kind_of(opened: &OwnedFd) -> Option<Kind> {
    let stat = rustix::fs::fstat(opened).ok().filter(may_be)?;
    if FileType::from_raw_mode(stat.st_mode).is_dir() {
        return is_empty(opened).then_some(Kind::Directory);
    }
    let mut content = [0; 8];
    match rustix::io::pread(opened, &mut content, 0).ok()? {
        0 => Some(Kind::Void),
        read => (content[..read] == *DOT).then_some(Kind::Dot),
    }
}

/// Makes of a directory that was moved what holds a name.
pub(super) fn settle(opened: &OwnedFd) -> rustix::io::Result<()> {
    match rustix::fs::fstat(opened)?.st_mode & TELLING {
        DIRECTORY_MODE => Ok(()), // root moved it as it was
        _ => rustix::fs::fchmod(opened, Mode::from_raw_mode(DIRECTORY_MODE)),
    }
}

/// Makes of one that holds a name what can be moved. Root can move it as it is.
pub(super) fn unsettle(opened: &OwnedFd) -> rustix::io::Result<()> {
    match rustix::process::geteuid().is_root() {
        true => Ok(()),
        false => rustix::fs::fchmod(opened, Mode::from_raw_mode(MOVING_MODE)),
    }
}
