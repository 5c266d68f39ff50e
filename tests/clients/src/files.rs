//! What is in a folder, for tests that look into everything that was left. It reads no file itself.

use std::fs;
use std::path::{Path, PathBuf};

/// All files below a folder but programs of the tests.
#[must_use]
pub fn files_below(folder: &Path) -> Vec<PathBuf> {
    let (mut waiting, mut found) = (vec![folder.to_owned()], Vec::new());
    while let Some(folder) = waiting.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => waiting.push(entry.path()),
                Ok(kind) if kind.is_file() => found.push(entry.path()),
                _ => {}
            }
        }
    }
    found.retain(|path| path.file_name().is_none_or(|name| name != "probe"));
    found
}
