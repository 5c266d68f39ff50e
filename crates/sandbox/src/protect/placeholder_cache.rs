//! A cache of a workspace's placeholders between runs. On a file system that frees removed files at once, making and removing half a dozen
//! placeholders is the slowest step of a start (1.5 ms of 6 on ext4 with `discard`); moving them to a directory of ours and back takes
//! next to no time.
//!
//! ```text
//! stock/WORKSPACE/PID-N ── rename, NOREPLACE ──► the workspace's .idea ── the last run's end ──► stock/WORKSPACE/PID-M
//! ```
//! Each workspace has a cache of its own, identified by the workspace's inode and not by its path. A process in a run over a folder
//! above may have a placeholder open and can still write into it, so the placeholder must not move to a place where that process cannot
//! write anyway. For the same reason only directories are cached: a file may have a hard link.
//!
//! The cache is best effort: on another file system, for an existing name, or when it is full, it is not used, and it never fails a run.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, RenameFlags, StatxFlags, renameat_with};
use rustix::io::Errno;

use super::kind::Kind;
use super::placeholder::{self, HeldPath, LOOK};
use crate::open_file::{is_at, is_empty};

/// The most placeholders of one workspace, and the most attempts at names that other runs take or use at the same moment.
const MOST: usize = 32;
const TRIES: usize = 8;
/// The most workspaces with a cache.
const MOST_WORKSPACES: usize = 64;

/// The cache of one workspace, as one run uses it.
#[derive(Debug, Default)]
pub(crate) struct PlaceholderCache {
    /// The directory of all caches.
    base: Option<PathBuf>,
    path: Option<PathBuf>,
    directory: Option<OwnedFd>,
    /// The cached placeholders that this run has not tried.
    names: Vec<OsString>,
    /// The number of further placeholders it may take.
    room: usize,
    returned: usize,
}

impl PlaceholderCache {
    pub(crate) fn at(base: PathBuf) -> Self {
        Self { base: Some(base), ..Self::default() }
    }

    /// Opens the cache of a workspace.
    pub(super) fn of(&mut self, workspace: impl AsFd) {
        let Some(base) = &self.base else { return };
        let Some(key) = key(workspace, base.parent().unwrap_or(base)) else { return };
        self.path = Some(base.join(key));
        self.room = MOST;
        self.look();
    }

    /// Moves a cached placeholder to a free name. It is not locked yet, because another run may get it first.
    pub(super) fn place(&mut self, place: &HeldPath<'_>) -> Option<OwnedFd> {
        if place.kind != Kind::Directory {
            return None;
        }
        for _ in 0..TRIES {
            let name = self.names.pop()?;
            let directory = self.directory.as_ref()?;
            let Ok(opened) = rustix::fs::openat(directory, &name, LOOK, Mode::empty()) else { continue };
            if placeholder::kind_of(&opened) != Ok(Some(Kind::Directory)) {
                continue;
            }
            match renameat_with(directory, &name, place.parent, place.name, RenameFlags::NOREPLACE) {
                Ok(()) => {
                    self.room += 1;
                    placeholder::own(&opened, place.owner)
                        .and_then(|()| placeholder::settle(&opened))
                        .ok()?;
                    return is_empty(&opened).ok()?.then_some(opened);
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

    /// Moves a placeholder into the cache; the caller must hold its exclusive lock. Returns whether it was moved away from its name.
    ///
    /// # Errors
    /// When somebody put something in it or in its place at the last moment, and that cannot be moved back.
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
        if !is_at(directory, &kept, opened)? || is_empty(opened) != Ok(true) {
            match renameat_with(directory, &kept, &parent, name, RenameFlags::NOREPLACE) {
                // A run that begins here took it meanwhile, and checked it as well.
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

    /// Moves a name into the cache. Returns its name there.
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

    /// Makes the cache if there is none yet, and makes room for it.
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

/// Returns the identity of a workspace, which a later one with its inode number does not share. `None` if it is on another file system than
/// the cache, because nothing could be moved.
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

/// Removes the least recently used caches if there are too many. They contain only empty directories.
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
