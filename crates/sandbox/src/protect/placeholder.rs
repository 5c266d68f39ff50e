//! One placeholder: what is at a protected name on the host while a run lasts, so that nobody inside can make something there.
//!
//! It is an empty directory or a file that nobody may write to, and each run in the workspace holds a shared lock on it, so that
//! the last of them takes it away. Git does not see empty directories, so nothing of this enters a commit. What is somebody's
//! own is never taken for one.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, FileType, FlockOperation, Gid, Mode, OFlags, RawDir, Stat, Uid};
use rustix::io::Errno;

use super::stock::Stock;
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
    pub(super) root: BorrowedFd<'a>,
    pub(super) path: &'a Path,
    pub(super) kind: Kind,
    pub(super) owner: Option<(Uid, Gid)>,
}

/// How often a name is tried for that other runs in the workspace let go of at the same moment.
const TRIES: usize = 64;

/// Holds one name; nothing where it is there, or nobody can make it.
pub(super) fn hold(place: &Place<'_>, stock: &mut Stock) -> rustix::io::Result<Option<OwnedFd>> {
    let Place { root, path, kind, owner } = *place;
    if let Some(placed) = stock.place(place) {
        rustix::fs::flock(&placed, FlockOperation::LockShared)?;
        if is_at(root, path, &placed)? {
            return Ok(Some(placed));
        }
    }
    for _ in 0..TRIES {
        let locked = match make(root, path, kind) {
            Ok(()) => give(root, path, owner).and_then(|()| lock(root, path)),
            Err(Errno::EXIST) if is_placeholder(root, path) => lock(root, path),
            // It is there, or its parent is not, or nobody can write here: then the agent cannot make it either.
            Err(Errno::EXIST | Errno::NOENT | Errno::NOTDIR | Errno::ROFS | Errno::ACCESS | Errno::PERM) => {
                return Ok(None);
            }
            Err(errno) => return Err(errno),
        };
        match locked {
            // Another run may have taken it away before the lock was ours: then it holds nothing.
            Ok(locked) if is_at(root, path, &locked)? => return Ok(Some(locked)),
            Ok(_) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno),
        }
    }
    Err(Errno::BUSY)
}

/// Takes a placeholder away, unless another run still holds it. Whoever holds it gives it; it is looked up otherwise.
pub(crate) fn release(path: &Path, held: Option<OwnedFd>, stock: &mut Stock) -> std::io::Result<()> {
    let was_looked_up = held.is_none();
    let opened = match held.map_or_else(|| rustix::fs::open(path, LOOK, Mode::empty()), Ok) {
        Ok(opened) => opened,
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(()),
        Err(errno) => return Err(errno.into()),
    };
    let stat = rustix::fs::fstat(&opened)?;
    let kind = if FileType::from_raw_mode(stat.st_mode).is_dir() {
        // One with something in it cannot be removed anyway, so it is not read now.
        may_be(&stat).then_some(Kind::Directory)
    } else {
        kind_of(&opened)
    };
    let is_there = was_looked_up || is_at(rustix::fs::CWD, path, &opened)?;
    let Some(kind) = kind.filter(|_| is_there) else { return Ok(()) }; // somebody's own by now
    match rustix::fs::flock(&opened, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => return Ok(()),
        Err(errno) => return Err(errno.into()),
    }
    if stock.take_back(&opened, kind, path)? {
        return Ok(());
    }
    let removed = match kind {
        Kind::Directory => rustix::fs::rmdir(path),
        Kind::Dot | Kind::Void => rustix::fs::unlink(path),
    };
    match removed {
        Ok(()) | Err(Errno::NOENT | Errno::NOTEMPTY) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Who is to own what root makes in somebody's folder: they, and so the run. Nobody where it is theirs anyway.
pub(super) fn owner_to_be(root: BorrowedFd<'_>) -> Option<(Uid, Gid)> {
    let (uid, gid) = source::owner(root).ok()?;
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    let own = (rustix::process::geteuid(), rustix::process::getegid());
    (own.0.is_root() && own != (uid, gid)).then_some((uid, gid))
}

fn make(root: BorrowedFd<'_>, path: &Path, kind: Kind) -> rustix::io::Result<()> {
    let content = match kind {
        Kind::Directory => return rustix::fs::mkdirat(root, path, Mode::from_raw_mode(DIRECTORY_MODE)),
        Kind::Dot => DOT,
        Kind::Void => b"",
    };
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(root, path, flags, Mode::from_raw_mode(FILE_MODE))?;
    if content.is_empty() { Ok(()) } else { rustix::io::write(&file, content).map(drop) }
}

fn give(root: BorrowedFd<'_>, path: &Path, owner: Option<(Uid, Gid)>) -> rustix::io::Result<()> {
    let Some((uid, gid)) = owner else { return Ok(()) };
    rustix::fs::chownat(root, path, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)
}

/// Whether what was opened is what a name leads to.
pub(super) fn is_at(root: BorrowedFd<'_>, path: &Path, opened: &OwnedFd) -> rustix::io::Result<bool> {
    let opened = rustix::fs::fstat(opened)?;
    match rustix::fs::statat(root, path, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(there) => Ok((there.st_dev, there.st_ino) == (opened.st_dev, opened.st_ino)),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// What can be opened to be looked at: never a device or a pipe that would wait.
pub(super) const LOOK: OFlags =
    OFlags::RDONLY.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

pub(super) fn is_placeholder(root: BorrowedFd<'_>, path: &Path) -> bool {
    rustix::fs::openat(root, path, LOOK, Mode::empty()).is_ok_and(|opened| kind_of(&opened).is_some())
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

/// Whether nothing is in a directory that was opened just for that, and of which nothing was read.
pub(super) fn is_empty(directory: &OwnedFd) -> bool {
    let mut buffer = [MaybeUninit::uninit(); 512];
    let mut entries = RawDir::new(directory, &mut buffer);
    while let Some(entry) = entries.next() {
        match entry {
            Ok(entry) if matches!(entry.file_name().to_bytes(), b"." | b"..") => {}
            _ => return false,
        }
    }
    true
}

/// Makes of one that was moved what holds a name.
pub(super) fn settle(opened: &OwnedFd, kind: Kind) -> rustix::io::Result<()> {
    match kind {
        Kind::Directory => rustix::fs::fchmod(opened, Mode::from_raw_mode(DIRECTORY_MODE)),
        Kind::Dot | Kind::Void => Ok(()),
    }
}

/// Makes of one that holds a name what can be moved.
pub(super) fn unsettle(opened: &OwnedFd, kind: Kind) -> rustix::io::Result<()> {
    match kind {
        Kind::Directory => rustix::fs::fchmod(opened, Mode::from_raw_mode(MOVING_MODE)),
        Kind::Dot | Kind::Void => Ok(()),
    }
}

fn lock(root: BorrowedFd<'_>, path: &Path) -> rustix::io::Result<OwnedFd> {
    let opened = rustix::fs::openat(root, path, LOOK, Mode::empty())?;
    rustix::fs::flock(opened.as_fd(), FlockOperation::LockShared)?;
    Ok(opened)
}
