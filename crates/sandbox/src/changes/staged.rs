//! Staged files: a new file or link is made beside its place under a free name, finished there, and renamed.
//!
//! Another process that can write in the directory, such as another run's command, can put a different file at that name at any moment. So
//! a staged file is known by its descriptor and number: only that file changes its owner, and only that one is removed. A different one
//! that is found in the place afterwards is moved aside.

use std::ffi::{CStr, OsStr};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use rustix::rand::GetRandomFlags;

use super::since::{Since, Staged, id};
use crate::open_file::{is_at, is_own};

/// The prefix of a staged file's name. The file is noted, so that the next apply removes what a killed one left, and nothing else of such
/// a name, which may be the user's own. It is not listed as a change either.
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

/// A file that was made under a temporary name of a directory. If it is still there at the end, it is removed.
struct Beside<'a> {
    parent: &'a OwnedFd,
    since: &'a Since,
    staged: Staged,
}

/// A new file or link under a temporary name. It is removed if it is not placed.
pub(super) struct StagedFile<'a> {
    beside: Beside<'a>,
    made: File,
}

impl<'a> StagedFile<'a> {
    /// Makes an empty file, opened for writing.
    pub(super) fn file(parent: &'a OwnedFd, mode: Mode, since: &'a Since) -> io::Result<Self> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let (name, made) =
            at_free_name(|name| since.change_in(parent, || rustix::fs::openat(parent, name, flags, mode)))?;
        let number = id(&rustix::fs::fstat(&made)?);
        let beside = Beside { parent, since, staged: Staged { name, number } };
        since.note_staged(&beside.staged);
        Ok(Self { beside, made: made.into() })
    }

    /// Makes a link.
    pub(super) fn link(parent: &'a OwnedFd, target: &CStr, since: &'a Since) -> io::Result<Self> {
        let (name, ()) =
            at_free_name(|name| since.change_in(parent, || rustix::fs::symlinkat(target, parent, name)))?;
        // By its name, since no descriptor may be left to open it.
        let stat = rustix::fs::statat(parent, &*name, AtFlags::SYMLINK_NOFOLLOW)?;
        let is_new = FileType::from_raw_mode(stat.st_mode).is_symlink() && stat.st_nlink == 1;
        if !is_new || *rustix::fs::readlinkat(parent, &*name, Vec::new())? != *target {
            return Err(replaced());
        }
        let beside = Beside { parent, since, staged: Staged { name, number: id(&stat) } };
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = rustix::fs::openat(parent, &*beside.staged.name, flags, Mode::empty())?;
        let is_it = id(&rustix::fs::fstat(&made)?) == beside.staged.number
            && is_own(&made)?
            && *rustix::fs::readlinkat(&made, "", Vec::new())? == *target;
        if !is_it {
            return Err(replaced());
        }
        since.note_staged(&beside.staged);
        Ok(Self { beside, made: made.into() })
    }

    /// Returns the file that was made, whatever is at its name by now.
    pub(super) fn made(&self) -> &File {
        &self.made
    }

    /// Renames it to its place. If a different file turns up there, it is moved aside, because it may be the user's own.
    pub(super) fn place(self, name: &OsStr) -> io::Result<()> {
        let Beside { parent, since, staged } = &self.beside;
        let from = &*staged.name;
        if !is_at(parent, OsStr::new(from), &self.made)? {
            return Err(replaced());
        }
        since.change_in(parent, || rustix::fs::renameat(parent, from, parent, name))?;
        self.refuse_another(name)
    }

    /// Moves a different file in its place aside, to a name at which nothing is ever removed.
    fn refuse_another(&self, name: &OsStr) -> io::Result<()> {
        let parent = self.beside.parent;
        if is_at(parent, name, &self.made)? {
            return Ok(());
        }
        let flags = RenameFlags::NOREPLACE;
        let moved =
            at_free_name(|aside| match rustix::fs::renameat_with(parent, name, parent, aside, flags) {
                // The file system cannot tell whether the name is free. It is a random one.
                Err(Errno::INVAL) => rustix::fs::renameat(parent, name, parent, aside),
                renamed => renamed,
            });
        Err(match moved {
            Ok((aside, ())) => io::Error::other(format!(
                "somebody put another in its place as it was taken over, which is `{aside}` now"
            )),
            Err(_) => replaced(),
        })
    }
}

impl Drop for Beside<'_> {
    fn drop(&mut self) {
        remove(self.parent, self.since, &self.staged);
    }
}

/// Removes a staged file from a directory, and nothing else that is at its name.
pub(super) fn remove(parent: &OwnedFd, since: &Since, Staged { name, number }: &Staged) {
    let there = rustix::fs::statat(parent, &**name, AtFlags::SYMLINK_NOFOLLOW);
    if stands_beside(OsStr::new(name)) && there.is_ok_and(|there| id(&there) == *number) {
        let _ = since.change_in(parent, || rustix::fs::unlinkat(parent, &**name, AtFlags::empty()));
    }
}

