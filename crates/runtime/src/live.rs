//! Which runs are alive: each holds a lock on a file of its own. A file without its lock is a run whose process was
//! killed, and what it left is taken away.

use std::fs::{File, OpenOptions};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use policy::RunId;
use rustix::fs::{FlockOperation, OFlags};
use sandbox::{Started, UndoLog, Unwound};

use crate::error::Error;
use crate::record::{RunRecord, RunState, now};
use crate::state::{StateDirectory, in_directory, state};

/// How many runs are looked at, at most: each start does a little of the work.
const MOST: usize = 256;

/// How often a mark is tried again that others took for a dead run's.
const TRIES: usize = 64;

/// The lock of a living run.
#[derive(Debug)]
pub(crate) struct Alive {
    path: PathBuf,
    lock: File,
}

impl Alive {
    /// Marks a run as alive.
    pub(crate) fn mark(directory: &StateDirectory, run: &RunId) -> Result<Self, Error> {
        let path = directory.live().join(run.as_str());
        // Locked before it has its name: one that looks for dead runs never sees it without its lock.
        let named = |attempt: usize| {
            let beside = directory.live().join(format!(".{run}.{attempt}"));
            let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?;
            rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
            std::fs::rename(&beside, &path)?;
            Ok(file)
        };
        let lock = in_directory(&path, || {
            let mut made = named(0);
            // Whoever looks for dead runs may have come between a file and its lock. That one is left to them, however long they
            // take over it: if they are killed, the next who looks removes it.
            for attempt in 1..TRIES {
                match &made {
                    Err(error) if came_between(error) && directory.live().is_dir() => made = named(attempt),
                    _ => break,
                }
            }
            made
        })?;
        Ok(Self { path, lock })
    }

    /// The undo log, kept in the same file.
    pub(crate) fn undo_log(&self, directory: &StateDirectory) -> Result<UndoLog, Error> {
        let file = self.lock.try_clone().map_err(|source| state(&self.path, source))?;
        Ok(UndoLog::in_file(file).with_stock(directory.stock()))
    }

    /// Leaves the mark to whoever takes away behind the run. Where nobody does any more, it is a dead run's, and found as such.
    pub(crate) fn hand_over(self, sandbox: &Started) {
        let _ = sandbox.hand_mark(self.lock.as_fd(), &self.path);
    }

    /// Marks it as over.
    pub(crate) fn over(self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn came_between(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{AlreadyExists, NotFound, WouldBlock};
    matches!(error.kind(), NotFound | WouldBlock | AlreadyExists)
}

/// A dead run that was cleaned up after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reaped {
    /// The run.
    pub run: RunId,
    /// What could not be taken away.
    pub problems: Vec<String>,
    /// What the person should know of what was.
    pub told: Vec<String>,
}

impl Reaped {
    /// What the person should know of what was taken away behind it, each with the run it is of.
    pub fn sentences(&self) -> impl Iterator<Item = String> {
        self.told.iter().map(|told| format!("of run {}, whose process was killed: {told}", self.run))
    }
}

/// Finds runs whose process was killed, takes away what they left, and says so in their records. One process looks at a time:
/// of many that start at once, each would open the mark of every other.
#[must_use]
pub fn reap_dead(directory: &StateDirectory) -> Vec<Reaped> {
    let Some((_looking, entries)) = look(directory) else { return Vec::new() };
    entries.flatten().filter_map(|entry| reap(directory, &entry.path())).take(MOST).collect()
}

/// Whether there are runs whose process was killed. Where another process looks, it looks after them as well.
pub(crate) fn are_dead(directory: &StateDirectory) -> bool {
    let is_unlocked = |mark: PathBuf| {
        open_mark(&mark)
            .is_some_and(|file| rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared).is_ok())
    };
    let Some((_looking, entries)) = look(directory) else { return false };
    entries.flatten().take(MOST).any(|entry| is_unlocked(entry.path()))
}

/// The marks there are, and the lock of the one process that may look.
fn look(directory: &StateDirectory) -> Option<(File, std::fs::ReadDir)> {
    let looking = File::open(directory.live()).ok()?;
    rustix::fs::flock(&looking, FlockOperation::NonBlockingLockExclusive).ok()?;
    Some((looking, std::fs::read_dir(directory.live()).ok()?))
}

