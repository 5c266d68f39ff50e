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
mod parked;
mod patch;
mod possible;
mod refused_names;
mod remove;
mod side;
mod since;
mod staged;
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

/// Runs a test in a directory of its own as an unprivileged user, because root can read everything.
#[cfg(test)]
fn unprivileged(test: impl FnOnce(&Path) + Send) {
    /// A user who owns nothing.
    const NOBODY: u32 = 65534;
    let state = tempfile::tempdir().unwrap();
    let is_root = rustix::process::geteuid().is_root();
    if is_root {
        std::os::unix::fs::chown(state.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    }
    std::thread::scope(|scope| {
        let ended = scope.spawn(|| {
            if is_root {
                let nobody = rustix::process::Uid::from_raw(NOBODY);
                rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
            }
            test(state.path());
        });
        ended.join().unwrap();
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_mounted_below_the_workspace_is_no_part_of_it() {
        let kept = super::fixture::Kept::new();
        let root = Path::new("/");
        let refused = Changes::read(&kept.path().join("kept"), root).unwrap_err().to_string();
        assert!(refused.contains("mounted below the workspace"), "{refused}");
        let top = rustix::fs::open(root, OFlags::PATH, Mode::empty()).unwrap();
        let entered = side::open(top.as_fd(), Path::new("proc/version"), OFlags::RDONLY);
        assert_eq!(entered.unwrap_err(), rustix::io::Errno::XDEV);
    }

    #[test]
    fn what_comes_and_goes_while_a_run_goes_on_ends_no_look() {
        use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

        let kept = super::fixture::Kept::new();
        std::fs::write(kept.written("stays"), "x").unwrap();
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let flips = kept.written("flips");
                while !is_done.load(Relaxed) {
                    std::fs::write(&flips, "x").unwrap();
                    std::fs::remove_file(&flips).unwrap();
                    std::fs::create_dir_all(flips.join("deep")).unwrap();
                    std::fs::write(flips.join("deep/file"), "x").unwrap();
                    std::fs::remove_dir_all(&flips).unwrap();
                    std::os::unix::fs::symlink("stays", &flips).unwrap();
                    std::fs::remove_file(&flips).unwrap();
                }
            });
            let looked: io::Result<()> = (0..500).try_for_each(|_| {
                let changes = Changes::read(&kept.path().join("kept"), &kept.workspace(""))?;
                match changes.list.iter().any(|change| change.path == Path::new("stays")) {
                    true => changes.write_patch(&[], &mut io::sink()),
                    false => Err(io::Error::other("what stays is not seen")),
                }
            });
            is_done.store(true, Relaxed);
            looked.unwrap();
        });
    }

    #[test]
    fn what_lies_deeper_than_may_be_is_left_out_and_the_rest_is_not() {
        let kept = super::fixture::Kept::new();
        let chain = |directories: usize| vec!["d"; directories].join("/");
        let deepest = kept.written(&chain(256));
        std::fs::create_dir_all(deepest.join("d")).unwrap();
        std::fs::write(deepest.join("file"), "x").unwrap();
        let changes = kept.changes();
        let left: Vec<_> = changes.left_out.iter().map(|left| left.path.clone()).collect();
        assert_eq!(left, [Path::new(&chain(257))]);
        changes.apply(&[], &|| false).unwrap();
        let there = kept.workspace(&chain(256));
        assert!(there.join("file").is_file() && !there.join("d").exists());
    }

    #[test]
    fn what_cannot_be_read_is_left_out_and_the_rest_is_not() {
        unprivileged(|state| {
            let (kept, workspace) = (state.join("kept"), state.join("workspace"));
            let written = kept.join(WRITTEN);
            std::fs::create_dir(&workspace).unwrap();
            Changes::prepare(&kept, &workspace).unwrap();
            std::fs::write(workspace.join("other"), "x").unwrap();
            for name in ["new", "other", "plain"] {
                std::fs::write(written.join(name), "written").unwrap();
            }
            for name in ["list", "shut"] {
                std::fs::create_dir(written.join(name)).unwrap();
                std::fs::write(written.join(name).join("file"), "written").unwrap();
            }
            for (name, mode) in [("new", 0), ("other", 0), ("list", 0o400), ("shut", 0), ("", 0)] {
                let mode = std::fs::Permissions::from_mode(mode);
                std::fs::set_permissions(written.join(name), mode).unwrap();
            }
            assert!(!Changes::is_empty(&kept).unwrap());
            std::fs::set_permissions(&written, std::fs::Permissions::from_mode(0o0)).unwrap();
            let mut changes = Changes::read(&kept, &workspace).unwrap();
            let left: Vec<_> = changes.left_out.iter().map(|left| left.path.to_str().unwrap()).collect();
            assert_eq!(left, ["list", "new", "other", "shut"]);
            let mut patch = Vec::new();
            changes.write_patch(&[], &mut patch).unwrap();
            assert!(String::from_utf8(patch).unwrap().contains("b/plain"));
            changes.since = changes.since.never();
            changes.apply(&[], &|| false).unwrap();
            assert_eq!(std::fs::read_to_string(workspace.join("plain")).unwrap(), "written");
            assert_eq!(std::fs::read_to_string(workspace.join("other")).unwrap(), "x");
            Changes::discard(&kept).unwrap();
        });
    }

    #[test]
    fn a_file_that_cannot_be_read_keeps_its_place() {
        unprivileged(|state| {
            let (kept, workspace) = (state.join("kept"), state.join("workspace"));
            std::fs::create_dir(&workspace).unwrap();
            Changes::prepare(&kept, &workspace).unwrap();
            let written = kept.join(WRITTEN);
            let mode = |mode| std::fs::Permissions::from_mode(mode);
            for (name, of_it) in [("link", 0), ("folder", 0), ("anew", 0), ("shut", 0o644)] {
                std::fs::write(workspace.join(name), "secret").unwrap();
                std::fs::set_permissions(workspace.join(name), mode(of_it)).unwrap();
            }
            std::fs::create_dir(written.join("shut")).unwrap();
            std::fs::set_permissions(written.join("shut"), mode(0)).unwrap();
            std::os::unix::fs::symlink("plain", written.join("link")).unwrap();
            for name in ["folder", "anew"] {
                std::fs::create_dir(written.join(name)).unwrap();
                std::fs::write(written.join(name).join("file"), "written").unwrap();
            }
            let flags = rustix::fs::XattrFlags::empty();
            rustix::fs::setxattr(written.join("anew"), c"user.overlay.opaque", b"y", flags).unwrap();
            std::fs::write(written.join("plain"), "written").unwrap();
            let mut changes = Changes::read(&kept, &workspace).unwrap();
            changes.since = changes.since.never();
            let applied = changes.apply(&[], &|| false).unwrap();
            assert_eq!(applied.done, [Path::new("plain")], "{applied:?}");
            let left: Vec<_> = applied.left_out.iter().map(|left| left.path.to_str().unwrap()).collect();
            assert_eq!(left, ["anew", "folder", "link", "shut"]);
            for name in left {
                let there = std::fs::symlink_metadata(workspace.join(name)).unwrap();
                assert!(there.is_file() && there.len() == 6, "{name}");
            }
        });
    }
}
