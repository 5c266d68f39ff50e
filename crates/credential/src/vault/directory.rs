//! The directory of a vault. It opens files by descriptor and never through a link, replaces them atomically, and lets one process
//! write at a time.
//!
//! Readers need no lock, because a file is always the old one or the new one. All writes are methods of [`Writer`], which only
//! [`Directory::lock`] makes. This module does not know the content of records.

use std::fs::{DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, fsync, open, openat, renameat, unlinkat};
use rustix::io::Errno;

use super::error::VaultError;

const LOCK: &str = "vault.lock";
const GENERATION: &str = "generation";

/// The suffix of a file while it is written. A leftover one is an interrupted write, and is never read.
const UNFINISHED: &str = ".new";

/// An open directory.
pub(super) struct Directory {
    path: PathBuf,
    handle: OwnedFd,
}

/// The right to write, while the lock is held.
pub(super) struct Writer<'a> {
    directory: &'a Directory,
    _lock: File,
}

impl Directory {
    /// Opens a directory, if it exists.
    pub(super) fn find(path: &Path) -> Result<Option<Self>, VaultError> {
        match open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()) {
            Ok(handle) => Ok(Some(Self { path: path.into(), handle })),
            // A link to a place that is not mounted now is not a vault without records.
            Err(Errno::NOENT) if !path.is_symlink() => Ok(None),
            Err(error) => Err(VaultError::OpenDirectory { path: path.into(), source: error.into() }),
        }
    }

    /// Opens a directory. Creates it and its parents if necessary, for the owner only.
    pub(super) fn make(path: &Path) -> Result<Self, VaultError> {
        let failed = |source| VaultError::OpenDirectory { path: path.into(), source };
        DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed)?;
        Self::find(path)?.ok_or_else(|| failed(io::ErrorKind::NotFound.into()))
    }

    /// Returns the path of a file, for messages.
    pub(super) fn path_of(&self, file: &str) -> PathBuf {
        self.path.join(file)
    }

    /// Returns the names of all files, sorted. A directory in the place of a record is none.
    pub(super) fn files(&self) -> Result<Vec<String>, VaultError> {
        let failed = |error: Errno| VaultError::List { path: self.path.clone(), source: error.into() };
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.handle).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            if entry.file_type() != FileType::Directory {
                names.extend(entry.file_name().to_str().map(str::to_owned));
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    /// Reads a file.
    pub(super) fn read(&self, file: &str) -> Result<Option<Vec<u8>>, VaultError> {
        let failed = |source| VaultError::Read { path: self.path_of(file), source };
        let Some(mut opened) = self.open(file, OFlags::RDONLY, failed)? else { return Ok(None) };
        let mut content = Vec::new();
        opened.read_to_end(&mut content).map_err(failed)?;
        Ok(Some(content))
    }

    /// Takes the writers' lock; waits for it.
    pub(super) fn lock(&self) -> Result<Writer<'_>, VaultError> {
        let failed = |source| VaultError::Lock { path: self.path_of(LOCK), source };
        let lock = self.make_file(LOCK, failed)?;
        loop {
            match lock.lock() {
                Ok(()) => return Ok(Writer { directory: self, _lock: lock }),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(failed(error)),
            }
        }
    }

    /// Opens the generation's file for reading.
    pub(super) fn generation(&self) -> Result<File, VaultError> {
        self.lock()?.begin_generation()?;
        let failed = |source| VaultError::Read { path: self.path_of(GENERATION), source };
        self.open(GENERATION, OFlags::RDONLY, failed)?.ok_or_else(|| failed(io::ErrorKind::NotFound.into()))
    }

    fn make_file(&self, file: &str, failed: impl Fn(io::Error) -> VaultError) -> Result<File, VaultError> {
        let opened = self.open(file, OFlags::RDWR | OFlags::CREATE, &failed)?;
        opened.ok_or_else(|| failed(io::ErrorKind::NotFound.into()))
    }

    fn open(
        &self,
        file: &str,
        flags: OFlags,
        failed: impl Fn(io::Error) -> VaultError,
    ) -> Result<Option<File>, VaultError> {
        // Without `NONBLOCK`, opening a named pipe in the place of a record would block for ever.
        let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        match openat(&self.handle, file, flags, Mode::RUSR | Mode::WUSR) {
            Ok(handle) => {
                let opened = File::from(handle);
                if opened.metadata().map_err(failed)?.is_file() {
                    Ok(Some(opened))
                } else {
                    Err(VaultError::NotAFile { path: self.path_of(file) })
                }
            }
            Err(Errno::NOENT) => Ok(None),
            Err(Errno::LOOP | Errno::ISDIR | Errno::NXIO) => {
                Err(VaultError::NotAFile { path: self.path_of(file) })
            }
            Err(error) => Err(failed(error.into())),
        }
    }
}

