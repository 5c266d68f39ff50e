//! Placeholders that were used before and are to be used again. To make and remove what holds half a dozen names is the dearest
//! step of a start where the file system lets go of what is removed at once (1.5 ms of 6 on ext4 that discards): moved from
//! a directory of ours and back it is nothing to be seen.
//!
//! ```text
//! stock/d-PID-N ── rename, NOREPLACE ──► WORKSPACE/.idea ── the last run's end ──► stock/d-PID-M
//! ```
//! Whatever does not go (another file system, a name that is there, a full stock) is done without: this file never refuses.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Dir, Gid, Mode, OFlags, RenameFlags, Uid, renameat_with};
use rustix::io::Errno;

use super::placeholder::{self, Kind, LOOK, Place};

/// How many are kept, and how many names are tried that other runs take or use in the same moment.
const MOST: usize = 256;
const TRIES: usize = 8;

/// The stock of one state directory, as one run uses it.
#[derive(Debug, Default)]
pub(crate) struct Stock {
    path: Option<PathBuf>,
    directory: Option<OwnedFd>,
    /// What it has, as far as this run has not tried it.
    names: Vec<OsString>,
    /// How many more it may have.
    room: usize,
    returned: usize,
}

impl Stock {
    pub(crate) fn at(path: PathBuf) -> Self {
        Self { path: Some(path), room: MOST, ..Self::default() }
    }

    /// Puts one of them at a name that is not there; not locked yet, so that whoever puts it there first may have it.
    pub(super) fn place(&mut self, place: &Place<'_>) -> Option<OwnedFd> {
        self.look();
        for _ in 0..TRIES {
            let at =
                self.names.iter().position(|name| name.as_bytes().first() == Some(&letter(place.kind)))?;
            let name = self.names.swap_remove(at);
            let directory = self.directory.as_ref()?;
            let Ok(opened) = rustix::fs::openat(directory, &name, LOOK, Mode::empty()) else { continue };
            if placeholder::kind_of(&opened) != Some(place.kind) {
                continue;
            }
            match renameat_with(directory, &name, place.root, place.path, RenameFlags::NOREPLACE) {
                Ok(()) => {
                    self.room += 1;
                    own(&opened, place.owner).and_then(|()| placeholder::settle(&opened, place.kind)).ok()?;
                    return Some(opened);
                }
                Err(Errno::NOENT) => {}
                Err(Errno::EXIST) => {
                    self.names.push(name);
                    return None;
                }
                Err(_) => {
                    *self = Self::default();
                    return None;
                }
            }
        }
        None
    }

    /// Takes one back whose lock is the caller's alone. Whether it is away from its name.
    ///
    /// # Errors
    /// When somebody put something in it or in its place in the last moment, and that cannot have its name again.
    pub(super) fn take_back(&mut self, opened: &OwnedFd, kind: Kind, path: &Path) -> io::Result<bool> {
        if self.room == 0 || placeholder::unsettle(opened, kind).is_err() {
            return Ok(false);
        }
        let Some(name) = self.put(kind, path) else { return Ok(false) };
        self.room -= 1;
        let (Some(stock), Some(directory)) = (&self.path, &self.directory) else { return Ok(true) };
        let is_ours = placeholder::is_at(directory.as_fd(), Path::new(&name), opened)?;
        if !is_ours || kind == Kind::Directory && !placeholder::is_empty(opened) {
            renameat_with(directory, &name, CWD, path, RenameFlags::NOREPLACE).map_err(|errno| {
                let at = stock.join(&name);
                io::Error::other(format!("{errno}; what somebody put there is now {}", at.display()))
            })?;
        }
        Ok(true)
    }

    /// Moves what is at a path into the stock, and says under which name.
    fn put(&mut self, kind: Kind, path: &Path) -> Option<OsString> {
        self.open()?;
        let directory = self.directory.as_ref()?;
        for _ in 0..TRIES {
            let pid = rustix::process::getpid().as_raw_nonzero();
            let name = OsString::from(format!("{}-{pid}-{}", char::from(letter(kind)), self.returned));
            self.returned += 1;
            match renameat_with(CWD, path, directory, &name, RenameFlags::NOREPLACE) {
                Ok(()) => return Some(name),
                Err(Errno::EXIST) => {}
                Err(_) => return None,
            }
        }
        None
    }

    /// Looks once what there is.
    fn look(&mut self) {
        if self.directory.is_some() {
            return;
        }
        let Some(path) = &self.path else { return };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let Ok(directory) = rustix::fs::open(path, flags, Mode::empty()) else { return };
        if let Ok(entries) = Dir::read_from(&directory) {
            let named = entries.flatten().map(|entry| entry.file_name().to_bytes().to_vec());
            self.names =
                named.filter(|name| !name.starts_with(b".")).map(OsString::from_vec).take(MOST).collect();
        }
        // Of many runs at once each tries others first.
        let turn = usize::try_from(rustix::process::getpid().as_raw_nonzero().get()).unwrap_or_default();
        let count = self.names.len();
        self.names.rotate_left(turn.checked_rem(count).unwrap_or_default());
        self.room = MOST.saturating_sub(count);
        self.directory = Some(directory);
    }

    /// Makes the stock where there is none yet.
    fn open(&mut self) -> Option<()> {
        self.look();
        if self.directory.is_none() {
            rustix::fs::mkdir(self.path.as_ref()?, Mode::RWXU).ok()?;
            self.look();
        }
        self.directory.as_ref().map(drop)
    }
}

fn letter(kind: Kind) -> u8 {
    match kind {
        Kind::Directory => b'd',
        Kind::Dot => b'f',
        Kind::Void => b'v',
    }
}

/// Gives one to whoever is to own it: the workspace's owner where root runs, and oneself again after that.
fn own(opened: &OwnedFd, owner: Option<(Uid, Gid)>) -> rustix::io::Result<()> {
    let (uid, gid) = owner.unwrap_or_else(|| (rustix::process::geteuid(), rustix::process::getegid()));
    let stat = rustix::fs::fstat(opened)?;
    if (stat.st_uid, stat.st_gid) == (uid.as_raw(), gid.as_raw()) {
        return Ok(());
    }
    rustix::fs::fchown(opened.as_fd(), Some(uid), Some(gid))
}
