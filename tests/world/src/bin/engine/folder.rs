//! The files of engines: one folder per user, with a folder for each running engine. An engine holds a lock on its own as long as one of
//! its processes lives, so the next engine to start can remove the unlocked ones.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;

use crate::error::Error;
use crate::groups;

const LOCK: &str = "lock";
/// The prefix of engines' folder names; the rest is random.
const ENGINE: &str = "test-engine-";

/// The folder of all engines of this user, locked against other processes.
pub(crate) struct Base {
    path: PathBuf,
    _lock: File,
}

impl Base {
    /// Waits for the lock, at most as long as another process takes to prepare the images.
    pub(crate) fn lock() -> Result<Self, Error> {
        let user = rustix::process::geteuid().as_raw();
        let path = PathBuf::from(format!("/var/tmp/lockgate-test-engine-{user}"));
        fs::create_dir_all(&path).map_err(Error::file(&path))?;
        let lock = open_lock(&path)?;
        rustix::fs::flock(&lock, FlockOperation::LockExclusive)
            .map_err(|error| Error::file(&path)(error.into()))?;
        Ok(Self { path, _lock: lock })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the folders of engines that were killed together with the process that would have removed them.
    pub(crate) fn sweep(&self) {
        for entry in fs::read_dir(&self.path).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with(ENGINE) && is_free(&entry.path()) {
                groups::remove(&name);
                let _ = fs::remove_dir_all(entry.path());
            }
        }
    }
}

/// One engine's folder.
pub(crate) struct Folder {
    path: PathBuf,
    _lock: File,
}

impl Folder {
    /// Makes a new and empty folder, which stays until [`Folder::remove`].
    pub(crate) fn make(base: &Base) -> Result<Self, Error> {
        let made = tempfile::Builder::new().prefix(ENGINE).tempdir_in(&base.path);
        let path = made.map_err(Error::file(&base.path))?.keep();
        let lock = open_lock(&path)?;
        rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive)
            .map_err(|error| Error::file(&path)(error.into()))?;
        let folder = Self { path, _lock: lock };
        fs::create_dir(folder.files()).map_err(Error::file(folder.files()))?;
        Ok(folder)
    }

    /// Returns a path in it.
    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The folder of everything the daemon writes except its log: in memory, unless it is kept.
    pub(crate) fn files(&self) -> PathBuf {
        self.at("files")
    }

    /// The daemon's `--data-root`.
    pub(crate) fn data(&self) -> PathBuf {
        self.at("files/data")
    }

    /// The daemon's `--exec-root`.
    pub(crate) fn state(&self) -> PathBuf {
        self.at("files/state")
    }

    /// The daemon's socket.
    pub(crate) fn socket(&self) -> PathBuf {
        self.at("docker.sock")
    }

    /// The daemon's socket in the form of `DOCKER_HOST`.
    pub(crate) fn host(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    /// The control group that contains those of all containers.
    pub(crate) fn group(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Removes it and its control groups. All processes of the engine have ended.
    pub(crate) fn remove(&self) {
        groups::remove(&self.group());
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Opens the lock of a folder without taking it.
pub(crate) fn open_lock(folder: &Path) -> Result<File, Error> {
    let path = folder.join(LOCK);
    File::options().write(true).create(true).truncate(false).open(&path).map_err(Error::file(path))
}

/// Whether nobody holds a folder's lock.
pub(crate) fn is_free(folder: &Path) -> bool {
    open_lock(folder)
        .is_ok_and(|lock| rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok())
}
