//! Changes taken over into the workspace: checked as a whole first, then done file by file, each at once or not at all.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::walk::{Change, What, file_name, open, open_parent, stat};
use super::{Changes, LeftOut};
use crate::source;

/// What an apply came to.
#[derive(Debug, Default)]
pub struct Applied {
    /// What was taken over.
    pub done: Vec<PathBuf>,
    /// What was not, and why.
    pub left_out: Vec<LeftOut>,
}

/// A name beside a file, until it takes the file's place. What a killed apply left of it is replaced by the next.
const BESIDE: &str = ".lockgate-apply";
const FILE: u32 = 0o100_000;
const DIRECTORY: u32 = 0o040_000;

impl Changes {
    /// What is in the way of taking these changes over; all of them where no path is named.
    #[must_use]
    pub fn conflicts(&self, only: &[PathBuf]) -> Vec<&Change> {
        self.list.iter().filter(|change| change.conflict.is_some() && chosen(change, only)).collect()
    }

    /// Takes changes over: all of them, or those at or below the named paths. What this machine would execute or trust is taken
    /// only where its own path is named.
    ///
    /// # Errors
    /// When one cannot be written; what was done before it stays done, and is no change any more.
    pub fn apply(&self, only: &[PathBuf]) -> Result<Applied, (PathBuf, io::Error)> {
        let mut applied = Applied { left_out: self.left_out.clone(), ..Applied::default() };
        let mut order: Vec<&Change> = Vec::new();
        for change in self.list.iter().filter(|change| chosen(change, only)) {
            if change.protected && !only.contains(&change.path) {
                let why = "this machine would execute or trust it; name it to take it over";
                applied.left_out.push(LeftOut { path: change.path.clone(), why });
            } else {
                order.push(change);
            }
        }
        // What is gone first, from below; what is new after that, from above.
        let gone = order.iter().rev().filter(|change| matches!(change.what, What::Gone { .. }));
        let other = order.iter().filter(|change| !matches!(change.what, What::Gone { .. }));
        for change in gone.chain(other) {
            self.take(change).map_err(|error| (change.path.clone(), error))?;
            applied.done.push(change.path.clone());
        }
        Ok(applied)
    }

    fn take(&self, change: &Change) -> io::Result<()> {
        let path = &change.path;
        match change.what {
            What::Gone { mode } => self.remove(path, mode),
            What::Made { mode } if kind(mode) == DIRECTORY => self.make_directory(path, mode),
            What::Changed { to, .. } if kind(to) == DIRECTORY => {
                let directory = open(self.below.as_fd(), path, OFlags::RDONLY | OFlags::DIRECTORY)?;
                Ok(rustix::fs::fchmod(&directory, permissions(to))?)
            }
            What::Made { mode } | What::Changed { to: mode, .. } => self.replace(path, mode),
        }
    }

    /// One that changed since it was looked at is left as it is.
    fn refuse_changed(&self, path: &Path) -> io::Result<()> {
        let now = stat(self.below.as_fd(), path)?;
        let changed = now.is_some_and(|now| {
            kind(now.st_mode) != DIRECTORY
                && (now.st_ctime, i64::try_from(now.st_ctime_nsec).unwrap_or_default()) > self.since
        });
        if changed { Err(io::Error::other("it was changed in the workspace meanwhile")) } else { Ok(()) }
    }

    fn remove(&self, path: &Path, mode: u32) -> io::Result<()> {
        let parent = open_parent(self.below.as_fd(), path)?;
        let flags = if kind(mode) == DIRECTORY { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        if kind(mode) != DIRECTORY {
            self.refuse_changed(path)?;
        }
        match rustix::fs::unlinkat(&parent, file_name(path), flags) {
            // A directory in which something was left out, or made meanwhile, stays.
            Ok(()) | Err(Errno::NOENT | Errno::NOTEMPTY) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    fn make_directory(&self, path: &Path, mode: u32) -> io::Result<()> {
        let parent = self.parent(path)?;
        match rustix::fs::mkdirat(&parent, file_name(path), Mode::RWXU) {
            Ok(()) => {}
            Err(Errno::EXIST) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        }
        let made = rustix::fs::openat(
            &parent,
            file_name(path),
            OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        self.give(&made)?;
        Ok(rustix::fs::fchmod(&made, permissions(mode))?)
    }

    /// Writes the new file or link beside, and renames it into its place.
    fn replace(&self, path: &Path, mode: u32) -> io::Result<()> {
        let parent = self.parent(path)?;
        let _ = rustix::fs::unlinkat(&parent, BESIDE, AtFlags::empty());
        let made =
            if kind(mode) == FILE { self.copy(path, mode, &parent) } else { self.copy_link(path, &parent) };
        let placed = made
            .and_then(|()| self.refuse_changed(path))
            .and_then(|()| Ok(rustix::fs::renameat(&parent, BESIDE, &parent, file_name(path))?));
        if placed.is_err() {
            let _ = rustix::fs::unlinkat(&parent, BESIDE, AtFlags::empty());
        }
        placed
    }

    fn copy(&self, path: &Path, mode: u32, parent: &OwnedFd) -> io::Result<()> {
        let mut from = self.read_above(path)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut to = std::fs::File::from(rustix::fs::openat(parent, BESIDE, flags, Mode::RUSR | Mode::WUSR)?);
        io::copy(&mut from, &mut to)?;
        self.give(&to)?;
        rustix::fs::fchmod(&to, permissions(mode))?;
        to.sync_all()
    }

    fn copy_link(&self, path: &Path, parent: &OwnedFd) -> io::Result<()> {
        let above = open_parent(self.above.as_fd(), path)?;
        let target = rustix::fs::readlinkat(&above, file_name(path), Vec::new())?;
        rustix::fs::symlinkat(target, parent, BESIDE)?;
        if let Some((uid, gid)) = self.owner()? {
            rustix::fs::chownat(parent, BESIDE, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
        }
        Ok(())
    }

    /// The directory of a path in the workspace, made if it is new.
    fn parent(&self, path: &Path) -> io::Result<OwnedFd> {
        match open_parent(self.below.as_fd(), path) {
            Err(Errno::NOENT) => {
                let above = path.parent().unwrap_or(Path::new(""));
                let mode = stat(self.above.as_fd(), above)?.map_or(0o755, |stat| stat.st_mode);
                self.make_directory(above, mode)?;
                Ok(open_parent(self.below.as_fd(), path)?)
            }
            opened => Ok(opened?),
        }
    }

    /// What root takes over belongs to whom the workspace belongs.
    fn owner(&self) -> io::Result<Option<(rustix::fs::Uid, rustix::fs::Gid)>> {
        if !rustix::process::geteuid().is_root() {
            return Ok(None);
        }
        let (uid, gid) = source::owner(self.below.as_fd())?;
        Ok(Some((rustix::fs::Uid::from_raw(uid), rustix::fs::Gid::from_raw(gid))))
    }

    fn give(&self, made: impl AsFd) -> io::Result<()> {
        if let Some((uid, gid)) = self.owner()? {
            rustix::fs::fchown(made, Some(uid), Some(gid))?;
        }
        Ok(())
    }
}

fn chosen(change: &Change, only: &[PathBuf]) -> bool {
    only.is_empty() || only.iter().any(|path| change.path.starts_with(path))
}

fn kind(mode: u32) -> u32 {
    mode & 0o170_000
}

fn permissions(mode: u32) -> Mode {
    Mode::from_raw_mode(mode & 0o777)
}
