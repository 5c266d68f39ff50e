//! Tells whether a folder contains a path, under any name: a folder that is mounted at a second place has the same device and inode number.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A path, and the identity of each folder above it.
#[derive(Clone, Debug)]
pub struct PathIdentity {
    path: PathBuf,
    on_the_way: Vec<(u64, u64)>,
}

impl PathIdentity {
    /// Returns the identity of a path, which need not exist.
    #[must_use]
    pub fn of(path: &Path) -> Self {
        let path = resolved(path);
        let on_the_way = path.ancestors().filter_map(identity).collect();
        Self { path, on_the_way }
    }

    /// Returns the path with its links resolved, as far as it exists.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether a folder is this path, or contains it.
    #[must_use]
    pub fn is_in(&self, folder: &Path) -> bool {
        self.path.starts_with(folder) || identity(folder).is_some_and(|it| self.on_the_way.contains(&it))
    }
}

/// Resolves the links in as much of a path as exists.
pub(crate) fn resolved(path: &Path) -> PathBuf {
    // `canonicalize` asks once for each component, so it is not tried with what does not exist.
    path.ancestors()
        .filter(|there| there.exists())
        .find_map(|there| Some((there.canonicalize().ok()?, path.strip_prefix(there).ok()?)))
        .map_or_else(|| path.to_path_buf(), |(there, rest)| there.join(rest))
}

/// Returns the device and inode number of what a path leads to.
pub(crate) fn identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::metadata(path).ok().map(|about| (about.dev(), about.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_holds_what_is_below_it_by_whatever_name() {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().join("above/home");
        std::fs::create_dir_all(&home).unwrap();
        std::fs::create_dir(folder.path().join("beside")).unwrap();
        // As a bind mount does, a link gives a folder a second name.
        std::os::unix::fs::symlink("above", folder.path().join("other")).unwrap();
        let place = PathIdentity::of(&home);
        for holds in ["", "above", "above/home", "other", "other/home"] {
            assert!(place.is_in(&folder.path().join(holds)), "{holds}");
        }
        for not in ["beside", "above/home/below", "absent"] {
            assert!(!place.is_in(&folder.path().join(not)), "{not}");
        }
    }
}
