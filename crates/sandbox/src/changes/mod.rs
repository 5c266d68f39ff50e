//! What a run wrote in a workspace that was kept apart: found out, shown as a patch, taken over or dropped.
//!
//! ```text
//! workspace (as it is now) ─┐
//!                           ├─► walk ─► changes ─► patch | apply | discard
//! what was written (upper) ─┘
//! ```
//! Everything that was written is hostile: names, links, content. Both sides are opened once and nothing is followed out of
//! them; what could be executed or trusted here by being there is left out until a person names it. Nothing here runs
//! anything, and least of all git.

mod apply;
mod binary;
mod mode;
mod parked;
mod patch;
mod trust;
mod walk;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{Mode, OFlags};

pub use self::apply::Applied;
pub(crate) use self::parked::{WORK, take_over as take_over_parked};
pub use self::walk::{Change, LeftOut, What};
use crate::source;

/// What is written, in the directory of a run's changes.
pub(crate) const WRITTEN: &str = "written";

/// The file whose time says when the run began.
const SINCE: &str = "since";

/// The changes of one run.
#[derive(Debug)]
pub struct Changes {
    above: OwnedFd,
    below: OwnedFd,
    /// When the run began: what changed in the workspace after it, changed underneath.
    since: (i64, i64),
    /// What changed, in the order of the paths.
    pub list: Vec<Change>,
    /// What was written and is not taken over.
    pub left_out: Vec<LeftOut>,
}

impl Changes {
    /// Makes the directory for a run's changes, before it begins.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn prepare(directory: &Path) -> io::Result<()> {
        let make = |path: &Path| std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
        make(&directory.join(WRITTEN))?;
        make(&directory.join(WORK))?;
        let since = directory.join(SINCE);
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(since)?.sync_all()
    }

    /// Finds out what changed.
    ///
    /// # Errors
    /// When there are none, the workspace is not there, or either cannot be read.
    pub fn read(directory: &Path, workspace: &Path) -> io::Result<Self> {
        let since = std::fs::metadata(directory.join(SINCE))?;
        let open = |path: &Path| {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            Ok::<_, io::Error>(rustix::fs::open(path, flags, Mode::empty())?)
        };
        let above = open(&directory.join(WRITTEN))?;
        let found = source::open(workspace).map_err(|e| io::Error::other(e.to_string()))?;
        let below = rustix::fs::openat(
            &found,
            c".",
            OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        let since = (since.mtime(), since.mtime_nsec());
        let (mut list, left_out) = walk::walk(above.as_fd(), below.as_fd(), since)?;
        trust::mark(&mut list, below.as_fd());
        Ok(Self { above, below, since, list, left_out })
    }

    /// Drops what was written. What it could not be read for is no reason to keep it.
    ///
    /// # Errors
    /// When something of it cannot be removed.
    pub fn discard(directory: &Path) -> io::Result<()> {
        open_up(directory, 0);
        let removed = match std::fs::remove_dir_all(directory) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                parked::put_aside(directory).and_then(|()| std::fs::remove_dir_all(directory))
            }
            removed => removed,
        };
        match removed {
            // What was written over files of others may be in their directories.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                crate::linux::subordinate::remove(directory).map_err(|_| error)
            }
            removed => removed,
        }
    }

    /// Whether nothing was written. What a run did not use is taken away with its end.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn is_empty(directory: &Path) -> io::Result<bool> {
        Ok(std::fs::read_dir(directory.join(WRITTEN))?.next().is_none())
    }

    fn read_above(&self, path: &Path) -> io::Result<File> {
        walk::open_file(self.above.as_fd(), path)
    }

    fn read_below(&self, path: &Path) -> io::Result<File> {
        walk::open_file(self.below.as_fd(), path)
    }
}

/// Gives directories that were shut back to their owner, so that they can be emptied.
fn open_up(directory: &Path, depth: usize) {
    use std::os::unix::fs::PermissionsExt;
    let Ok(metadata) = std::fs::symlink_metadata(directory) else { return };
    if !metadata.is_dir() || depth > walk::DEEPEST {
        return;
    }
    if metadata.mode() & 0o700 != 0o700 {
        let _ = std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o700));
    }
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            open_up(&entry.path(), depth + 1);
        }
    }
}
