//! Lists the files of a folder, for tests that search everything a run has left. It reads no file itself.

use std::fs;
use std::path::{Path, PathBuf};

/// Returns all files below a folder, without the tests' programs.
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
