//! The initial data of engines: made once per machine by an engine that imports the archives, and kept. Each engine gets copies of the
//! databases, and links to the layers: those are thousands of files, and no daemon writes to an image's.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;

use crate::archives;
use crate::error::Error;
use crate::folder::{Base, Folder, is_free, open_lock};
use crate::options::{Kind, Network};
use crate::start::Engine;

const DATA: &str = "data";
/// The folder of the storage driver, and in each layer's folder the one of its files.
const DRIVER: &str = "overlay2";
const FILES: &str = "diff";

/// Data that is kept while this value lives.
pub(crate) struct Stored {
    path: PathBuf,
    _lock: File,
}

impl Stored {
    /// Returns the data with these archives in it, and makes it if necessary.
    pub(crate) fn of(base: &Base, kind: Kind, archives: &[PathBuf]) -> Result<Self, Error> {
        let path = base.path().join(format!("{}{:016x}", prefix(kind), key(kind, archives)?));
        if !path.join(DATA).is_dir() {
            forget_others(base, kind);
            fs::create_dir_all(&path).map_err(Error::file(&path))?;
            make(base, kind, archives, &path.join(DATA))?;
        }
        let lock = open_lock(&path)?;
        rustix::fs::flock(&lock, FlockOperation::LockShared)
            .map_err(|error| Error::file(&path)(error.into()))?;
        Ok(Self { path, _lock: lock })
    }

    /// The folder from which Podman reads the images.
    pub(crate) fn images(&self) -> PathBuf {
        self.path.join(DATA)
    }

    /// Fills an engine's folder. Podman's stays empty.
    pub(crate) fn fill(&self, folder: &Folder, kind: Kind) -> Result<(), Error> {
        if kind == Kind::Podman {
            return Ok(());
        }
        let to = folder.data();
        copy(&self.path.join(DATA), &to).map_err(Error::file(to))
    }
}

/// The prefix of these folders' names; the rest identifies the archives.
fn prefix(kind: Kind) -> &'static str {
    if kind == Kind::Docker { "stored-docker-" } else { "stored-podman-" }
}

/// Returns a key of the initial data: engines with the same key share it.
fn key(kind: Kind, archives: &[PathBuf]) -> Result<u64, Error> {
    let mut hasher = DefaultHasher::new();
    kind.hash(&mut hasher);
    for archive in archives {
        let data = fs::metadata(archive).map_err(Error::file(archive))?;
        let archive = fs::canonicalize(archive).map_err(Error::file(archive))?;
        (archive, data.size(), data.mtime(), data.mtime_nsec()).hash(&mut hasher);
    }
    Ok(hasher.finish())
}

/// Removes unused data that an engine of this kind made of other archives.
fn forget_others(base: &Base, kind: Kind) {
    for entry in fs::read_dir(base.path()).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(prefix(kind)) && is_free(&entry.path()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

fn make(base: &Base, kind: Kind, archives: &[PathBuf], data: &Path) -> Result<(), Error> {
    let folder = Folder::make(base)?;
    let engine = Engine::start(&folder, kind, None, Network::Own)?;
    let taken = archives.iter().try_for_each(|archive| archives::take_in(&folder.socket(), archive));
    engine.settle();
    let moved = taken.and_then(|()| fs::rename(folder.data(), data).map_err(Error::file(data)));
    folder.remove();
    moved
}

/// Copies files, folders and links, without a layer's files.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir(to)?;
    fs::set_permissions(to, fs::metadata(from)?.permissions())?;
    let is_layer = from.parent().is_some_and(|above| above.ends_with(DRIVER));
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        let kind = entry.file_type()?;
        if is_layer && entry.file_name() == FILES {
            symlink(source, target)?;
        } else if kind.is_dir() {
            copy(&source, &target)?;
        } else if kind.is_symlink() {
            symlink(fs::read_link(&source)?, target)?;
        } else if kind.is_file() {
            fs::copy(&source, target)?;
        }
    }
    Ok(())
}
