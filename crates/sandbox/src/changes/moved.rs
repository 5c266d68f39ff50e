//! Tells the files that a run moved or linked from those that somebody removed from the workspace meanwhile. Overlayfs marks both as copied
//! up. Which file one is a copy of, it notes only for root of this machine. So a moved file is known by its size, time and content.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::hash::RandomState;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use rustix::fs::Stat;

use super::content::{fingerprint, is_same_content};
use super::side::{open_file, stat};

/// Size and modification time of a file. A copy that overlayfs makes has those of the original until it is written.
type Likeness = (i64, i64, u64);

/// So many files are compared one by one with another that is like them. Of more the content is read once.
const FEW: usize = 4;

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
        let mut sources: HashMap<Likeness, Alike<'_>> = HashMap::new();
        for path in gone {
            if let Some(file) = stat(below, path)? {
                sources.entry(likeness(&file)).or_default().few.push(path);
            }
        }
        let keys = RandomState::new();
        let print =
            |side, path: &Path| open_file(side, path).and_then(|file: File| fingerprint(&file, &keys)).ok();
        let mut unknown = HashSet::new();
        for (path, file) in self.unknown {
            let from = sources.get_mut(&likeness(&file)).and_then(|alike| {
                alike.read(|from| print(below, from));
                let is_same = |from: &Path| is_same(above, &path, below, from).unwrap_or(false);
                alike.take(|| print(above, &path), is_same)
            });
            if from.is_none() && !self.linked.contains(&file.st_ino) {
                unknown.insert(path);
            }
        }
        Ok(unknown)
    }
}

/// The paths that are gone whose files are like one another, until each is known to be moved.
#[derive(Default)]
struct Alike<'a> {
    few: Vec<&'a Path>,
    /// If there are more, by the content.
    many: Option<HashMap<u64, Vec<&'a Path>>>,
}

impl<'a> Alike<'a> {
    /// Reads the content of all, once, if there are many. What cannot be read is like nothing.
    fn read(&mut self, print: impl Fn(&Path) -> Option<u64>) {
        if self.few.len() <= FEW {
            return;
        }
        let mut many: HashMap<_, Vec<_>> = HashMap::new();
        for path in self.few.drain(..) {
            if let Some(print) = print(path) {
                many.entry(print).or_default().push(path);
            }
        }
        self.many = Some(many);
    }

    /// Takes out the path that a file was moved from.
    fn take(
        &mut self,
        print: impl FnOnce() -> Option<u64>,
        is_same: impl Fn(&Path) -> bool,
    ) -> Option<&'a Path> {
        let like = match &mut self.many {
            None => &mut self.few,
            Some(many) => many.get_mut(&print()?)?,
        };
        let at = like.iter().position(|from| is_same(from))?;
        Some(like.swap_remove(at))
    }
}

fn likeness(file: &Stat) -> Likeness {
    (file.st_size, file.st_mtime, file.st_mtime_nsec)
}

fn is_same(above: BorrowedFd<'_>, path: &Path, below: BorrowedFd<'_>, from: &Path) -> io::Result<bool> {
    is_same_content(&open_file(above, path)?, &open_file(below, from)?)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn of_many_files_that_are_alike_each_is_compared_with_its_own_alone() {
        for count in [FEW, 1000] {
            let paths: Vec<PathBuf> = (0..count).map(|number| number.to_string().into()).collect();
            let number = |path: &Path| path.to_str().unwrap().parse::<u64>().unwrap();
            let mut alike = Alike { few: paths.iter().map(PathBuf::as_path).collect(), many: None };
            let (read, compared) = (Cell::new(0), Cell::new(0));
            for path in paths.iter().rev() {
                alike.read(|from| {
                    read.set(read.get() + 1);
                    Some(number(from))
                });
                let is_same = |from: &Path| {
                    compared.set(compared.get() + 1);
                    from == path
                };
                assert_eq!(alike.take(|| Some(number(path)), is_same), Some(path.as_path()));
                assert_eq!(alike.take(|| Some(number(path)), |from| from == path), None, "it was moved once");
            }
            let is_few = count == FEW;
            assert_eq!(read.get(), if is_few { 0 } else { count });
            assert!(compared.get() <= count * if is_few { FEW } else { 1 }, "{}", compared.get());
        }
    }

    #[test]
    fn many_files_that_are_alike_are_known_by_their_content() {
        let folder = tempfile::tempdir().unwrap();
        let (above, below) = (folder.path().join("above"), folder.path().join("below"));
        let mut gone = Vec::new();
        for side in [&above, &below] {
            std::fs::create_dir(side).unwrap();
        }
        let write = |path: &Path, content: String| {
            std::fs::write(path, content).unwrap();
            let file = File::options().write(true).open(path).unwrap();
            file.set_modified(std::time::UNIX_EPOCH).unwrap();
        };
        let mut moved = Moved::default();
        let opened = |side: &Path| std::fs::File::open(side).unwrap();
        for number in 100..100 + 3 * FEW {
            write(&below.join(format!("old-{number}")), number.to_string());
            gone.push(PathBuf::from(format!("old-{number}")));
            // One that is like them, and the content of which is none of theirs.
            let content = if number == 100 { 999 } else { number };
            let name = format!("new-{number}");
            write(&above.join(&name), content.to_string());
            let file = rustix::fs::statat(opened(&above), &name, rustix::fs::AtFlags::empty()).unwrap();
            moved.note(Path::new(&name), file);
        }
        let [above, below] = [opened(&above), opened(&below)];
        let unknown = moved.unknown(gone.iter().map(PathBuf::as_path), above.as_fd(), below.as_fd()).unwrap();
        assert_eq!(unknown, HashSet::from(["new-100".into()]));
    }
}
