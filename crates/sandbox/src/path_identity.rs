//! Whether a folder holds a path, also by another name: one that is mounted in a second place is the same by its device and number.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A path, and what each folder on the way to it is.
#[derive(Clone, Debug)]
pub struct PathIdentity {
    path: PathBuf,
    on_the_way: Vec<(u64, u64)>,
}

impl PathIdentity {
    /// The place of a path, which need not be there.
    #[must_use]
    pub fn of(path: &Path) -> Self {
        let path = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
        let on_the_way = path.ancestors().filter_map(identity).collect();
        Self { path, on_the_way }
    }

    /// The path, without links.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether a folder is it, or above it.
    #[must_use]
    pub fn is_in(&self, folder: &Path) -> bool {
        Self::any_in([self], folder)
    }

    /// Whether a folder is one of some, or above it: it is looked at once.
    pub fn any_in<'a>(places: impl IntoIterator<Item = &'a Self>, folder: &Path) -> bool {
        let folders = identity(folder);
        places.into_iter().any(|place| {
            place.path.starts_with(folder) || folders.is_some_and(|it| place.on_the_way.contains(&it))
        })
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
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
