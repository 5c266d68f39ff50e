//! Holds one protected name by a placeholder, which comes from the cache or is made, is locked, and goes back at the end.
//!
//! Each run in a workspace has a shared lock on the placeholder, and the last run removes it.
//!
//! All operations use a bare name in a directory that was opened beneath the workspace through no link, so a process that can write in that
//! directory cannot redirect them elsewhere.

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

/// A placeholder that this run holds, locked.
#[derive(Debug)]
pub(crate) struct HeldName {
    pub(crate) path: PathBuf,
    pub(super) parent: Arc<OwnedFd>,
    pub(super) opened: OwnedFd,
}

/// The most attempts at a name that other runs of the workspace release at the same moment.
const TRIES: usize = 64;
/// The most attempts at a lock. A run that removes a placeholder holds it for less time.
const LOCK_TRIES: usize = 1000;
const BETWEEN: Duration = Duration::from_millis(1);

/// Holds one name. Returns `None` if the user's own file is there, or nobody inside could make it.
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
                // It exists, and is the user's own.
                Ok(_) | Err(Errno::LOOP | Errno::NXIO | Errno::ACCESS) => return Ok(None),
                Err(Errno::NOENT) => continue,
                Err(errno) => return Err(errno),
            },
            // The directory's owner can write there after a `chmod`, and the command has the owner's rights.
            Err(Errno::ACCESS) if is_own(place.parent)? => return Err(Errno::ACCESS),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::ROFS | Errno::ACCESS | Errno::PERM) => return Ok(None),
            Err(errno) => return Err(errno),
        };
        lock(&opened)?;
        // Another run may have removed it before this one had the lock.
        if is_at(place.parent, place.name, &opened)? {
            return Ok(Some(opened));
        }
    }
    Err(Errno::BUSY)
}

/// Removes a placeholder, unless another run still holds it. Looks it up if `held` is `None`.
///
/// # Errors
/// When it cannot be removed, such as in a folder that the command has closed by its mode.
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
                // Closed by its own mode, as no placeholder is, or by that of its folder.
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
        // A non-empty directory cannot be removed anyway, so its content is not checked here.
        may_be(&stat).then_some(Kind::Directory)
    } else {
        kind_of(&opened)
    };
    let Some(kind) = kind else { return Ok(()) }; // the user's own by now
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

/// Makes a placeholder and gives it to its owner, by descriptor, so that no other file changes its owner. The umask must not apply, because
/// the mode marks a placeholder.
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

/// Takes the shared lock of a holder. Does not wait for a foreign lock forever, since it may never be released.
fn lock(opened: &OwnedFd) -> rustix::io::Result<()> {
    for _ in 0..LOCK_TRIES {
        match rustix::fs::flock(opened, FlockOperation::NonBlockingLockShared) {
            Err(Errno::WOULDBLOCK) => std::thread::sleep(BETWEEN),
            done => return done,
        }
    }
    Err(Errno::BUSY)
}
