//! Placeholders that a workspace had before and is to have again. To make and remove what holds half a dozen names is the dearest
//! step of a start where the file system lets go of what is removed at once (1.5 ms of 6 on ext4 that discards): moved to
//! a directory of ours and back it is nothing to be seen.
//!
//! ```text
//! stock/WORKSPACE/PID-N ── rename, NOREPLACE ──► the workspace's .idea ── the last run's end ──► stock/WORKSPACE/PID-M
//! ```
//! Each workspace has its own, told from others by what it is and not by its path: somebody who had one open, in a run over a
//! folder above, keeps a way to write into it, and must find it nowhere but where they could write anyway. For the same reason
//! only directories are kept: a file may have another name by which it lives on.
//!
//! Whatever does not go (another file system, a name that is there, a full cache) is done without: this file never refuses.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, RenameFlags, StatxFlags, renameat_with};
use rustix::io::Errno;

use super::placeholder::{self, HeldPath, Kind, LOOK};
use crate::open_file::{is_at, is_empty};

/// How many one workspace has, and how many names are tried that other runs take or use in the same moment.
const MOST: usize = 32;
const TRIES: usize = 8;
/// For how many workspaces they are kept.
const MOST_WORKSPACES: usize = 64;

/// The cache of one workspace, as one run uses it.
#[derive(Debug, Default)]
pub(crate) struct PlaceholderCache {
    /// Where the caches of all are.
    base: Option<PathBuf>,
    path: Option<PathBuf>,
    directory: Option<OwnedFd>,
    /// What it has, as far as this run has not tried it.
    names: Vec<OsString>,
    /// How many more it may have.
    room: usize,
    returned: usize,
}

impl PlaceholderCache {
    pub(crate) fn at(base: PathBuf) -> Self {
        Self { base: Some(base), ..Self::default() }
    }

    /// Looks what there is for a workspace.
    pub(super) fn of(&mut self, workspace: impl AsFd) {
        let Some(base) = &self.base else { return };
        let Some(key) = key(workspace, base.parent().unwrap_or(base)) else { return };
        self.path = Some(base.join(key));
        self.room = MOST;
        self.look();
    }

    /// Puts one of them at a name that is not there; not locked yet, so that whoever puts it there first may have it.
    pub(super) fn place(&mut self, place: &HeldPath<'_>) -> Option<OwnedFd> {
        if place.kind != Kind::Directory {
            return None;
        }
        for _ in 0..TRIES {
            let name = self.names.pop()?;
            let directory = self.directory.as_ref()?;
            let Ok(opened) = rustix::fs::openat(directory, &name, LOOK, Mode::empty()) else { continue };
            if placeholder::kind_of(&opened) != Some(Kind::Directory) {
                continue;
            }
            match renameat_with(directory, &name, place.parent, place.name, RenameFlags::NOREPLACE) {
                Ok(()) => {
                    self.room += 1;
                    placeholder::own(&opened, place.owner)
                        .and_then(|()| placeholder::settle(&opened))
                        .ok()?;
                    return is_empty(&opened).then_some(opened);
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
    pub(super) fn take_back(
        &mut self,
        opened: &OwnedFd,
        parent: impl AsFd,
        name: &OsStr,
    ) -> io::Result<bool> {
        if self.room == 0 || self.path.is_none() || placeholder::unsettle(opened).is_err() {
            return Ok(false);
        }
        let Some(kept) = self.put(&parent, name) else { return Ok(false) };
        self.room -= 1;
        let (Some(cache), Some(directory)) = (&self.path, &self.directory) else { return Ok(true) };
        if !is_at(directory, &kept, opened)? || !is_empty(opened) {
            match renameat_with(directory, &kept, &parent, name, RenameFlags::NOREPLACE) {
                // A run that begins here took it meanwhile, and looked at it as well.
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => {
                    let at = cache.join(&kept);
                    let why = format!("{errno}; what somebody put there is now {}", at.display());
                    return Err(io::Error::other(why));
                }
            }
        }
        Ok(true)
    }

    /// Moves what has a name into the cache, and says under which other.
    fn put(&mut self, parent: impl AsFd, name: &OsStr) -> Option<OsString> {
        self.open()?;
        let directory = self.directory.as_ref()?;
        for _ in 0..TRIES {
            let pid = rustix::process::getpid().as_raw_nonzero();
            let kept = OsString::from(format!("{pid}-{}", self.returned));
            self.returned += 1;
            match renameat_with(&parent, name, directory, &kept, RenameFlags::NOREPLACE) {
                Ok(()) => return Some(kept),
                Err(Errno::EXIST) => {}
                Err(_) => return None,
            }
        }
        None
    }

    fn look(&mut self) {
        let Some(path) = &self.path else { return };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let Ok(directory) = rustix::fs::open(path, flags, Mode::empty()) else { return };
        self.names = names_in(&directory).into_iter().take(MOST).collect();
        self.room = MOST - self.names.len();
        self.directory = Some(directory);
    }

    /// Makes the cache where there is none yet, and room for it.
    fn open(&mut self) -> Option<()> {
        if self.directory.is_none() {
            let (base, path) = (self.base.as_ref()?, self.path.as_ref()?);
            match rustix::fs::mkdir(base, Mode::RWXU) {
                Ok(()) => {}
                Err(Errno::EXIST) => make_room(base),
                Err(_) => return None,
            }
            rustix::fs::mkdir(path, Mode::RWXU).ok()?;
            self.look();
        }
        self.directory.as_ref().map(drop)
    }
}

/// What tells one workspace from every other, also from one that was made later and got its number. Nothing where it is on another
/// file system than the cache: nothing could be moved.
fn key(workspace: impl AsFd, cache: &Path) -> Option<String> {
    let wanted = StatxFlags::INO | StatxFlags::BTIME;
    let stat = rustix::fs::statx(workspace, "", AtFlags::EMPTY_PATH, wanted).ok()?;
    let here = rustix::fs::statx(CWD, cache, AtFlags::empty(), StatxFlags::INO).ok()?;
    let is_told = stat.stx_mask & wanted.bits() == wanted.bits()
        && (stat.stx_dev_major, stat.stx_dev_minor) == (here.stx_dev_major, here.stx_dev_minor);
    let born = format!("{:x}.{:x}", stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec);
    is_told.then(|| format!("{:x}.{:x}-{:x}-{born}", stat.stx_dev_major, stat.stx_dev_minor, stat.stx_ino))
}

fn names_in(directory: &OwnedFd) -> Vec<OsString> {
    let Ok(entries) = Dir::read_from(directory) else { return Vec::new() };
    let named = entries.flatten().map(|entry| entry.file_name().to_bytes().to_vec());
    named.filter(|name| !name.starts_with(b".")).map(OsString::from_vec).collect()
}

/// Lets go of the caches that were used longest ago, where there are too many. They hold nothing but empty directories.
fn make_room(base: &Path) {
    let Ok(entries) = std::fs::read_dir(base) else { return };
    let used = |entry: std::fs::DirEntry| Some((entry.metadata().ok()?.modified().ok()?, entry.path()));
    let mut caches: Vec<_> = entries.flatten().filter_map(used).collect();
    if caches.len() < MOST_WORKSPACES {
        return;
    }
    caches.sort();
    for (_, cache) in caches.iter().take(caches.len() - MOST_WORKSPACES / 2) {
        for placeholder in std::fs::read_dir(cache).into_iter().flatten().flatten() {
            let _ = std::fs::remove_dir(placeholder.path());
        }
        let _ = std::fs::remove_dir(cache);
    }
}
