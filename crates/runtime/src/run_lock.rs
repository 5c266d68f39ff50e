//! The run lock: the process of a run holds `live/RUN` locked with flock(2) for as long as it lives, and the file is its undo log.
//! A file whose lock nobody holds is of a run whose process was killed: whoever finds it takes away what that run left.

use std::fs::{File, OpenOptions};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use policy::RunId;
use rustix::fs::FlockOperation;
use sandbox::{Started, UndoLog, Unwound};

use crate::error::Error;
use crate::lock_file;
use crate::record::{RunRecord, RunState, now};
use crate::state::{StateDirectory, in_directory, state};

/// How many runs are looked at, at most: each start does a little of the work.
const MOST: usize = 256;

/// How often a lock file is made again that others took for a dead run's.
const TRIES: usize = 64;

/// The lock that the process of a run holds for as long as it lives.
#[derive(Debug)]
pub(crate) struct RunLock {
    path: PathBuf,
    lock: File,
}

impl RunLock {
    /// Makes the lock file of a run, and takes its lock.
    pub(crate) fn take(directory: &StateDirectory, run: &RunId) -> Result<Self, Error> {
        let path = directory.live().join(run.as_str());
        // Locked before it has its name, so that nobody who looks for dead runs sees it without its lock.
        let named = |attempt: usize| {
            let beside = directory.live().join(format!(".{run}.{attempt}"));
            let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?;
            rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
            std::fs::rename(&beside, &path)?;
            Ok(file)
        };
        let lock = in_directory(&path, || {
            let mut made = named(0);
            // A process that looks for dead runs may have locked the file before this one did. That file is left to it, however long
            // it takes; if it is killed, the next process that looks removes the file.
            for attempt in 1..TRIES {
                match &made {
                    Err(error) if is_taken_for_dead(error) && directory.live().is_dir() => {
                        made = named(attempt)
                    }
                    _ => break,
                }
            }
            made
        })?;
        Ok(Self { path, lock })
    }

    /// Returns the undo log, which is kept in the same file.
    pub(crate) fn undo_log(&self, directory: &StateDirectory) -> Result<UndoLog, Error> {
        let file = self.lock.try_clone().map_err(|source| state(&self.path, source))?;
        Ok(UndoLog::in_file(file).with_placeholder_cache(directory.stock()))
    }

    /// Hands the lock to the process that takes away behind the run. If that process is gone, the next run finds a dead run's file.
    pub(crate) fn hand_over(self, sandbox: &Started) {
        let _ = sandbox.hand_mark(self.lock.as_fd(), &self.path);
    }

    /// Removes the lock file: the run is over.
    pub(crate) fn remove(self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Whether making a lock file failed because another process took it for a dead run's.
fn is_taken_for_dead(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{AlreadyExists, NotFound, WouldBlock};
    matches!(error.kind(), NotFound | WouldBlock | AlreadyExists)
}

/// A dead run whose leftovers were taken away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reaped {
    /// The run.
    pub run: RunId,
    /// What could not be taken away.
    pub problems: Vec<String>,
    /// What the person should know of what was taken away.
    pub told: Vec<String>,
}

impl Reaped {
    /// Returns what the person should know, each sentence with the run it is about.
    pub fn sentences(&self) -> impl Iterator<Item = String> {
        self.told.iter().map(|told| format!("of run {}, whose process was killed: {told}", self.run))
    }
}

/// Finds runs whose process was killed, takes away what they left, and says so in their records. One process looks at a time:
/// of many that start at once, each would open the lock file of every other.
#[must_use]
pub fn reap_dead(directory: &StateDirectory) -> Vec<Reaped> {
    let Some((_looking, entries)) = look(directory) else { return Vec::new() };
    entries.flatten().filter_map(|entry| reap(directory, &entry.path())).take(MOST).collect()
}

/// Whether there are runs whose process was killed. `false` while another process looks, which reaps them as well.
pub(crate) fn are_dead(directory: &StateDirectory) -> bool {
    let Some((_looking, entries)) = look(directory) else { return false };
    entries.flatten().take(MOST).any(|entry| lock_file::is_abandoned(&entry.path()))
}

/// Returns the lock files, and the lock of the one process that may look at them; `None` while another process looks.
fn look(directory: &StateDirectory) -> Option<(File, std::fs::ReadDir)> {
    let looking = File::open(directory.live()).ok()?;
    rustix::fs::flock(&looking, FlockOperation::NonBlockingLockExclusive).ok()?;
    Some((looking, std::fs::read_dir(directory.live()).ok()?))
}

fn reap(directory: &StateDirectory, path: &Path) -> Option<Reaped> {
    let file = lock_file::open(path)?;
    // A run that is alive keeps its lock; of two that reap, one wins.
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).ok()?;
    let name = path.file_name()?.to_str()?;
    if name.starts_with('.') {
        // Killed before the file had its name: nothing had been acquired.
        let _ = std::fs::remove_file(path);
    }
    let run: RunId = name.parse().ok()?;
    // An undo log that cannot be read now says nothing of what is to be taken back: the next process tries again.
    let Unwound { problems, told, why_left } = match sandbox::reap(&file) {
        Ok(unwound) => unwound,
        Err(error) => return Some(Reaped { run, problems: vec![error.to_string()], told: Vec::new() }),
    };
    if let Ok(mut record) = RunRecord::read(directory, &run) {
        let was = record.clone();
        if record.state == RunState::Running {
            record.state = RunState::Lost;
            record.ended = Some(now());
        }
        record.notices.extend(told.iter().cloned());
        record.note_leftover(why_left, &problems);
        if record != was && record.write(directory, &run).is_err() {
            // The disk is full, say: the next process tries again.
            return Some(Reaped { run, problems, told });
        }
    } else if std::fs::metadata(directory.record(&run)).is_ok_and(|record| record.len() == 0) {
        // It was killed before it wrote a word.
        let _ = std::fs::remove_file(directory.record(&run));
    }
    crate::changes::settle(directory, &run);
    if problems.is_empty() {
        let _ = std::fs::remove_file(path);
    }
    Some(Reaped { run, problems, told })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::thread::sleep;
    use std::time::Duration;

