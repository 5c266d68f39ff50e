//! Folders for what a check writes. They are in memory where the machine has such a place, and are gone after the check.

use std::path::Path;

use tempfile::TempDir;

const MEMORY: &str = "/dev/shm";

/// Makes a folder.
#[must_use]
pub(crate) fn folder() -> TempDir {
    let made = if Path::new(MEMORY).is_dir() { tempfile::tempdir_in(MEMORY) } else { tempfile::tempdir() };
    made.expect("there is a place for what is temporary")
}
