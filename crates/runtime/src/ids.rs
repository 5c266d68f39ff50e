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
            if let Some(lock) = lock_free(&path, file)? {
                return Ok(Self { range: IdRange::numbered(number), path, _lock: lock });
            }
        }
        Err(io::Error::other("every range of ids is in use"))
    }
}

/// Removes a few files that killed runs left: each start does a little of the work.
fn sweep() {
    for entry in std::fs::read_dir(DIRECTORY).into_iter().flatten().flatten().take(SWEPT) {
        let path = entry.path();
        // The lock is held until the name is gone.
        if let Ok(Some(_lock)) = File::open(&path).and_then(|file| lock_free(&path, file)) {
            let _ = std::fs::remove_file(&path);
        }
    }
}

/// Locks the file of a name and returns it, unless a run has it. Its owner may have removed it since it was opened, and another run may
/// have claimed the name with a file of its own: then the name leads elsewhere by now.
fn lock_free(path: &Path, file: File) -> io::Result<Option<File>> {
    if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        return Ok(None);
    }
    let own = file.metadata()?;
    let is_own = |named: std::fs::Metadata| (named.dev(), named.ino()) == (own.dev(), own.ino());
    let is_there = own.nlink() > 0 && std::fs::symlink_metadata(path).is_ok_and(is_own);
    Ok(is_there.then_some(file))
}

impl Drop for ClaimedIds {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_was_removed_and_claimed_anew_is_not_taken_for_one_that_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("7");
        let open = || File::open(&path).unwrap();
        File::create(&path).unwrap();
        let before = open();
        std::fs::remove_file(&path).unwrap();
        assert!(lock_free(&path, before.try_clone().unwrap()).unwrap().is_none(), "its name is gone");
        File::create(&path).unwrap();
        assert!(lock_free(&path, before).unwrap().is_none(), "its name is another file's");
        let claimed = lock_free(&path, open()).unwrap();
        assert!(claimed.is_some() && lock_free(&path, open()).unwrap().is_none());
        drop(claimed);
        assert!(lock_free(&path, open()).unwrap().is_some());
    }
}
