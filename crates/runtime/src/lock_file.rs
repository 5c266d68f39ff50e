//! The file `live/RUN` of a run, which somebody holds locked with flock(2) for as long as anything of the run is there.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, OFlags};

/// How often a lock is looked at that is waited for.
const PAUSE: Duration = Duration::from_millis(20);

/// Opens a lock file. Its undo log is obeyed, so it must be a regular file of this user's that nobody else may write to; a pipe in its
/// place is not waited for.
pub(crate) fn open(path: &Path) -> Option<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path).ok()?;
    let about = file.metadata().ok()?;
    let is_own = about.uid() == rustix::process::geteuid().as_raw() && about.mode() & 0o022 == 0;
    (about.is_file() && is_own).then_some(file)
}

/// Whether a lock file is there, and nobody holds it.
pub(crate) fn is_abandoned(path: &Path) -> bool {
    open(path).is_some_and(|file| rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared).is_ok())
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
