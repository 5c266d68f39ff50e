//! Holds one protected name by a placeholder, which comes from the cache or is made, is locked, and goes back at the end.
//!
//! Each run in a workspace has a shared lock on the placeholder, and the last run removes it. Anybody who can open it can lock it too, as a
//! command in a run over a folder above: such a lock keeps the placeholder there, and keeps no run from beginning.
//!
//! All operations use a bare name in a directory that was opened beneath the workspace through no link, so a process that can write in that
//! directory cannot redirect them elsewhere.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{Access, AtFlags, CWD, FileType, FlockOperation, Gid, Mode, OFlags, ResolveFlags, Uid};
use rustix::io::Errno;

use super::kind::Kind;
use super::placeholder::{
    DIRECTORY_MODE, DOT, FILE_MODE, HeldPath, LOOK, TELLING, kind_of, may_be, open_directory, own, settle,
};
use super::placeholder_cache::PlaceholderCache;
use super::row::may_be_held_by;
use crate::open_file::{is_at, is_empty, is_own};

/// A placeholder that this run holds, locked.
#[derive(Debug)]
pub(crate) struct HeldName {
    pub(crate) path: PathBuf,
    pub(super) parent: Arc<OwnedFd>,
    pub(super) opened: OwnedFd,
}

impl HeldName {
    /// Whether its placeholder still has the name.
    pub(super) fn is_there(&self) -> rustix::io::Result<bool> {
        self.path.file_name().map_or(Ok(false), |name| is_at(&self.parent, name, &self.opened))
    }

    /// Tries once more to take the lock, which may be had already.
    pub(super) fn lock_again(&self) -> rustix::io::Result<()> {
        lock(&self.opened, &mut Patience { tries: 0, gave_up: false })
    }
}

/// The most attempts at a name that other runs of the workspace release at the same moment.
const TRIES: usize = 64;
/// The most waits for the locks of all names together. A run that removes placeholders holds them for less time; whoever keeps one longer
/// is none.
const WAITS: usize = 1000;
const BETWEEN: Duration = Duration::from_millis(1);

/// How long a run that begins still waits for locks.
#[derive(Debug)]
pub(super) struct Patience {
    tries: usize,
    /// Whether a lock was not had.
    pub(super) gave_up: bool,
}

impl Patience {
    pub(super) fn new() -> Self {
        Self { tries: WAITS, gave_up: false }
    }

    fn wait(&mut self) {
        self.tries = self.tries.saturating_sub(1);
        std::thread::sleep(BETWEEN);
    }
}

/// The error of a file system that does not keep what tells a placeholder: its mode, or the number by which it is known again. It is also
/// that of one that does not do at all what a placeholder takes, such as locks.
pub(super) const KEEPS_NO_ATTRIBUTES: Errno = Errno::OPNOTSUPP;

/// Holds one name. Returns `None` if nobody inside could make it.
///
/// # Errors
/// `EOPNOTSUPP` if the file system keeps no attributes; nothing is left there. `EEXIST` if the user's own file is there. When its name was chosen there was none.
pub(super) fn hold(
    place: &HeldPath<'_>,
    cache: &mut PlaceholderCache,
    patience: &mut Patience,
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
                Ok(opened) => match kind_of(&opened)? {
                    // Another user's. It goes with their run, and nobody inside could make it then either.
                    Some(kind) if kind == place.kind && is_closed_to_us(place.parent)? => return Ok(None),
                    Some(kind) if kind == place.kind => opened,
                    Some(Kind::Void) if place.kind == Kind::Dot => {
                        remove_half_made(place, &opened, patience)?;
                        continue;
                    }
                    _ => return Err(Errno::EXIST),
                },
                Err(Errno::LOOP | Errno::NXIO | Errno::ACCESS) => return Err(Errno::EXIST),
                Err(Errno::NOENT) => continue,
                Err(errno) => return Err(errno),
            },
            // The directory's owner can write there after a `chmod`, and the command has the owner's rights.
            Err(Errno::ACCESS) if is_own(place.parent)? => return Err(why_closed(place.parent)?),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::ROFS | Errno::ACCESS | Errno::PERM) => return Ok(None),
            Err(errno) => return Err(errno),
        };
        lock(&opened, patience)?;
        // Another run may have removed it before this one had the lock.
        if is_at(place.parent, place.name, &opened)? {
            return Ok(Some(opened));
        }
        if !is_numbered(&opened)? {
            unmake(place, &opened)?;
            return Err(KEEPS_NO_ATTRIBUTES);
        }
    }
    Err(Errno::BUSY)
}

