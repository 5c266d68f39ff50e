//! Staged files: a new file or link is made beside its place under a free name, finished there, and renamed.
//!
//! Another process that can write in the directory, such as another run's command, can put a different file at that name at any moment. So
//! a staged file is known by its descriptor: only that file changes its owner, and a different one that is found in the place afterwards
//! is moved aside.

use std::ffi::{CStr, OsStr};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::rand::GetRandomFlags;

use crate::open_file::{is_at, is_own};

/// The prefix of a staged file's name. A staged file that a killed apply left stays, because it cannot be told from the user's own. It is
/// not listed as a change either.
const BESIDE: &str = ".lockgate-apply-";
/// The number of digits after the prefix.
const DIGITS: usize = 16;
/// The most names that are tried.
const TRIES: usize = 16;

/// Whether a name is that of a staged file.
pub(super) fn stands_beside(name: &OsStr) -> bool {
    let digits = name.to_str().and_then(|name| name.strip_prefix(BESIDE));
    digits.is_some_and(|it| it.len() == DIGITS && it.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// The error if somebody put another file in its place.
pub(super) fn replaced() -> io::Error {
    io::Error::other("somebody put another in its place as it was taken over, which was not taken")
}

/// A new file or link under a temporary name. It is removed if it is not placed.
pub(super) struct StagedFile<'a> {
    parent: &'a OwnedFd,
    name: String,
    made: OwnedFd,
}

impl<'a> StagedFile<'a> {
    /// Makes an empty file. Returns it, also opened for writing.
    pub(super) fn file(parent: &'a OwnedFd, mode: Mode) -> io::Result<(Self, File)> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let (name, made) = under_a_name(|name| rustix::fs::openat(parent, name, flags, mode))?;
        let to = File::from(made.try_clone()?);
        Ok((Self { parent, name, made }, to))
    }

    /// Makes a link.
    pub(super) fn link(parent: &'a OwnedFd, target: &CStr) -> io::Result<Self> {
        let (name, ()) = under_a_name(|name| rustix::fs::symlinkat(target, parent, name))?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = rustix::fs::openat(parent, &*name, flags, Mode::empty())?;
        let stat = rustix::fs::fstat(&made)?;
        let is_it = FileType::from_raw_mode(stat.st_mode).is_symlink()
            && stat.st_nlink == 1
            && is_own(&made)?
            && *rustix::fs::readlinkat(&made, "", Vec::new())? == *target;
        if is_it { Ok(Self { parent, name, made }) } else { Err(replaced()) }
    }

    /// Returns the file that was made, whatever is at its name by now.
    pub(super) fn made(&self) -> BorrowedFd<'_> {
        self.made.as_fd()
    }

    /// Renames it to its place. If a different file turns up there, it is moved aside, because it may be the user's own.
    pub(super) fn place(mut self, name: &OsStr) -> io::Result<()> {
        if !is_at(self.parent, OsStr::new(&self.name), &self.made)? {
            return Err(replaced());
        }
        let aside = std::mem::take(&mut self.name);
        rustix::fs::renameat(self.parent, &*aside, self.parent, name).inspect_err(|_| {
            let _ = rustix::fs::unlinkat(self.parent, &*aside, AtFlags::empty());
        })?;
        if is_at(self.parent, name, &self.made)? {
            return Ok(());
        }
        let _ = rustix::fs::renameat(self.parent, name, self.parent, &*aside);
        Err(io::Error::other(format!(
            "somebody put another in its place as it was taken over, which is `{aside}` now"
        )))
    }
}

impl Drop for StagedFile<'_> {
    fn drop(&mut self) {
        if !self.name.is_empty() {
            let _ = rustix::fs::unlinkat(self.parent, &*self.name, AtFlags::empty());
        }
    }
}

/// Calls `make` with free names until one succeeds.
fn under_a_name<T>(make: impl Fn(&str) -> rustix::io::Result<T>) -> io::Result<(String, T)> {
    for _ in 0..TRIES {
        let mut number = [0; 8];
        rustix::rand::getrandom(&mut number, GetRandomFlags::empty())?;
        let name = format!("{BESIDE}{:0DIGITS$x}", u64::from_ne_bytes(number));
        match make(&name) {
            Ok(made) => return Ok((name, made)),
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Err(Errno::EXIST.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder() -> (tempfile::TempDir, OwnedFd) {
        let folder = tempfile::tempdir().unwrap();
        let opened = File::open(folder.path()).unwrap().into();
        (folder, opened)
    }

    fn content(folder: &tempfile::TempDir, name: &str) -> Option<String> {
        std::fs::read_to_string(folder.path().join(name)).ok()
    }

    #[test]
    fn what_somebody_put_under_its_name_is_not_placed() {
        let (folder, parent) = folder();
        std::fs::write(folder.path().join("place"), "before").unwrap();
        let (beside, _) = StagedFile::file(&parent, Mode::RWXU).unwrap();
        std::fs::write(folder.path().join("other"), "theirs").unwrap();
        std::fs::rename(folder.path().join("other"), folder.path().join(&beside.name)).unwrap();
        assert!(beside.place(OsStr::new("place")).is_err());
        assert_eq!(content(&folder, "place").as_deref(), Some("before"));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn of_many_who_try_none_has_another_placed() {
        use std::sync::atomic::{AtomicBool, Ordering};
        let (folder, parent) = folder();
        let over = AtomicBool::new(false);
        let path = folder.path();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    for entry in std::fs::read_dir(path).unwrap().flatten() {
                        if stands_beside(&entry.file_name()) {
                            let _ = std::fs::write(path.join("other"), "theirs");
                            let _ = std::fs::rename(path.join("other"), entry.path());
                        }
                    }
                }
            });
            let mut placed = 0;
            for _ in 0..2_000 {
                let (beside, file) = StagedFile::file(&parent, Mode::RWXU).unwrap();
                io::Write::write_all(&mut &file, b"ours").unwrap();
                let done = beside.place(OsStr::new("place"));
                placed += usize::from(done.is_ok());
                let found = content(&folder, "place");
                assert!(found.is_none() || found.as_deref() == Some("ours"), "{done:?}: {found:?}");
                assert!(done.is_err() || found.is_some());
            }
            over.store(true, Ordering::Relaxed);
            assert!(placed > 0, "somebody was there first each time, and nothing was tried");
        });
    }

    #[test]
    fn a_link_is_the_one_that_was_made() {
        let (folder, parent) = folder();
        let beside = StagedFile::link(&parent, c"somewhere").unwrap();
        assert!(is_at(&parent, OsStr::new(&beside.name), &beside.made).unwrap());
        beside.place(OsStr::new("link")).unwrap();
        let target = std::fs::read_link(folder.path().join("link")).unwrap();
        assert_eq!(target.to_str(), Some("somewhere"));
    }
}
