//! A test fixture: a workspace and its upper layer, in a temporary directory.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::XattrFlags;

use super::Changes;

pub(super) struct Kept(tempfile::TempDir);

impl Kept {
    pub(super) fn new() -> Self {
        let kept = Self(tempfile::tempdir().unwrap());
        std::fs::create_dir(kept.workspace("")).unwrap();
        Changes::prepare(&kept.directory(), &kept.workspace("")).unwrap();
        kept
    }

    /// The directory around both.
    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }

    /// The directory of the run's changes.
    pub(super) fn directory(&self) -> PathBuf {
        self.path().join("kept")
    }

    pub(super) fn workspace(&self, path: &str) -> PathBuf {
        self.path().join("workspace").join(path)
    }

    pub(super) fn written(&self, path: &str) -> PathBuf {
        self.directory().join("written").join(path)
    }

    /// Begins the run now, after the workspace's files were made.
    pub(super) fn begin_now(&self) {
        std::thread::sleep(Duration::from_millis(20));
        std::fs::remove_file(self.directory().join("since")).unwrap();
        Changes::prepare(&self.directory(), &self.workspace("")).unwrap();
        std::thread::sleep(Duration::from_millis(20));
    }

    /// Reads the changes. What was made in the workspace since the run began is a conflict.
    pub(super) fn read(&self) -> Changes {
        Changes::read(&self.directory(), &self.workspace("")).unwrap()
    }

    /// Returns the paths of the conflicts of what is kept now.
    pub(super) fn conflicts(&self) -> Vec<String> {
        let changes = self.read();
        let conflicts = changes.conflicts(&[]);
        conflicts.iter().map(|change| change.path.to_str().unwrap().to_owned()).collect()
    }

    /// Reads the changes as if nothing had changed in the workspace since the run began, for a test that makes its files there after that.
    pub(super) fn changes(&self) -> Changes {
        let mut changes = self.read();
        changes.since = changes.since.never();
        changes
    }
}

pub(super) fn write(path: &Path, content: &str, mode: u32) {
    std::fs::write(path, content).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// Marks a file as one that overlayfs has copied up.
pub(super) fn copied_up(path: &Path) {
    rustix::fs::setxattr(path, c"user.overlay.origin", b"x", XattrFlags::empty()).unwrap();
}

/// Marks a folder as one that the run made anew.
pub(super) fn made_anew(path: &Path) {
    rustix::fs::setxattr(path, c"user.overlay.opaque", b"y", XattrFlags::empty()).unwrap();
}

/// Runs a test in a directory of its own as an unprivileged user, because root can read everything.
pub(super) fn unprivileged(test: impl FnOnce(&Path) + Send) {
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
