//! Tells whether an open file was removed. What is written to it then is lost, and what is read from it changes no more.

use std::cell::Cell;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::fs::{FileType, fstat};

/// How often the kernel is asked.
const LOOK: Duration = Duration::from_secs(1);

/// What is known of the names of an open file. Only a regular file that had one as it was opened can be removed: one in memory never
/// has any, and a pipe or a socket is written to all the same.
#[derive(Debug)]
pub struct RemovalWatch(Cell<Names>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Names {
    Never,
    /// It had one when the kernel was last asked, if it was.
    There(Option<Instant>),
    Gone,
}

impl RemovalWatch {
    /// Watches a file that has just been opened.
    pub fn over(file: impl AsFd) -> Self {
        let is_watched = fstat(file).is_ok_and(|stat| {
            FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile && stat.st_nlink > 0
        });
        Self(Cell::new(if is_watched { Names::There(None) } else { Names::Never }))
    }

    /// Whether the file was removed, or replaced by another of its name, as of at most a second ago.
    pub fn is_removed(&self, file: impl AsFd) -> bool {
        self.is_removed_at(file, Instant::now())
    }

    /// Whether it was removed by now.
    pub fn is_removed_now(&self, file: impl AsFd) -> bool {
        if let Names::There(_) = self.0.get() {
            self.0.set(Names::There(None));
        }
        self.is_removed(file)
    }

    fn is_removed_at(&self, file: impl AsFd, now: Instant) -> bool {
        match self.0.get() {
            Names::Never => return false,
            Names::Gone => return true,
            Names::There(Some(asked)) if now.saturating_duration_since(asked) < LOOK => return false,
            Names::There(_) => {}
        }
        // An error is told by what is read or written.
        let is_gone = fstat(file).is_ok_and(|stat| stat.st_nlink == 0);
        self.0.set(if is_gone { Names::Gone } else { Names::There(Some(now)) });
        is_gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removed_file_is_found_within_a_second() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let file = std::fs::File::create(&path).unwrap();
        let watch = RemovalWatch::over(&file);
        let begun = Instant::now();
        assert!(!watch.is_removed_at(&file, begun));
        std::fs::remove_file(&path).unwrap();
        assert!(!watch.is_removed_at(&file, begun + LOOK / 2), "the kernel was asked a moment ago");
        assert!(watch.is_removed_at(&file, begun + LOOK));
        assert!(watch.is_removed(&file), "for good");
    }

    #[test]
    fn whoever_must_know_asks_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let file = std::fs::File::create(&path).unwrap();
        let watch = RemovalWatch::over(&file);
        assert!(!watch.is_removed(&file));
        std::fs::rename(tempfile::NamedTempFile::new_in(&folder).unwrap().into_temp_path(), &path).unwrap();
        assert!(watch.is_removed_now(&file), "another file has its name");
    }

    #[test]
    fn what_never_had_a_name_is_not_removed() {
        let (_theirs, pipe) = std::io::pipe().unwrap();
        assert!(!RemovalWatch::over(&pipe).is_removed_now(&pipe));
        let file = tempfile::tempfile().unwrap();
        assert!(!RemovalWatch::over(&file).is_removed_now(&file));
    }
}
