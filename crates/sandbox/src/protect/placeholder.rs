//! One placeholder: what is at a protected name on the host while a run lasts, so that nobody inside can make something there.
//!
//! It is an empty directory or a file that nobody may write to, and each run in the workspace holds a shared lock on it, so that
//! the last of them takes it away. Git does not see empty directories, so nothing of this enters a commit. What is somebody's
//! own is never taken for one.
//!
//! Everything is done in a directory that was opened beneath the workspace without following a link, and by a bare name: whoever
//! can write in that directory can have nothing done elsewhere.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{AtFlags, FileType, FlockOperation, Gid, Mode, OFlags, ResolveFlags, Stat, Uid};
use rustix::io::Errno;

use super::stock::Stock;
use crate::opened::{is_at, is_empty, is_own};
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
const DIRECTORY_MODE: u32 = 0o500;
const FILE_MODE: u32 = 0o400;
/// A directory on its way into or out of the stock: to be moved at all it must be one that its owner may write to.
const MOVING_MODE: u32 = 0o1700;
/// The bits that tell: a directory may have inherited its group's.
const TELLING: u32 = 0o1777;
const DOT: &[u8] = b".\n";

/// Where one is to be, and whose.
pub(super) struct Place<'a> {
    pub(super) parent: &'a Arc<OwnedFd>,
    pub(super) name: &'a OsStr,
    pub(super) kind: Kind,
    pub(super) owner: Option<(Uid, Gid)>,
}

/// One that this run holds: where, and locked.
#[derive(Debug)]
pub(crate) struct Placeholder {
    pub(crate) path: PathBuf,
    pub(super) parent: Arc<OwnedFd>,
    pub(super) opened: OwnedFd,
}

/// How often a name is tried for that other runs in the workspace let go of at the same moment.
const TRIES: usize = 64;
/// How long somebody may keep a lock: a run that takes one away needs no more.
const LOCK_TRIES: usize = 1000;
const BETWEEN: Duration = Duration::from_millis(1);

/// The directory in which a path's last name is, beneath a workspace; nothing where it is not there, or behind a link.
pub(super) fn parent_of(root: &Arc<OwnedFd>, path: &Path) -> rustix::io::Result<Option<Arc<OwnedFd>>> {
    match path.parent() {
        None => Ok(Some(Arc::clone(root))),
        Some(parent) if parent.as_os_str().is_empty() => Ok(Some(Arc::clone(root))),
        Some(parent) => open_directory(root, parent, ResolveFlags::BENEATH),
    }
}

fn open_directory(
    root: impl AsFd,
    path: &Path,
    within: ResolveFlags,
) -> rustix::io::Result<Option<Arc<OwnedFd>>> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = within | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    match rustix::fs::openat2(root, path, flags, Mode::empty(), resolve) {
        Ok(opened) => Ok(Some(Arc::new(opened))),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::ACCESS) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Holds one name; nothing where it is there, or nobody inside could make it.
pub(super) fn hold(place: &Place<'_>, stock: &mut Stock) -> rustix::io::Result<Option<OwnedFd>> {
    let mut from_stock = stock.place(place);
    for _ in 0..TRIES {
        let made = match from_stock.take() {
            Some(placed) => Ok(placed),
            None => make(place),
        };
        let opened = match made {
            Ok(opened) => opened,
            Err(Errno::EXIST) => match look(place) {
                Ok(opened) if kind_of(&opened).is_some() => opened,
                // It is there, and somebody's own.
                Ok(_) | Err(Errno::LOOP | Errno::NXIO | Errno::ACCESS) => return Ok(None),
                Err(Errno::NOENT) => continue,
                Err(errno) => return Err(errno),
            },
            // Whoever owns the directory can write there after a `chmod`, and the command has the owner's rights.
            Err(Errno::ACCESS) if is_own(place.parent)? => return Err(Errno::ACCESS),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::ROFS | Errno::ACCESS | Errno::PERM) => return Ok(None),
            Err(errno) => return Err(errno),
        };
        lock(&opened)?;
        // Another run may have taken it away before the lock was ours: then it holds nothing.
        if is_at(place.parent, place.name, &opened)? {
            return Ok(Some(opened));
        }
    }
    Err(Errno::BUSY)
}

