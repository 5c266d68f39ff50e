//! What tests of changes have: a workspace and what was written over it, in a directory of their own.

use std::path::{Path, PathBuf};

use super::Changes;

pub(super) struct Kept(tempfile::TempDir);

impl Kept {
    pub(super) fn new() -> Self {
        let kept = Self(tempfile::tempdir().unwrap());
        std::fs::create_dir(kept.workspace("")).unwrap();
        Changes::prepare(&kept.path().join("kept")).unwrap();
        kept
    }

    /// Around both of them.
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
        // The files of a test are made after what stands for the begin of the run.
        changes.since = changes.since.never();
        changes
    }
}
