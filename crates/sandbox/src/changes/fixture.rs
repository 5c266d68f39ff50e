//! A test fixture: a workspace and its upper layer, in a temporary directory.

use std::path::{Path, PathBuf};

use super::Changes;

pub(super) struct Kept(tempfile::TempDir);

impl Kept {
    pub(super) fn new() -> Self {
        let kept = Self(tempfile::tempdir().unwrap());
        std::fs::create_dir(kept.workspace("")).unwrap();
        Changes::prepare(&kept.path().join("kept"), &kept.workspace("")).unwrap();
        kept
    }

    /// The directory around both.
    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(super) fn workspace(&self, path: &str) -> PathBuf {
        self.path().join("workspace").join(path)
    }

    pub(super) fn written(&self, path: &str) -> PathBuf {
        self.path().join("kept/written").join(path)
    }

    pub(super) fn changes(&self) -> Changes {
        let mut changes = Changes::read(&self.path().join("kept"), &self.workspace("")).unwrap();
        // A test makes its files after the marker of the run's begin.
        changes.since = changes.since.never();
        changes
    }
}