/// Takes a placeholder away, unless another run still holds it. Whoever holds it gives it; it is looked up otherwise.
pub(crate) fn release(path: &Path, held: Option<Placeholder>, stock: &mut Stock) -> std::io::Result<()> {
    let Some(name) = path.file_name() else { return Ok(()) };
    let (parent, opened) = match held {
        Some(Placeholder { parent, opened, .. }) => (parent, opened),
        None => {
            let above = path.parent().unwrap_or(Path::new("/"));
            let Some(parent) = open_directory(rustix::fs::CWD, above, ResolveFlags::empty())? else {
                return Ok(());
            };
            match rustix::fs::openat(&parent, name, LOOK, Mode::empty()) {
                Ok(opened) => (parent, opened),
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::NXIO | Errno::ACCESS) => {
                    return Ok(());
                }
                Err(errno) => return Err(errno.into()),
            }
        }
    };
    let stat = rustix::fs::fstat(&opened)?;
    let kind = if FileType::from_raw_mode(stat.st_mode).is_dir() {
        // One with something in it cannot be removed anyway, so it is not read now.
        may_be(&stat).then_some(Kind::Directory)
    } else {
        kind_of(&opened)
    };
    let Some(kind) = kind else { return Ok(()) }; // somebody's own by now
    match rustix::fs::flock(&opened, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => return Ok(()),
        Err(errno) => return Err(errno.into()),
    }
    if !is_at(&parent, name, &opened)?
        || kind == Kind::Directory && stock.take_back(&opened, &parent, name)?
    {
        return Ok(());
    }
    let how = if kind == Kind::Directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
    match rustix::fs::unlinkat(&parent, name, how) {
        Ok(()) | Err(Errno::NOENT | Errno::NOTEMPTY) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Who is to own what root makes in somebody's folder: they, and so the run. Nobody where it is theirs anyway.
pub(super) fn owner_to_be(root: impl AsFd) -> Option<(Uid, Gid)> {
    let (uid, gid) = source::owner(root.as_fd()).ok()?;
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    let own = (rustix::process::geteuid(), rustix::process::getegid());
    (own.0.is_root() && own != (uid, gid)).then_some((uid, gid))
}

/// Makes one, and gives it to whom it is for: by descriptor, so that nothing else is.
fn make(place: &Place<'_>) -> rustix::io::Result<OwnedFd> {
    let content = match place.kind {
        Kind::Directory => {
            rustix::fs::mkdirat(place.parent, place.name, Mode::from_raw_mode(DIRECTORY_MODE))?;
            let opened = look(place)?;
            return match kind_of(&opened) == Some(Kind::Directory) && is_own(&opened)? {
                true => own(&opened, place.owner).map(|()| opened),
                false => Err(Errno::EXIST),
            };
        }
        Kind::Dot => DOT,
        Kind::Void => b"",
    };
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(place.parent, place.name, flags, Mode::from_raw_mode(FILE_MODE))?;
    if !content.is_empty() {
        rustix::io::write(&file, content)?;
    }
    own(&file, place.owner).map(|()| file)
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

fn look(place: &Place<'_>) -> rustix::io::Result<OwnedFd> {
    rustix::fs::openat(place.parent, place.name, LOOK, Mode::empty())
}

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
    rustix::fs::fchmod(opened, Mode::from_raw_mode(DIRECTORY_MODE))
}

/// Makes of one that holds a name what can be moved.
pub(super) fn unsettle(opened: &OwnedFd) -> rustix::io::Result<()> {
    rustix::fs::fchmod(opened, Mode::from_raw_mode(MOVING_MODE))
}

/// Locks one as those who hold it do. Somebody else's lock is not waited for: it may never end.
fn lock(opened: &OwnedFd) -> rustix::io::Result<()> {
    for _ in 0..LOCK_TRIES {
        match rustix::fs::flock(opened, FlockOperation::NonBlockingLockShared) {
            Err(Errno::WOULDBLOCK) => std::thread::sleep(BETWEEN),
            done => return done,
        }
    }
    Err(Errno::BUSY)
}
