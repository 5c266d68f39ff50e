//! Claims a range of ids that no other run on this machine uses, for runs that root starts.
//!
//! A claim is a lock on a file named by the range's number, in a directory that only root can write to. The lock ends with the process;
//! the file is removed with the claim, or claimed again by another run.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use sandbox::IdRange;

/// Ids belong to the machine, not to a person.
const DIRECTORY: &str = "/run/lockgate/ids";

/// How many claims a start looks at to remove stale ones.
const SWEPT: usize = 8;

/// A claimed range.
#[derive(Debug)]
pub(crate) struct ClaimedIds {
    pub(crate) range: IdRange,
    path: PathBuf,
    _lock: File,
}

impl ClaimedIds {
    /// Claims the first free range, beginning with an arbitrary one.
    pub(crate) fn claim(from: u32) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(DIRECTORY)?;
        sweep();
        let count = IdRange::count();
        for number in (0..count).map(|n| (from % count + n) % count) {
            let path = Path::new(DIRECTORY).join(number.to_string());
            let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path)?;
            let locked = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok();
            // Its owner may have removed the file meanwhile.
            if locked && file.metadata()?.nlink() > 0 {
                return Ok(Self { range: IdRange::numbered(number), path, _lock: file });
            }
        }
        Err(io::Error::other("every range of ids is in use"))
    }
}

/// Removes a few files that killed runs left: each start does a little of the work.
fn sweep() {
    for entry in std::fs::read_dir(DIRECTORY).into_iter().flatten().flatten().take(SWEPT) {
        let free = |file: &File| rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive).is_ok();
        if File::open(entry.path()).is_ok_and(|file| free(&file)) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

impl Drop for ClaimedIds {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}
