//! One protected name that a run holds: what holds it comes out of the cache or is made, is locked, and goes back.
//!
//! Each run in a workspace has a shared lock on what holds a name there, so that the last of them takes it away.
//!
//! Everything is done in a directory that was opened beneath the workspace without following a link, and by a bare name: whoever
//! can write in that directory can have nothing done elsewhere.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::placeholder::{
    DIRECTORY_MODE, DOT, FILE_MODE, HeldPath, Kind, LOOK, kind_of, may_be, open_directory, own,
};
use super::placeholder_cache::PlaceholderCache;
use crate::open_file::{is_at, is_own};

/// What holds a name for this run: where, and locked.
#[derive(Debug)]
pub(crate) struct HeldName {
    pub(crate) path: PathBuf,
    pub(super) parent: Arc<OwnedFd>,
    pub(super) opened: OwnedFd,
}

/// How often a name is tried for that other runs in the workspace let go of at the same moment.
const TRIES: usize = 64;
/// How long somebody may keep a lock: a run that takes one away needs no more.
const LOCK_TRIES: usize = 1000;
const BETWEEN: Duration = Duration::from_millis(1);

/// Holds one name; nothing where it is there, or nobody inside could make it.
pub(super) fn hold(
    place: &HeldPath<'_>,
    cache: &mut PlaceholderCache,
) -> rustix::io::Result<Option<OwnedFd>> {
    let mut from_cache = cache.place(place);
    for _ in 0..TRIES {
        let made = match from_cache.take() {
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

/// Takes a placeholder away, unless another run still holds it. Whoever holds it gives it; it is looked up otherwise. What lies in a folder
/// that the command has shut is there still, and an error.
pub(crate) fn release(
    path: &Path,
    held: Option<HeldName>,
    cache: &mut PlaceholderCache,
) -> std::io::Result<()> {
    let Some(name) = path.file_name() else { return Ok(()) };
    let (parent, opened) = match held {
        Some(HeldName { parent, opened, .. }) => (parent, opened),
        None => {
            let above = path.parent().unwrap_or(Path::new("/"));
            let Some(parent) = open_directory(rustix::fs::CWD, above, ResolveFlags::empty())? else {
                return Ok(());
            };
            match rustix::fs::openat(&parent, name, LOOK, Mode::empty()) {
                Ok(opened) => (parent, opened),
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::NXIO) => return Ok(()),
                // Shut against us by its own mode, which no placeholder is, or by its folder's.
                Err(Errno::ACCESS) => {
                    rustix::fs::statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
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
        || kind == Kind::Directory && cache.take_back(&opened, &parent, name)?
    {
        return Ok(());
    }
    let how = if kind == Kind::Directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
    match rustix::fs::unlinkat(&parent, name, how) {
        Ok(()) | Err(Errno::NOENT | Errno::NOTEMPTY) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Makes one, and gives it to whom it is for: by descriptor, so that nothing else is. It is told by its mode, whatever the caller's mask.
fn make(place: &HeldPath<'_>) -> rustix::io::Result<OwnedFd> {
    let mask = rustix::process::umask(Mode::empty());
    let made = make_unmasked(place);
    rustix::process::umask(mask);
    made
}

fn make_unmasked(place: &HeldPath<'_>) -> rustix::io::Result<OwnedFd> {
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

fn look(place: &HeldPath<'_>) -> rustix::io::Result<OwnedFd> {
    rustix::fs::openat(place.parent, place.name, LOOK, Mode::empty())
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
