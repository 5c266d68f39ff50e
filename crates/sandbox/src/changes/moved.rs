//! Tells the files that a run moved or linked from those that somebody removed from the workspace meanwhile. Overlayfs marks both as copied
//! up. Which file one is a copy of, it notes only for root of this machine. So a moved file is known by its size, time and content.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use rustix::fs::Stat;

use super::content::is_same_content;
use super::side::{open_file, stat};

/// Size and modification time of a file. A copy that overlayfs makes has those of the original until it is written.
type Likeness = (i64, i64, u64);

/// The files of the upper layer that were copied up, and are not in the workspace.
#[derive(Default)]
pub(super) struct Moved {
    unknown: Vec<(PathBuf, Stat)>,
    /// The inode numbers of files with several names of which the workspace has one.
    linked: HashSet<u64>,
}

impl Moved {
    /// Notes a file that the workspace does not have.
    pub(super) fn note(&mut self, path: &Path, file: Stat) {
        self.unknown.push((path.into(), file));
    }

    /// Notes a file that the workspace has as well.
    pub(super) fn note_known(&mut self, file: &Stat) {
        if file.st_nlink > 1 {
            self.linked.insert(file.st_ino);
        }
    }

    /// Returns every file that was not moved from one of the paths that are gone, and is no other name of a file that is known.
    pub(super) fn unknown<'a>(
        self,
        gone: impl Iterator<Item = &'a Path>,
        above: BorrowedFd<'_>,
        below: BorrowedFd<'_>,
    ) -> io::Result<HashSet<PathBuf>> {
        if self.unknown.is_empty() {
            return Ok(HashSet::new());
        }
        let mut sources: HashMap<Likeness, Vec<&Path>> = HashMap::new();
        for path in gone {
            if let Some(file) = stat(below, path)? {
                sources.entry(likeness(&file)).or_default().push(path);
            }
        }
        let mut unknown = HashSet::new();
        for (path, file) in self.unknown {
            let from = sources.get_mut(&likeness(&file)).and_then(|like| {
                let at = like.iter().position(|from| is_same(above, &path, below, from).unwrap_or(false))?;
                Some(like.swap_remove(at))
            });
            if from.is_none() && !self.linked.contains(&file.st_ino) {
                unknown.insert(path);
            }
        }
        Ok(unknown)
    }
}

fn likeness(file: &Stat) -> Likeness {
    (file.st_size, file.st_mtime, file.st_mtime_nsec)
}

fn is_same(above: BorrowedFd<'_>, path: &Path, below: BorrowedFd<'_>, from: &Path) -> io::Result<bool> {
    is_same_content(&open_file(above, path)?, &open_file(below, from)?)
}