/// Returns the error for an own directory in which nothing can be made: its mode says so, or its file system does whatever the mode says.
fn why_closed(directory: &OwnedFd) -> rustix::io::Result<Errno> {
    let mode = Mode::from_raw_mode(rustix::fs::fstat(directory)?.st_mode);
    Ok(if mode.contains(Mode::WUSR | Mode::XUSR) { KEEPS_NO_ATTRIBUTES } else { Errno::ACCESS })
}

/// Whether a directory is somebody else's, and this user may make nothing there.
fn is_closed_to_us(directory: &OwnedFd) -> rustix::io::Result<bool> {
    let may_make = rustix::fs::accessat(directory, ".", Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS);
    match may_make {
        Ok(()) => Ok(false),
        Err(errno) => Ok(closes(errno)? && !is_own(directory)?),
    }
}

/// Whether an error of a check says that nothing may be made. A filter of system calls that does not know the check answers EPERM.
fn closes(errno: Errno) -> rustix::io::Result<bool> {
    match errno {
        Errno::ACCESS | Errno::ROFS => Ok(true),
        Errno::PERM => Ok(false),
        errno => Err(errno),
    }
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
    let was_held = held.is_some();
    let (parent, opened) = match held {
        Some(HeldName { parent, opened, .. }) => (parent, opened),
        None => {
            let above = path.parent().unwrap_or(Path::new("/"));
            let Some(parent) = open_directory(CWD, above, ResolveFlags::empty())? else {
                return Ok(());
            };
            match rustix::fs::openat(&parent, name, LOOK, Mode::empty()) {
                Ok(opened) => (parent, opened),
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::NXIO) => return Ok(()),
                // Closed by its own mode, as no placeholder is. Where its folder's mode closes it, nothing can be told of it.
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
        kind_of(&opened)?
    };
    // The user's own, if it is none, or of a kind that does not hold this name.
    let Some(kind) = kind.filter(|kind| may_be_held_by(*kind, path)) else { return Ok(()) };
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
        // It is the folder of another user, where nobody inside could make it.
        Err(Errno::ACCESS) if !was_held && is_closed_to_us(&parent)? => Ok(()),
        // Its folder is sticky.
        Err(Errno::PERM) if !is_own(&opened)? => {
            let why = format!("user {} made it, whose next run in this folder takes it away", stat.st_uid);
            Err(std::io::Error::other(why))
        }
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
        Kind::Directory => None,
        Kind::Dot => Some(DOT),
        Kind::Void => Some(&b""[..]),
    };
    let Some(content) = content else {
        rustix::fs::mkdirat(place.parent, place.name, Mode::from_raw_mode(DIRECTORY_MODE))?;
        let made = look_at_made(place)?;
        close_to_its_owner(&made)?;
        return kept(place, made);
    };
    let file = if content.is_empty() { make_named(place, content)? } else { make_file(place, content)? };
    kept(place, file)
}

/// Makes a file whole or not at all: written without a name, then linked. Where a file system does not do that, it has its name first.
fn make_file(place: &HeldPath<'_>, content: &[u8]) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
    let Ok(file) = rustix::fs::openat(place.parent, ".", flags, Mode::from_raw_mode(FILE_MODE)) else {
        return make_named(place, content);
    };
    write_whole(&file, content)?;
    let unnamed = format!("/proc/self/fd/{}", file.as_raw_fd());
    match rustix::fs::linkat(CWD, unnamed, place.parent, place.name, AtFlags::SYMLINK_FOLLOW) {
        Ok(()) => Ok(file),
        Err(Errno::EXIST) => Err(Errno::EXIST),
        Err(_) => make_named(place, content),
    }
}

fn make_named(place: &HeldPath<'_>, content: &[u8]) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(place.parent, place.name, flags, Mode::from_raw_mode(FILE_MODE))?;
    if let Err(errno) = write_whole(&file, content) {
        unmake(place, &file)?;
        return Err(errno);
    }
    Ok(file)
}