/// Opens a mark. What it says is obeyed, so it is this user's own file, which nobody else may write to; what is none is not waited for.
fn open_mark(path: &Path) -> Option<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path).ok()?;
    let about = file.metadata().ok()?;
    let is_own = about.uid() == rustix::process::geteuid().as_raw() && about.mode() & 0o022 == 0;
    (about.is_file() && is_own).then_some(file)
}

fn reap(directory: &StateDirectory, marker: &Path) -> Option<Reaped> {
    let file = open_mark(marker)?;
    // A run that is alive keeps its lock; of two that reap, one wins.
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).ok()?;
    let name = marker.file_name()?.to_str()?;
    if name.starts_with('.') {
        // Killed before its mark had its name: nothing had been acquired.
        let _ = std::fs::remove_file(marker);
    }
    let run: RunId = name.parse().ok()?;
    // A log that cannot be read now says nothing of what is to be taken back: another looks again.
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
        if let Some(why) = why_left.or_else(|| left_before(&record.notices)).or_else(|| all(&problems)) {
            tell_left(&mut record.notices, &why, &problems);
        }
        if record != was && record.write(directory, &run).is_err() {
            // The disk is full, say: another looks again.
            return Some(Reaped { run, problems, told });
        }
    } else if std::fs::metadata(directory.record(&run)).is_ok_and(|record| record.len() == 0) {
        // It was killed before it wrote a word.
        let _ = std::fs::remove_file(directory.record(&run));
    }
    crate::changes::settle(directory, &run);
    if problems.is_empty() {
        let _ = std::fs::remove_file(marker);
    }
    Some(Reaped { run, problems, told })
}

/// How it is told that something was still there after the run, and how that ends.
const LEFT: &str = "after its end something of it could not be taken away: ";
const GONE: &str = "; it is gone now";
const STAYS: &str = "; the next run tries again";

/// Tells of what was still there after the run, once: how it stands now.
pub(crate) fn tell_left(notices: &mut Vec<String>, why: &str, problems: &[String]) {
    notices.retain(|notice| !notice.starts_with(LEFT));
    let now = if problems.is_empty() { GONE } else { STAYS };
    notices.push(format!("{LEFT}{why}{now}"));
}

/// What was told before of what is there still.
fn left_before(notices: &[String]) -> Option<String> {
    notices.iter().find_map(|notice| notice.strip_prefix(LEFT)?.strip_suffix(STAYS)).map(str::to_owned)
}

/// All problems in one, where there are any.
pub(crate) fn all(problems: &[String]) -> Option<String> {
    (!problems.is_empty()).then(|| problems.join("; "))
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
            let mark = directory.live().join(name);
            std::fs::write(&mark, format!("written {}\n", victim.display())).unwrap();
            (mark, victim)
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
        if let Some((mark, _)) = &foreign {
            std::os::unix::fs::chown(mark, Some(65_534), None).unwrap();
        }
        assert!(!are_dead(&directory) && reap_dead(&directory).is_empty());
        assert!(victim.exists() && foreign.is_none_or(|(_, victim)| victim.exists()));
        // And one's own is.
        let (own, victim) = written("abcdefghjkms");
        assert!(are_dead(&directory) && reap_dead(&directory).len() == 1);
        assert!(!own.exists() && !victim.exists());
    }

    /// Somebody has taken a mark without its name for a dead run's, and takes its time.
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
            let alive = Alive::mark(&directory, &run).unwrap();
            assert!(!are_dead(&directory) && reap_dead(&directory).is_empty());
            alive.over();
        });
        assert!(reap_dead(&directory).is_empty());
        assert!(std::fs::read_dir(directory.live()).unwrap().next().is_none());
    }

    #[test]
    fn what_is_left_of_a_run_is_told_once_and_as_it_stands_now() {
        let mut notices = vec!["other".to_owned()];
        let problems = ["links /w/.git: shut".to_owned()];
        for _ in 0..2 {
            let why = left_before(&notices).or_else(|| all(&problems)).unwrap();
            tell_left(&mut notices, &why, &problems);
            assert_eq!(notices.len(), 2);
            assert!(notices[1].ends_with("links /w/.git: shut; the next run tries again"), "{notices:?}");
        }
        let why = left_before(&notices).unwrap();
        tell_left(&mut notices, &why, &[]);
        assert!(notices.len() == 2 && notices[1].ends_with("links /w/.git: shut; it is gone now"));
        assert_eq!(left_before(&notices), None);
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