impl Writer<'_> {
    /// Replaces a file atomically and durably: after a crash it is the old one or the new one.
    pub(super) fn replace(&self, file: &str, content: &[u8]) -> Result<(), VaultError> {
        let handle = &self.directory.handle;
        let beside = format!("{file}{UNFINISHED}");
        let written = self.write_new(&beside, content).and_then(|()| {
            renameat(handle, &beside, handle, file)?;
            Ok(fsync(handle)?)
        });
        written.map_err(|source| {
            let _ = unlinkat(handle, &beside, AtFlags::empty());
            VaultError::Write { path: self.directory.path_of(file), source }
        })
    }

    /// Removes a file. Returns whether it existed.
    pub(super) fn remove(&self, file: &str) -> Result<bool, VaultError> {
        let handle = &self.directory.handle;
        let removed = match unlinkat(handle, file, AtFlags::empty()) {
            Ok(()) => fsync(handle).map(|()| true),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(error),
        };
        removed
            .map_err(|error| VaultError::Remove { path: self.directory.path_of(file), source: error.into() })
    }

    /// Removes the leftovers of interrupted writes. They may be sealed with a key that the user wants to retire.
    pub(super) fn tidy(&self) -> Result<(), VaultError> {
        for file in self.directory.files()?.iter().filter(|file| file.ends_with(UNFINISHED)) {
            self.remove(file)?;
        }
        Ok(())
    }

    /// Advances the generation in place, so that processes with the file open see it. It is a time, so that one which was put back to an
    /// earlier value does not come to the same values again.
    pub(super) fn advance_generation(&self) -> Result<(), VaultError> {
        let (file, generation) = self.begin_generation()?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
        let next = now.max(generation.wrapping_add(1));
        file.write_all_at(&next.to_be_bytes(), 0).map_err(|error| self.generation_failed(error))
    }

    /// Opens the generation's file and reads its value. Initialises its eight octets if necessary.
    fn begin_generation(&self) -> Result<(File, u64), VaultError> {
        let failed = |source| self.generation_failed(source);
        let file = self.directory.make_file(GENERATION, failed)?;
        let mut octets = [0; 8];
        match file.read_exact_at(&mut octets, 0) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                octets = [0; 8];
                file.write_all_at(&octets, 0).map_err(failed)?;
            }
            Err(error) => return Err(failed(error)),
        }
        Ok((file, u64::from_be_bytes(octets)))
    }

    fn generation_failed(&self, source: io::Error) -> VaultError {
        VaultError::Write { path: self.directory.path_of(GENERATION), source }
    }

    fn write_new(&self, file: &str, content: &[u8]) -> io::Result<()> {
        let handle = &self.directory.handle;
        match unlinkat(handle, file, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut opened = File::from(openat(handle, file, flags, Mode::RUSR | Mode::WUSR)?);
        opened.write_all(content)?;
        opened.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn what_is_made_is_for_its_owner_only() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("a/b");
        let directory = Directory::make(&path).unwrap();
        let writer = directory.lock().unwrap();
        writer.replace("x", b"1").unwrap();
        writer.replace("x", b"2").unwrap();
        writer.advance_generation().unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        assert_eq!((mode(&root.path().join("a")), mode(&path)), (0o700, 0o700));
        assert_eq!(directory.files().unwrap().iter().filter(|f| !f.starts_with('.')).count(), 3);
        for file in ["x", LOCK, GENERATION] {
            assert_eq!(mode(&path.join(file)), 0o600, "{file}");
        }
        assert_eq!(directory.read("x").unwrap().unwrap(), b"2");
    }

    #[test]
    fn links_and_devices_are_refused() {
        let root = tempfile::tempdir().unwrap();
        let directory = Directory::make(root.path()).unwrap();
        fs::write(root.path().join("real"), "x").unwrap();
        symlink("real", root.path().join("link")).unwrap();
        symlink("nowhere", root.path().join("dangling")).unwrap();
        fs::create_dir(root.path().join("folder")).unwrap();
        rustix::fs::mkfifoat(&directory.handle, "pipe", Mode::RUSR | Mode::WUSR).unwrap();
        for file in ["link", "dangling", "folder", "pipe"] {
            assert!(matches!(directory.read(file), Err(VaultError::NotAFile { .. })), "{file}");
        }
        // It cannot be removed as a record, so it is listed as none.
        assert_eq!(directory.files().unwrap(), ["dangling", "link", "pipe", "real"]);
        symlink("real", root.path().join(LOCK)).unwrap();
        assert!(matches!(directory.lock(), Err(VaultError::NotAFile { .. })));
        fs::remove_file(root.path().join(LOCK)).unwrap();
        symlink("real", root.path().join(GENERATION)).unwrap();
        assert!(matches!(directory.generation(), Err(VaultError::NotAFile { .. })));
        // Neither a write nor its temporary file goes through a link.
        symlink("real", root.path().join("link.new")).unwrap();
        directory.lock().unwrap().replace("link", b"y").unwrap();
        assert_eq!(fs::read(root.path().join("real")).unwrap(), b"x");
        assert_eq!(directory.read("link").unwrap().unwrap(), b"y");
    }

    #[test]
    fn the_generation_is_one_file_for_ever() {
        let root = tempfile::tempdir().unwrap();
        let directory = Directory::make(root.path()).unwrap();
        let file = directory.generation().unwrap();
        let read = || {
            let mut octets = [0; 8];
            file.read_exact_at(&mut octets, 0).unwrap();
            u64::from_be_bytes(octets)
        };
        assert_eq!(read(), 0);
        directory.lock().unwrap().advance_generation().unwrap();
        let first = read();
        directory.generation().unwrap();
        assert_eq!((read(), file.metadata().unwrap().len()), (first, 8));
        // One of an earlier day, put back, goes on to others.
        let path = root.path().join(GENERATION);
        fs::write(&path, 1_u64.to_be_bytes()).unwrap();
        directory.lock().unwrap().advance_generation().unwrap();
        assert!(read() > first && first > 0);
        // The clock may be behind.
        fs::write(&path, (u64::MAX - 1).to_be_bytes()).unwrap();
        directory.lock().unwrap().advance_generation().unwrap();
        assert_eq!(read(), u64::MAX);
        assert!((&file).write_all(b"x").is_err());
    }

    #[test]
    fn leftovers_are_overwritten_and_tidied() {
        let root = tempfile::tempdir().unwrap();
        let directory = Directory::make(root.path()).unwrap();
        let writer = directory.lock().unwrap();
        fs::write(root.path().join("x.new"), "half").unwrap();
        fs::write(root.path().join("y.new"), "half").unwrap();
        writer.replace("x", b"whole").unwrap();
        writer.tidy().unwrap();
        assert!(directory.read("x.new").unwrap().is_none() && directory.read("y.new").unwrap().is_none());
        assert_eq!(directory.read("x").unwrap().unwrap(), b"whole");
        assert!(writer.remove("x").unwrap() && !writer.remove("x").unwrap());
    }

    #[test]
    fn a_write_that_fails_leaves_nothing_beside() {
        let root = tempfile::tempdir().unwrap();
        let directory = Directory::make(root.path()).unwrap();
        fs::create_dir(root.path().join("x")).unwrap();
        let written = directory.lock().unwrap().replace("x", b"sealed");
        assert!(matches!(written, Err(VaultError::Write { .. })), "{written:?}");
        assert_eq!(directory.files().unwrap(), [LOCK]);
    }

    #[test]
    fn a_place_that_cannot_be_a_directory_is_named() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("file");
        fs::write(&path, "").unwrap();
        assert!(matches!(Directory::find(&path), Err(VaultError::OpenDirectory { .. })));
        assert!(matches!(Directory::make(&path), Err(VaultError::OpenDirectory { .. })));
        assert!(Directory::find(&root.path().join("none")).unwrap().is_none());
    }
}