    use sandbox::Caller;

    use super::*;

    fn directory(folder: &Path) -> StateDirectory {
        let environment = vec![("XDG_STATE_HOME".into(), folder.into())];
        let (home, directory) = (None, folder.into());
        StateDirectory::of(&Caller { uid: 0, gid: 0, superuser: false, home, directory, environment })
            .unwrap()
    }

    #[test]
    fn a_mark_that_may_be_somebody_elses_is_not_obeyed() {
        let folder = tempfile::tempdir().unwrap();
        let directory = directory(folder.path());
        std::fs::create_dir_all(directory.live()).unwrap();
        let written = |name: &str| {
            let victim = folder.path().join(name);
            std::fs::create_dir(&victim).unwrap();
            let lock = directory.live().join(name);
            std::fs::write(&lock, format!("written {}\n", victim.display())).unwrap();
            (lock, victim)
        };
        let (shared, victim) = written("abcdefghjkmn");
        std::fs::set_permissions(&shared, std::fs::Permissions::from_mode(0o622)).unwrap();
        let elsewhere = folder.path().join("elsewhere");
        std::fs::copy(&shared, &elsewhere).unwrap();
        std::fs::set_permissions(&elsewhere, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::os::unix::fs::symlink(&elsewhere, directory.live().join("abcdefghjkmp")).unwrap();
        // A pipe would be waited for.
        let pipe = directory.live().join("abcdefghjkmq");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)
            .unwrap();
        let foreign = rustix::process::geteuid().is_root().then(|| written("abcdefghjkmr"));
        if let Some((lock, _)) = &foreign {
            std::os::unix::fs::chown(lock, Some(65_534), None).unwrap();
        }
        assert!(!are_dead(&directory) && reap_dead(&directory).is_empty());
        assert!(victim.exists() && foreign.is_none_or(|(_, victim)| victim.exists()));
        // And one's own is.
        let (own, victim) = written("abcdefghjkms");
        assert!(are_dead(&directory) && reap_dead(&directory).len() == 1);
        assert!(!own.exists() && !victim.exists());
    }

    /// Takes a lock while somebody takes its unnamed file for a dead run's, and is slow about it.
    fn beside_one_that_looks(removes: bool) {
        let folder = tempfile::tempdir().unwrap();
        let directory = directory(folder.path());
        let run: RunId = "abcdefghjkmn".parse().unwrap();
        std::fs::create_dir_all(directory.live()).unwrap();
        let unnamed = directory.live().join(".abcdefghjkmn.0");
        let looking = File::create(&unnamed).unwrap();
        rustix::fs::flock(&looking, FlockOperation::NonBlockingLockExclusive).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                sleep(Duration::from_millis(300));
                if removes {
                    std::fs::remove_file(&unnamed).unwrap();
                }
                drop(looking);
            });
            let lock = RunLock::take(&directory, &run).unwrap();
            assert!(!are_dead(&directory) && reap_dead(&directory).is_empty());
            lock.remove();
        });
        assert!(reap_dead(&directory).is_empty());
        assert!(std::fs::read_dir(directory.live()).unwrap().next().is_none());
    }

    #[test]
    fn a_mark_is_made_however_long_somebody_takes_it_for_a_dead_runs() {
        beside_one_that_looks(true);
    }

    #[test]
    fn a_mark_is_made_where_somebody_was_killed_over_it() {
        beside_one_that_looks(false);
    }
}