fn write_whole(file: &OwnedFd, content: &[u8]) -> rustix::io::Result<()> {
    match rustix::io::retry_on_intr(|| rustix::io::write(file, content))? {
        written if written == content.len() => Ok(()),
        _ => Err(Errno::NOSPC),
    }
}

/// Removes a file that a process made and did not write, because it was killed or found no room. One that its maker has locked meanwhile
/// is written. A foreign lock, which may never be released, is not waited for without end.
fn remove_half_made(
    place: &HeldPath<'_>,
    opened: &OwnedFd,
    patience: &mut Patience,
) -> rustix::io::Result<()> {
    while let Err(errno) = rustix::fs::flock(opened, FlockOperation::NonBlockingLockExclusive) {
        match errno {
            Errno::WOULDBLOCK if kind_of(opened)? != Some(Kind::Void) => return Ok(()),
            Errno::WOULDBLOCK if patience.tries == 0 => break,
            Errno::WOULDBLOCK => patience.wait(),
            errno => return Err(errno),
        }
    }
    if !is_at(place.parent, place.name, opened)? {
        return Ok(());
    }
    match rustix::fs::unlinkat(place.parent, place.name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Opens a directory that was just made and has no lock yet.
///
/// # Errors
/// `EEXIST` if a run that ended took it away, or somebody put something in its place: whoever made it has to look again.
fn look_at_made(place: &HeldPath<'_>) -> rustix::io::Result<OwnedFd> {
    look(place).map_err(|errno| match errno {
        Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::NXIO | Errno::ACCESS => Errno::EXIST,
        errno => errno,
    })
}

/// Takes the right to write from the owner of a directory that was just made. gocryptfs gives it, whatever mode is asked for.
fn close_to_its_owner(made: &OwnedFd) -> rustix::io::Result<()> {
    let stat = rustix::fs::fstat(made)?;
    let is_open = stat.st_mode & TELLING == DIRECTORY_MODE | Mode::WUSR.as_raw_mode();
    if is_open && is_own(made)? && is_empty(made)? { settle(made) } else { Ok(()) }
}

/// Gives what was just made to its owner, if it looks as it was made. Otherwise removes it: every later look would take it for the user's
/// own. Somebody may have given it to its owner already, as `chown -R` does.
fn kept(place: &HeldPath<'_>, made: OwnedFd) -> rustix::io::Result<OwnedFd> {
    if kind_of(&made)? == Some(place.kind) && (is_own(&made)? || is_of(place.owner, &made)?) {
        return own(&made, place.owner).map(|()| made);
    }
    // A run that ended took away what was made here, and another user's run holds the name since.
    if rustix::fs::flock(&made, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK) {
        return Err(Errno::EXIST);
    }
    unmake(place, &made)?;
    Err(KEEPS_NO_ATTRIBUTES)
}

fn is_of(owner: Option<(Uid, Gid)>, opened: &OwnedFd) -> rustix::io::Result<bool> {
    let uid = rustix::fs::fstat(opened)?.st_uid;
    Ok(owner.is_some_and(|(owner, _)| owner.as_raw() == uid))
}

/// Removes what was just made: a directory only if it is empty, and a file only if it still has the name.
fn unmake(place: &HeldPath<'_>, made: &OwnedFd) -> rustix::io::Result<()> {
    let how = match place.kind {
        Kind::Directory => AtFlags::REMOVEDIR,
        Kind::Dot | Kind::Void if is_at(place.parent, place.name, made)? || !is_numbered(made)? => {
            AtFlags::empty()
        }
        Kind::Dot | Kind::Void => return Err(Errno::EXIST),
    };
    match rustix::fs::unlinkat(place.parent, place.name, how) {
        // Somebody else's by now.
        Err(Errno::NOTEMPTY | Errno::NOTDIR | Errno::ISDIR) => Err(Errno::EXIST),
        Err(Errno::NOENT) => Ok(()),
        done => done,
    }
}

/// Whether the file system gives an open file the same number each time it is asked.
fn is_numbered(opened: &OwnedFd) -> rustix::io::Result<bool> {
    Ok(rustix::fs::fstat(opened)?.st_ino == rustix::fs::fstat(opened)?.st_ino)
}

fn look(place: &HeldPath<'_>) -> rustix::io::Result<OwnedFd> {
    rustix::fs::openat(place.parent, place.name, LOOK, Mode::empty())
}

/// Takes the shared lock of a holder. A foreign lock, which may never be released, is not waited for without end: without its own the run
/// has the name all the same, and ends if the placeholder is removed meanwhile.
fn lock(opened: &OwnedFd, patience: &mut Patience) -> rustix::io::Result<()> {
    loop {
        match rustix::fs::flock(opened, FlockOperation::NonBlockingLockShared) {
            Err(Errno::WOULDBLOCK) if patience.tries == 0 => {
                patience.gave_up = true;
                return Ok(());
            }
            Err(Errno::WOULDBLOCK) => patience.wait(),
            done => return done,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::fs;
    use std::os::fd::AsFd;
    use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};

    use super::super::placeholder::is_free;
    use super::*;

    #[test]
    fn what_a_file_system_shows_otherwise_than_it_was_made_is_removed_and_nothing_else_is() {
        let folder = tempfile::tempdir().unwrap();
        let parent: Arc<OwnedFd> = Arc::new(fs::File::open(folder.path()).unwrap().into());
        let (name, at) = (OsStr::new("held"), folder.path().join("held"));
        let kept = |kind| {
            let place = HeldPath { parent: &parent, name, kind, owner: None };
            kept(&place, look(&place).unwrap()).map(drop)
        };
        // As on a file system with modes of its own.
        for mode in [0o755, 0o750, 0o700] {
            fs::DirBuilder::new().mode(mode).create(&at).unwrap();
            assert_eq!((kept(Kind::Directory), at.exists()), (Err(KEEPS_NO_ATTRIBUTES), false));
        }
        let file = |mode| fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&at).unwrap();
        file(0o644);
        assert_eq!((kept(Kind::Void), at.exists()), (Err(KEEPS_NO_ATTRIBUTES), false));
        file(0o400);
        assert_eq!((kept(Kind::Void), at.exists()), (Ok(()), true));
        fs::remove_file(&at).unwrap();
        // Somebody else's by now.
        fs::create_dir_all(at.join("theirs")).unwrap();
        assert_eq!((kept(Kind::Directory), at.exists()), (Err(Errno::EXIST), true));
        fs::remove_dir_all(&at).unwrap();
        file(0o644);
        let place = HeldPath { parent: &parent, name, kind: Kind::Void, owner: None };
        let made = look(&place).unwrap();
        fs::rename(&at, folder.path().join("aside")).unwrap();
        file(0o644);
        assert_eq!(super::kept(&place, made).map(drop), Err(Errno::EXIST));
        assert!(at.exists());
        // Taken away before it was opened: neither held nor impossible to make.
        fs::remove_file(&at).unwrap();
        assert_eq!(look_at_made(&place).map(drop), Err(Errno::EXIST));
    }

    #[test]
    fn a_directory_that_was_made_open_to_its_owner_is_closed_and_no_other_is() {
        let folder = tempfile::tempdir().unwrap();
        let parent: Arc<OwnedFd> = Arc::new(fs::File::open(folder.path()).unwrap().into());
        let (name, at) = (OsStr::new("held"), folder.path().join("held"));
        let place = HeldPath { parent: &parent, name, kind: Kind::Directory, owner: None };
        let is_kept = |mode| {
            fs::DirBuilder::new().mode(mode).create(&at).unwrap();
            let made = look(&place).unwrap();
            close_to_its_owner(&made).unwrap();
            let kept = kept(&place, made).map(drop);
            fs::remove_dir(&at).is_ok() && kept.is_ok()
        };
        assert!(is_kept(0o555) && is_kept(0o755) && !is_kept(0o750) && !is_kept(0o700));
        // As where the ACL of the folder keeps others out.
        assert!(is_kept(0o550) && is_kept(0o500));
        // With something in it, it is somebody else's.
        fs::create_dir_all(at.join("theirs")).unwrap();
        fs::set_permissions(&at, fs::Permissions::from_mode(0o755)).unwrap();
        close_to_its_owner(&look(&place).unwrap()).unwrap();
        assert_eq!(fs::metadata(&at).unwrap().permissions().mode() & 0o777, 0o755);
    }

    #[test]
    fn only_a_mode_that_closes_a_directory_is_told_as_the_reason() {
        let folder = tempfile::tempdir().unwrap();
        let directory: OwnedFd = fs::File::open(folder.path()).unwrap().into();
        for (mode, why) in [(0o500, Errno::ACCESS), (0o600, Errno::ACCESS), (0o700, KEEPS_NO_ATTRIBUTES)] {
            fs::set_permissions(folder.path(), fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(why_closed(&directory), Ok(why), "{mode:o}");
        }
    }

    #[test]
    fn a_check_that_a_filter_forbids_closes_nothing() {
        let closed = [Errno::ACCESS, Errno::ROFS, Errno::PERM, Errno::NOSYS].map(closes);
        assert_eq!(closed, [Ok(true), Ok(true), Ok(false), Err(Errno::NOSYS)]);
    }

    // L01: killed, or out of room, between the two calls that make a file with a name.
    #[test]
    fn a_file_that_was_half_made_is_replaced_and_taken_away() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path().join(".git/commondir");
        fs::create_dir(folder.path().join(".git")).unwrap();
        let parent: Arc<OwnedFd> = Arc::new(fs::File::open(folder.path().join(".git")).unwrap().into());
        let place = HeldPath { parent: &parent, name: OsStr::new("commondir"), kind: Kind::Dot, owner: None };
        let half_make = || make_named(&place, b"").map(drop).unwrap();
        let hold = || hold(&place, &mut PlaceholderCache::default(), &mut Patience::new());
        let release = || release(&at, None, &mut PlaceholderCache::default()).unwrap();
        half_make();
        let root = fs::File::open(folder.path()).unwrap();
        assert_eq!(is_free(root.as_fd(), Path::new(".git/commondir")), Ok(true));
        let held = hold().unwrap().unwrap();
        assert_eq!(fs::read(&at).unwrap(), DOT);
        drop(held);
        release();
        half_make();
        release();
        assert!(!at.exists());
        // Whatever way the file system can make it.
        for make in [make_file, make_named] {
            drop(make(&place, DOT).unwrap());
            assert_eq!((hold().unwrap().is_some(), fs::read(&at).unwrap()), (true, DOT.to_vec()));
            assert_eq!(make(&place, DOT).map(drop), Err(Errno::EXIST));
            release();
        }
        // Somebody's lock, which is never released.
        half_make();
        let theirs = fs::File::open(&at).unwrap();
        rustix::fs::flock(&theirs, FlockOperation::LockShared).unwrap();
        assert_eq!((hold().unwrap().is_some(), fs::read(&at).unwrap()), (true, DOT.to_vec()));
        release();
        // Somebody's own.
        fs::write(&at, "").unwrap();
        assert_eq!(hold().map(drop), Err(Errno::EXIST));
        release();
        assert!(at.exists());
    }

    #[test]
    fn what_somebody_gave_to_its_owner_already_is_kept() {
        use std::os::unix::fs::{MetadataExt, chown};

        if !rustix::process::geteuid().is_root() {
            return lockgate_needs::missing("only root gives a file to another owner");
        }
        let folder = tempfile::tempdir().unwrap();
        let parent: Arc<OwnedFd> = Arc::new(fs::File::open(folder.path()).unwrap().into());
        let (name, at) = (OsStr::new("held"), folder.path().join("held"));
        let owner = Some((Uid::from_raw(1000), Gid::from_raw(1000)));
        let place = HeldPath { parent: &parent, name, kind: Kind::Directory, owner };
        let kept_of = |uid| {
            fs::DirBuilder::new().mode(0o500).create(&at).unwrap();
            chown(&at, Some(uid), None).unwrap();
            kept(&place, look(&place).unwrap()).map(drop)
        };
        assert_eq!(kept_of(1000), Ok(()));
        let there = fs::metadata(&at).unwrap();
        assert_eq!((there.uid(), there.gid()), (1000, 1000));
        fs::remove_dir(&at).unwrap();
        // A file system that shows another's owner.
        assert_eq!((kept_of(1001), at.exists()), (Err(KEEPS_NO_ATTRIBUTES), false));
    }
}