/// Calls `make` with free names until one succeeds. Returns that name.
fn at_free_name<T>(make: impl Fn(&str) -> rustix::io::Result<T>) -> io::Result<(String, T)> {
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

    fn folder() -> (tempfile::TempDir, OwnedFd, Since) {
        let folder = tempfile::tempdir().unwrap();
        let opened = File::open(folder.path()).unwrap().into();
        (folder, opened, Since::at((0, 0), "/dev/null".into()))
    }

    fn content(folder: &tempfile::TempDir, name: &str) -> Option<String> {
        std::fs::read_to_string(folder.path().join(name)).ok()
    }

    #[test]
    fn what_somebody_put_under_its_name_is_not_placed() {
        let (folder, parent, since) = folder();
        std::fs::write(folder.path().join("place"), "before").unwrap();
        let staged = StagedFile::file(&parent, Mode::RWXU, &since).unwrap();
        let name = staged.beside.staged.name.clone();
        std::fs::write(folder.path().join("other"), "theirs").unwrap();
        std::fs::rename(folder.path().join("other"), folder.path().join(&name)).unwrap();
        assert!(staged.place(OsStr::new("place")).is_err());
        assert_eq!(content(&folder, "place").as_deref(), Some("before"));
        assert_eq!(content(&folder, &name).as_deref(), Some("theirs"));
    }

    #[test]
    fn what_somebody_saved_in_its_place_stays_aside_after_the_next_apply() {
        let kept = super::super::fixture::Kept::new();
        let changes = kept.changes();
        let parent = File::open(kept.workspace("")).unwrap().into();
        let staged = StagedFile::file(&parent, Mode::RWXU, &changes.since).unwrap();
        // As it is renamed, and somebody saves a file there at once.
        std::fs::rename(kept.workspace(&staged.beside.staged.name), kept.workspace("place")).unwrap();
        std::fs::write(kept.workspace("other"), "theirs").unwrap();
        std::fs::rename(kept.workspace("other"), kept.workspace("place")).unwrap();
        let error = staged.refuse_another(OsStr::new("place")).unwrap_err().to_string();
        drop(staged);
        let aside = kept.workspace(error.split('`').nth(1).unwrap());
        for name in ["place", "more"] {
            std::fs::write(kept.written(name), "the run's").unwrap();
            kept.changes().apply(&[], &|| false).unwrap();
            assert_eq!(std::fs::read_to_string(&aside).unwrap(), "theirs");
            assert_eq!(std::fs::read_to_string(kept.workspace(name)).unwrap(), "the run's");
        }
    }

    #[test]
    fn of_many_who_try_none_has_another_placed() {
        use std::sync::atomic::{AtomicBool, Ordering};
        let (folder, parent, since) = folder();
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
                let staged = StagedFile::file(&parent, Mode::RWXU, &since).unwrap();
                io::Write::write_all(&mut staged.made(), b"ours").unwrap();
                let done = staged.place(OsStr::new("place"));
                placed += usize::from(done.is_ok());
                let found = content(&folder, "place");
                assert!(found.is_none() || found.as_deref() == Some("ours"), "{done:?}: {found:?}");
                assert!(done.is_err() || found.is_some());
                for entry in std::fs::read_dir(path).unwrap().flatten() {
                    if stands_beside(&entry.file_name()) {
                        let _ = std::fs::remove_file(entry.path());
                    }
                }
            }
            over.store(true, Ordering::Relaxed);
            assert!(placed > 0, "somebody was there first each time, and nothing was tried");
        });
    }

    #[test]
    fn a_link_is_the_one_that_was_made() {
        let (folder, parent, since) = folder();
        let staged = StagedFile::link(&parent, c"somewhere", &since).unwrap();
        assert!(is_at(&parent, OsStr::new(&staged.beside.staged.name), &staged.made).unwrap());
        staged.place(OsStr::new("link")).unwrap();
        let target = std::fs::read_link(folder.path().join("link")).unwrap();
        assert_eq!(target.to_str(), Some("somewhere"));
    }

    #[test]
    fn a_link_that_cannot_be_opened_does_not_stay() {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let (folder, parent, since) = folder();
        let limit = getrlimit(Resource::Nofile);
        let none = Rlimit { current: Some(0), ..limit };
        setrlimit(Resource::Nofile, none).unwrap();
        let staged = StagedFile::link(&parent, c"somewhere", &since).map(drop);
        setrlimit(Resource::Nofile, limit).unwrap();
        assert_eq!(staged.unwrap_err().raw_os_error(), Some(Errno::MFILE.raw_os_error()));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
