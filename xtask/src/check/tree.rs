//! Reads the repository for the checks: its root, and every Rust file, read and scanned once.
//!
//! It never follows a symlink and never enters a folder of build outputs.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::code::Code;

/// The folders that hold Rust files.
const FOLDERS: [&str; 6] = ["crates", "tests", "xtask", "fuzz", "benches", "examples"];

/// The root and all Rust files beneath it.
pub(crate) struct Tree {
    pub(crate) root: PathBuf,
    pub(crate) files: Vec<RustFile>,
}

/// One Rust file.
pub(crate) struct RustFile {
    /// Relative to the root, with `/` between the parts.
    pub(crate) path: String,
    pub(crate) text: String,
    pub(crate) code: Code,
}

impl Tree {
    /// Reads all Rust files of the repository at `root`.
    pub(crate) fn read(root: &Path) -> Result<Self> {
        let mut files = Vec::new();
        for path in files_with_extension(root, &FOLDERS, "rs")? {
            let text =
                fs::read_to_string(root.join(&path)).with_context(|| format!("failed to read {path}"))?;
            let code = Code::scan(&text);
            files.push(RustFile { path, text, code });
        }
        Ok(Self { root: root.to_owned(), files })
    }

    /// Returns the text of one file, or nothing if it cannot be read.
    pub(crate) fn text(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.root.join(path)).ok()
    }

    /// Returns the names of the folders directly beneath `folder` that hold a Cargo.toml, sorted.
    pub(crate) fn packages(&self, folder: &str) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.root.join(folder)) else { return Vec::new() };
        let mut names: Vec<String> = entries
            .flatten()
            .filter(|entry| entry.path().join("Cargo.toml").is_file())
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }
}

/// Returns every file ending in `.extension` beneath `folders` of `root`, as sorted paths relative to `root`.
pub(crate) fn files_with_extension(root: &Path, folders: &[&str], extension: &str) -> Result<Vec<String>> {
    let mut found = Vec::new();
    let mut pending: Vec<PathBuf> =
        folders.iter().map(PathBuf::from).filter(|at| root.join(at).is_dir()).collect();
    while let Some(folder) = pending.pop() {
        let shown = folder.display();
        for entry in fs::read_dir(root.join(&folder)).with_context(|| format!("failed to list {shown}"))? {
            let entry = entry.with_context(|| format!("failed to list {shown}"))?;
            let (name, kind) = (entry.file_name(), entry.file_type()?);
            let path = folder.join(&name);
            if kind.is_dir() && name != "target" && !name.to_string_lossy().starts_with('.') {
                pending.push(path);
            } else if kind.is_file() && path.extension().is_some_and(|it| it == extension) {
                found.push(path.to_string_lossy().into_owned());
            }
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
pub(crate) mod made {
    //! Small trees for the tests of the checks.

    use super::*;

    /// Makes a tree of the given files. It is read at once, so its folder may go when the test ends.
    pub(crate) fn tree(files: &[(&str, &str)]) -> (tempfile::TempDir, Tree) {
        let folder = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let tree = Tree::read(folder.path()).unwrap();
        (folder, tree)
    }

    #[test]
    fn build_outputs_and_links_are_left_out() {
        let (folder, _) = tree(&[("crates/a/src/lib.rs", ""), ("fuzz/target/x.rs", ""), ("docs/x.rs", "")]);
        std::os::unix::fs::symlink("/", folder.path().join("crates/root")).unwrap();
        let again = Tree::read(folder.path()).unwrap();
        assert_eq!(again.files.iter().map(|file| &*file.path).collect::<Vec<_>>(), ["crates/a/src/lib.rs"]);
    }
}
