//! The changes that a run made in an overlaid workspace: found, shown as a patch, applied or discarded.
//!
//! ```text
//! workspace (as it is now) ─┐
//!                           ├─► walk ─► changes ─► patch | apply | discard
//! what was written (upper) ─┘
//! ```
//! Everything in the upper layer is hostile: names, links, content. Both sides are opened once, and no link leads out of them. Paths that
//! this machine would execute or trust are left out unless the user names them. Nothing here runs a program, least of all git.

mod access;
mod apply;
mod begin;
mod binary;
mod change;
mod content;
#[cfg(test)]
mod fixture;
mod mode;
mod moved;
mod order;
mod parked;
mod patch;
mod possible;
mod refused_names;
mod remove;
mod side;
mod since;
mod staged;
#[cfg(test)]
mod tests;
mod trust;
mod walk;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{Mode, OFlags};

pub use self::apply::Applied;
use self::begin::Begin;
pub use self::change::{Change, LeftOut, What};
pub(crate) use self::parked::{WORK, take_over as take_over_parked};
use self::since::Since;
use crate::file_id::FileId;
use crate::{mounted, source};

/// The upper layer, in the directory of a run's changes.
pub(crate) const WRITTEN: &str = "written";

/// The changes of one run.
#[derive(Debug)]
pub struct Changes {
    above: OwnedFd,
    below: OwnedFd,
    /// When the run began. The workspace's changes after that are conflicts.
    since: Since,
    /// The changes, in the order of their paths.
    pub list: Vec<Change>,
    /// What was written and cannot be applied.
    pub left_out: Vec<LeftOut>,
}

impl Changes {
    /// Makes the directory for a run's changes in a workspace, before the run begins.
    ///
    /// # Errors
    /// When it cannot be made, or the workspace cannot be opened.
    pub fn prepare(directory: &Path, workspace: &Path) -> io::Result<()> {
        let workspace = source::open(workspace).map_err(|error| io::Error::other(error.to_string()))?;
        Self::make_layers(directory)?;
        Begin::write(directory, FileId::lasting(workspace.as_fd())?)
    }

    /// Makes the directories of an upper layer.
    pub(crate) fn make_layers(directory: &Path) -> io::Result<()> {
        let make = |path: &Path| std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
        make(&directory.join(WRITTEN))?;
        make(&directory.join(WORK))
    }

    /// Finds the changes.
    ///
    /// # Errors
    /// When the directory or the workspace does not exist, or cannot be read, or something is mounted below the workspace.
    pub fn read(directory: &Path, workspace: &Path) -> io::Result<Self> {
        let since = Since::read(directory)?;
        let open = |path: &Path| {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            Ok::<_, io::Error>(rustix::fs::open(path, flags, Mode::empty())?)
        };
        let written = directory.join(WRITTEN);
        open_up(&written);
        let above = open(&written)?;
        let found = source::open(workspace).map_err(|e| io::Error::other(e.to_string()))?;
        let below = rustix::fs::openat(
            &found,
            c".",
            OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        // A run begins with none, so it has not seen what is in this one.
        if let Some(place) = mounted::first_below(workspace)? {
            let why = "since the run began something was mounted below the workspace; unmount it";
            return Err(io::Error::other(format!("{}: {why}", place.display())));
        }
        let (mut list, left_out) = walk::walk(above.as_fd(), below.as_fd(), &since)?;
        if let Some(doubt) = since.doubt(below.as_fd())? {
            list.iter_mut().for_each(|change| change.conflict = Some(doubt));
        }
        trust::mark(&mut list, below.as_fd());
        Ok(Self { above, below, since, list, left_out })
    }

    /// Discards the changes, including those that cannot be read.
    ///
    /// # Errors
    /// When something cannot be removed.
    pub fn discard(directory: &Path) -> io::Result<()> {
        let removed = match remove::remove(directory) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                parked::put_aside(directory).and_then(|()| remove::remove(directory))
            }
            removed => removed,
        };
        match removed {
            // The upper layer may have directories with the owners of those below.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                crate::linux::subordinate::remove(directory, remove::remove).map_err(|_| error)
            }
            removed => removed,
        }
    }

    /// Whether nothing was written; then the directory is removed at the run's end.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn is_empty(directory: &Path) -> io::Result<bool> {
        let written = directory.join(WRITTEN);
        open_up(&written);
        Ok(std::fs::read_dir(written)?.next().is_none())
    }

    fn read_above(&self, path: &Path) -> io::Result<File> {
        side::open_file(self.above.as_fd(), path)
    }
}

/// Restores the owner's access to the upper layer, whatever mode the run gave it. If this process is not the owner, reading it fails
/// afterwards.
fn open_up(written: &Path) {
    let Ok(metadata) = std::fs::symlink_metadata(written) else { return };
    if metadata.is_dir() && metadata.mode() & 0o700 != 0o700 {
        let _ = std::fs::set_permissions(written, std::fs::Permissions::from_mode(0o700));
    }
}
