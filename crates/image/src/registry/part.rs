//! The file of a blob that is being downloaded, which one process at a time writes. Another waits for it as long as it grows, and then
//! downloads the blob for itself: a slow registry must not hold up the pull from another one.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use crate::store;

/// How long another process is waited for.
const PATIENCE: Patience =
    Patience { standing: Duration::from_secs(60), whole: Duration::from_secs(30 * 60) };
/// What a file must grow by to be waited for longer. Silence alone would be no bound: a registry can send an octet now and then.
const GROWTH: u64 = 1 << 20;
/// How often the file is looked at meanwhile.
const LOOK: Duration = Duration::from_millis(100);

#[derive(Clone, Copy)]
struct Patience {
    /// While its file does not grow.
    standing: Duration,
    /// While its file is whole: it unpacks the layer then.
    whole: Duration,
}

/// The file of a blob.
pub(super) struct Part {
    pub(super) file: File,
    pub(super) path: PathBuf,
    /// Whether it is at `path`, for a later pull to continue. A process that waited in vain has a file without a name.
    is_named: bool,
}

impl Part {
    /// Opens the file of a blob of at most `most` octets. If another process downloads that blob, calls `waiting`, and waits for it.
    pub(super) async fn open(path: PathBuf, most: u64, waiting: &mut dyn FnMut()) -> io::Result<Self> {
        Self::open_within(PATIENCE, path, most, waiting).await
    }

    async fn open_within(
        patience: Patience,
        path: PathBuf,
        most: u64,
        waiting: &mut dyn FnMut(),
    ) -> io::Result<Self> {
        let (mut wait, mut is_told) = (None, false);
        loop {
            // Of a pipe in its place the end would never come.
            let file = store::open_or_make(&path)?;
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) if rustix::fs::fstat(&file)?.st_nlink > 0 => {
                    return Ok(Self { file, path, is_named: true });
                }
                // The other process removed the file when it was done.
                Ok(()) => continue,
                Err(Errno::WOULDBLOCK) => {}
                Err(errno) => return Err(errno.into()),
            }
            let length = file.metadata()?.len();
            let now = Instant::now();
            let is_first = wait.is_none();
            let wait = wait.get_or_insert(Wait { length, since: now });
            let patience = if length == most { patience.whole } else { patience.standing };
            if length > most || wait.stood_still(length, now) >= patience {
                let file = tempfile::tempfile_in(path.parent().unwrap_or(Path::new(".")))?;
                return Ok(Self { file, path, is_named: false });
            }
            // Whoever only looks whether a file is in use has it for a moment.
            if !is_first && !is_told {
                is_told = true;
                waiting();
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Removes the file: it is used up, or cannot be continued.
    pub(super) fn remove(&self) {
        if self.is_named {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// The wait for a file to grow.
struct Wait {
    /// The largest length it had when it last grew enough.
    length: u64,
    since: Instant,
}

impl Wait {
    /// Returns for how long the file has not grown enough.
    fn stood_still(&mut self, length: u64, now: Instant) -> Duration {
        if length >= self.length.saturating_add(GROWTH) {
            (self.length, self.since) = (length, now);
        }
        now.saturating_duration_since(self.since)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn opened(path: &Path, most: u64, patience: Patience) -> (Part, usize) {
        let mut told = 0;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let part =
            runtime.block_on(Part::open_within(patience, path.to_owned(), most, &mut || told += 1)).unwrap();
        (part, told)
    }

    #[test]
    fn a_file_that_another_process_writes_is_not_waited_for_without_bound() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("blob");
        let (mut first, told) = opened(&path, 4, PATIENCE);
        assert_eq!(told, 0);
        first.file.write_all(b"xxxxx").unwrap();
        // It stood still, or was whole, for too long; it is longer than the blob.
        let short = 2 * LOOK;
        for (most, patience, tells) in [
            (6, Patience { standing: short, ..PATIENCE }, 1),
            (5, Patience { whole: short, ..PATIENCE }, 1),
            (4, PATIENCE, 0),
        ] {
            let (second, told) = opened(&path, most, patience);
            assert_eq!((told, second.file.metadata().unwrap().len()), (tells, 0));
            second.remove();
            assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "the other's is gone");
        }
        drop(first);
        let (third, told) = opened(&path, 5, PATIENCE);
        assert_eq!((told, third.file.metadata().unwrap().len()), (0, 5));
        third.remove();
        assert!(!path.exists());
    }

    #[test]
    fn only_growth_that_counts_makes_the_wait_longer() {
        let since = Instant::now();
        let after = |seconds| since + Duration::from_secs(seconds);
        let mut wait = Wait { length: 5, since };
        assert_eq!(wait.stood_still(GROWTH, after(50)), Duration::from_secs(50));
        assert_eq!(wait.stood_still(GROWTH + 5, after(55)), Duration::ZERO);
        // It began anew, and is as long again.
        assert_eq!(wait.stood_still(0, after(60)), Duration::from_secs(5));
        assert_eq!(wait.stood_still(GROWTH + 5, after(115)), PATIENCE.standing);
    }
}
