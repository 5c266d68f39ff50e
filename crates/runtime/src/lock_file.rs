//! The file `live/RUN` of a run, which somebody holds locked with flock(2) for as long as anything of the run is there.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, OFlags};
use rustix::io::Errno;

use crate::without_waiting::open_as;

/// How often a lock is looked at that is waited for.
const PAUSE: Duration = Duration::from_millis(20);

/// Opens a lock file. Its undo log is obeyed, so it must be a regular file of this user's that nobody else may write to: of another one
/// the error is that of invalid data.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let file = open_as(path, OFlags::NOFOLLOW)?;
    let about = file.metadata()?;
    match about.uid() == rustix::process::geteuid().as_raw() && about.mode() & 0o022 == 0 {
        true => Ok(file),
        false => Err(io::Error::new(io::ErrorKind::InvalidData, "others may write to it")),
    }
}

/// Whether a lock file is there, and nobody holds it.
pub(crate) fn is_abandoned(path: &Path) -> bool {
    open(path).is_ok_and(|file| rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared).is_ok())
}

/// Whether somebody holds a lock file, or it cannot be told, as where this process may open no more files.
pub(crate) fn may_be_held(path: &Path) -> bool {
    use io::ErrorKind::{InvalidData, NotADirectory, NotFound};
    match open(path) {
        Ok(file) => rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared).is_err(),
        // Nothing is there that a run would have locked.
        Err(error) if matches!(error.kind(), NotFound | NotADirectory | InvalidData) => false,
        Err(error) => Errno::from_io_error(&error) != Some(Errno::LOOP),
    }
}

/// Waits until nobody holds a lock file, or it is gone. Returns `false` if somebody still does after that time.
pub(crate) fn await_release(path: &Path, patience: Duration) -> bool {
    let until = Instant::now() + patience;
    while path.exists() && !is_abandoned(path) {
        if Instant::now() >= until {
            return false;
        }
        std::thread::sleep(PAUSE);
    }
    true
}
