//! The run lock: the process of a run holds `live/RUN` locked with flock(2) for as long as it lives, and the file is its undo log.
//! A file whose lock nobody holds is of a run whose process was killed: whoever finds it takes away what that run left. A copy of the
//! file has no lock either, and its run may go on. So the first line of the log names the file that it was written for, and the process
//! that the run's record names must be gone as well.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use policy::RunId;
use rustix::fs::FlockOperation;
use sandbox::{ProcessStamp, Reaper, Started, UndoLog, Unwound};

use crate::error::Error;
use crate::lock_file;
use crate::record::{RunRecord, RunState, last_seen};
use crate::state::{StateDirectory, in_directory, state_error};
use crate::still_there::StillThere;
use crate::without_waiting::open_directory;

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
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?;
            let begun = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)
                .map_err(io::Error::from)
                .and_then(|()| first_line(&file))
                .and_then(|line| file.write_all(line.as_bytes()))
                .and_then(|()| std::fs::rename(&beside, &path));
            or_remove(&beside, begun).map(|()| file)
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
        let file = self.lock.try_clone().map_err(|source| state_error(&self.path, source))?;
        Ok(UndoLog::in_file(file).with_placeholder_cache(directory.stock()))
    }

    /// Hands the lock to the process that takes away behind the run. If that process is gone, the next run finds a dead run's file.
    pub(crate) fn hand_over(self, sandbox: &Started) {
        let _ = sandbox.hand_run_lock(self.lock.as_fd(), &self.path);
    }

    /// Removes the lock file: the run is over.
    pub(crate) fn remove(self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Removes a lock file that could not be begun, except one that another process has locked, which removes it.
fn or_remove(beside: &Path, begun: io::Result<()>) -> io::Result<()> {
    begun.inspect_err(|error| {
        if error.kind() != io::ErrorKind::WouldBlock {
            let _ = std::fs::remove_file(beside);
        }
    })
}

/// Returns the line that a lock file begins with: its own inode. A copy of it has another one, unless it lies in a file system of its own,
/// as in a copied disk. Not its device, whose number may be another one after a reboot.
fn first_line(file: &File) -> io::Result<String> {
    Ok(format!("lock {}\n", file.metadata()?.ino()))
}

/// Whether a lock file was made by a run under this name, and is no copy of such a file.
fn is_original(file: &File) -> io::Result<bool> {
    let expected = first_line(file)?;
    let mut found = vec![0; expected.len()];
    match file.read_exact_at(&mut found, 0) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        read => read.map(|()| found == expected.as_bytes()),
    }
}

/// Whether making a lock file failed because another process took it for a dead run's.
fn is_taken_for_dead(error: &io::Error) -> bool {
    use io::ErrorKind::{AlreadyExists, NotFound, WouldBlock};
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
        self.told.iter().map(|told| format!("of run {}, which did not tell its end: {told}", self.run))
    }
}

/// Finds runs whose process was killed, takes away what they left, and says so in their records. One process looks at a time:
/// of many that start at once, each would open the lock file of every other.
#[must_use]
pub fn reap_dead(directory: &StateDirectory) -> Vec<Reaped> {
    reap_dead_until(directory, || false)
}

/// The same, up to the moment when an end is asked for: an engine that is slow may hold each of them up.
pub(crate) fn reap_dead_until(directory: &StateDirectory, mut is_over: impl FnMut() -> bool) -> Vec<Reaped> {
    let Some((_looking, entries)) = look(directory) else { return Vec::new() };
    let mut reaper = directory.reaper();
    let dead = entries.flatten().take_while(|_| !is_over());
    dead.filter_map(|entry| reap(directory, &mut reaper, &entry.path())).take(MOST).collect()
}

/// Whether there are runs whose process was killed. `false` while another process looks, which reaps them as well.
pub(crate) fn are_dead(directory: &StateDirectory) -> bool {
    let Some((_looking, entries)) = look(directory) else { return false };
    entries.flatten().take(MOST).any(|entry| lock_file::is_abandoned(&entry.path()))
}

/// Returns the lock files, and the lock of the one process that may look at them; `None` while another process looks.
fn look(directory: &StateDirectory) -> Option<(File, std::fs::ReadDir)> {
    let looking = open_directory(&directory.live()).ok()?;
    rustix::fs::flock(&looking, FlockOperation::NonBlockingLockExclusive).ok()?;
    Some((looking, std::fs::read_dir(directory.live()).ok()?))
}

fn reap(directory: &StateDirectory, reaper: &mut Reaper, path: &Path) -> Option<Reaped> {
    let file = lock_file::open(path).ok()?;
    // A run that is alive keeps its lock; of two that reap, one wins.
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).ok()?;
    if file.metadata().ok()?.nlink() == 0 {
        // Another process was done with it in between.
        return None;
    }
    let name = path.file_name()?.to_str()?;
    if name.starts_with('.') {
        // Killed before the file had its name: nothing had been acquired.
        let _ = std::fs::remove_file(path);
        return None;
    }
    let run: RunId = name.parse().ok()?;
    // At once, for this process may be killed as well before the rest is taken away.
    let mut note = |told: &[String]| {
        if let Ok(mut record) = RunRecord::read_as_written(directory, &run) {
            note_told(&mut record, told);
            let _ = record.write(directory, &run);
        }
    };
    let unwound = match unwind_dead(directory, reaper, &run, &file, &mut note) {
        Ok(Dead::Unwound(unwound)) => Some(unwound),
        Ok(Dead::Copy) => None,
        Ok(Dead::Alive) => return None,
        Err(error) => return Some(Reaped { run, problems: vec![error.to_string()], told: Vec::new() }),
    };
    let is_settled = settle_record(directory, &run, unwound.as_ref());
    let Unwound { problems, told, .. } = unwound.unwrap_or_default();
    if !is_settled {
        // The disk is full, say, or no more files may be opened: the next process tries again.
        return Some(Reaped { run, problems, told });
    }
    crate::changes::settle(directory, &run);
    if problems.is_empty() {
        let _ = std::fs::remove_file(path);
    }
    Some(Reaped { run, problems, told })
}

/// Notes in the record of a run that was killed how it ended, and what became of what it left; nothing did if its lock file is a copy.
/// Returns whether nothing of that is left to be written.
fn settle_record(directory: &StateDirectory, run: &RunId, unwound: Option<&Unwound>) -> bool {
    match RunRecord::read_as_written(directory, run) {
        Ok(mut record) => {
            let was = record.clone();
            if record.state == RunState::Running {
                record.state = RunState::Lost;
                record.ended = Some(last_seen(directory, run));
            }
            match unwound {
                Some(unwound) => {
                    note_told(&mut record, &unwound.told);
                    record.note_leftover(unwound.why_left.clone(), &unwound.problems);
                }
                None => record.notices.push(OF_A_COPY.into()),
            }
            record == was || record.write(directory, run).is_ok()
        }
        Err(Error::NoRun { .. }) => true,
        Err(Error::Record { .. }) => {
            if std::fs::metadata(directory.record(run)).is_ok_and(|record| record.len() == 0) {
                // It was killed before it wrote a word.
                let _ = std::fs::remove_file(directory.record(run));
            }
            true
        }
        Err(_) => false,
    }
}

/// Notes what was told of a run, but once: what cannot be taken away is told again at each try.
fn note_told(record: &mut RunRecord, told: &[String]) {
    let new: Vec<_> = told.iter().filter(|told| !record.notices.contains(told)).cloned().collect();
    record.notices.extend(new);
}

/// What is noted in a record whose lock file is a copy.
const OF_A_COPY: &str = "what it left was not taken away: its lock file is a copy";

/// What became of an undo log whose lock nobody holds.
enum Dead {
    /// What the run left was taken away.
    Unwound(Unwound),
    /// It is a copy: what it names is the run's own, which may go on.
    Copy,
    /// The process of the run lives: this is a copy that has the inode of the other one by chance.
    Alive,
}

/// Takes away what a run left whose lock this process holds, and has each message noted as soon as there is one. A log that cannot be read
/// now says nothing of what is to be taken back: the next process tries again.
fn unwind_dead(
    directory: &StateDirectory,
    reaper: &mut Reaper,
    run: &RunId,
    file: &File,
    note: &mut dyn FnMut(&[String]),
) -> io::Result<Dead> {
    if !is_original(file)? {
        return Ok(Dead::Copy);
    }
    let process = RunRecord::read_as_written(directory, run).ok().and_then(|record| record.process);
    match process.is_some_and(ProcessStamp::is_alive) {
        true => Ok(Dead::Alive),
        false => reaper.reap(file, note).map(Dead::Unwound),
    }
}

/// Takes away what a killed run left. The run is about to be removed, so nothing is noted in its record: the disk may be full.
pub(crate) fn take_away(directory: &StateDirectory, run: &RunId) -> Result<(), StillThere> {
    let failed = |error: io::Error| StillThere::Because(error.to_string());
    let path = directory.live().join(run.as_str());
    let file = lock_file::open(&path).map_err(failed)?;
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)
        .map_err(|_| StillThere::Because("another process is about it".into()))?;
    if file.metadata().is_ok_and(|about| about.nlink() == 0) {
        return Ok(());
    }
    match unwind_dead(directory, &mut directory.reaper(), run, &file, &mut |_| ()).map_err(failed)? {
        Dead::Alive => Err(StillThere::ProcessAlive),
        Dead::Unwound(Unwound { problems, .. }) if !problems.is_empty() => {
            Err(StillThere::Because(problems.join("; ")))
        }
        Dead::Unwound(_) | Dead::Copy => std::fs::remove_file(&path).map_err(failed),
    }
}

/// Gives up what a run left that could not be taken away: nobody looks after it any more. Returns what may still be there.
pub(crate) fn give_up(directory: &StateDirectory, run: &RunId) -> Result<Vec<String>, Error> {
    let path = directory.live().join(run.as_str());
    if !lock_file::is_abandoned(&path) {
        return Ok(Vec::new());
    }
    // A command may still run at an engine, and must not take the names that were held: what was acquired before it stays in place.
    let log = std::fs::read(&path).map_err(|source| state_error(&path, source))?;
    std::fs::remove_file(&path).map_err(|source| state_error(&path, source))?;
    Ok(UndoLog::recover(&String::from_utf8_lossy(&log)).may_be_left())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::thread::sleep;
    use std::time::Duration;

    use rustix::io::Errno;

    use super::*;

    /// Makes a folder where runs have what is taken away behind them.
    fn victim_of(directory: &StateDirectory, name: &str) -> PathBuf {
        let victim = directory.reaper().written.join(name);
        std::fs::create_dir_all(&victim).unwrap();
        victim
    }

    #[test]
    fn a_lock_file_that_may_be_somebody_elses_is_not_obeyed() {
        let folder = tempfile::tempdir().unwrap();
        let directory = StateDirectory::for_test(folder.path());
        std::fs::create_dir_all(directory.live()).unwrap();
        let written = |name: &str| {
            let victim = victim_of(&directory, name);
            let lock = directory.live().join(name);
            let begins = first_line(&File::create(&lock).unwrap()).unwrap();
            std::fs::write(&lock, format!("{begins}written {}\n", victim.display())).unwrap();
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

    #[test]
    fn a_copy_of_the_state_directory_takes_nothing_away_from_the_run_that_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let [own, copy] = ["own", "copy"].map(|name| StateDirectory::for_test(&folder.path().join(name)));
        let run: RunId = "abcdefghjkmn".parse().unwrap();
        std::fs::create_dir_all(own.live()).unwrap();
        let lock = RunLock::take(&own, &run).unwrap();
        let victim = victim_of(&own, "victim");
        lock.undo_log(&own).unwrap().push(sandbox::Undo::Written(victim.clone()));
        RunRecord::for_test(run.as_str()).write(&own, &run).unwrap();
        for part in [StateDirectory::live, StateDirectory::runs] {
            std::fs::create_dir_all(part(&copy)).unwrap();
            for entry in std::fs::read_dir(part(&own)).unwrap().flatten() {
                std::fs::copy(entry.path(), part(&copy).join(entry.file_name())).unwrap();
            }
        }
        let state_of = |directory: &StateDirectory| RunRecord::read(directory, &run).unwrap().state;
        assert_eq!(state_of(&copy), RunState::Lost, "before anybody has looked after it");
        assert_eq!(reap_dead(&copy).len(), 1);
        assert!(victim.exists() && !copy.live().join(run.as_str()).exists());
        assert_eq!(RunRecord::read_as_written(&copy, &run).unwrap().state, RunState::Lost);
        let noted = RunRecord::read_as_written(&copy, &run).unwrap().notices;
        assert_eq!(noted, [OF_A_COPY]);
        // The one that goes on is left alone until its process is gone; then its log is obeyed.
        assert!(reap_dead(&own).is_empty());
        assert_eq!(state_of(&own), RunState::Running);
        drop(lock);
        assert_eq!(reap_dead(&own).len(), 1);
        assert!(!victim.exists() && !own.live().join(run.as_str()).exists());
    }

    #[test]
    fn a_lock_file_that_could_not_be_begun_does_not_stay() {
        let folder = tempfile::tempdir().unwrap();
        let beside = folder.path().join(".abcdefghjkmn.0");
        for (errno, stays) in [(Errno::NOLCK, false), (Errno::NOSPC, false), (Errno::WOULDBLOCK, true)] {
            std::fs::write(&beside, "").unwrap();
            or_remove(&beside, Err(errno.into())).unwrap_err();
            assert_eq!(beside.exists(), stays, "{errno:?}");
        }
        or_remove(&beside, Ok(())).unwrap();
        assert!(beside.exists());
    }

    /// A run that has its lock, in a state directory of its own.
    fn begun() -> (tempfile::TempDir, StateDirectory, RunId, RunLock) {
        let folder = tempfile::tempdir().unwrap();
        let directory = StateDirectory::for_test(folder.path());
        let run: RunId = "abcdefghjkmn".parse().unwrap();
        std::fs::create_dir_all(directory.live()).unwrap();
        let lock = RunLock::take(&directory, &run).unwrap();
        (folder, directory, run, lock)
    }

    /// Makes a folder that the undo log of the run names.
    fn named_victim(directory: &StateDirectory, lock: &RunLock) -> PathBuf {
        let victim = victim_of(directory, "victim");
        lock.undo_log(directory).unwrap().push(sandbox::Undo::Written(victim.clone()));
        victim
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "any process will do")]
    fn a_copy_that_has_the_inode_of_the_other_by_chance_takes_nothing_from_a_process_that_lives() {
        let (_folder, directory, run, lock) = begun();
        let victim = named_victim(&directory, &lock);
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
        let at: u64 = stat.rsplit_once(')').unwrap().1.split_whitespace().nth(19).unwrap().parse().unwrap();
        let process = serde_json::from_value(serde_json::json!({ "pid": child.id(), "at": at })).unwrap();
        let record = RunRecord { process: Some(process), ..RunRecord::for_test(run.as_str()) };
        record.write(&directory, &run).unwrap();
        // Nobody holds the lock, as in a copy.
        drop(lock);
        assert!(reap_dead(&directory).is_empty());
        assert!(victim.exists() && directory.live().join(run.as_str()).exists());
        assert_eq!(RunRecord::read_as_written(&directory, &run).unwrap(), record);
        let refused = RunRecord::remove(&directory, &run).unwrap_err();
        assert!(matches!(refused, Error::LeftBehind { why: StillThere::ProcessAlive, .. }), "{refused}");
        assert!(remove_by_force(&directory, &run).is_err() && directory.record(&run).exists());
        // It is dead as soon as it has ended, though nobody has waited for it.
        child.kill().unwrap();
        while process_lives(&record) {
            sleep(Duration::from_millis(5));
        }
        assert_eq!(reap_dead(&directory).len(), 1);
        assert!(!victim.exists());
        child.wait().unwrap();
    }

    #[test]
    fn what_dead_runs_left_holds_nobody_up_who_asks_for_the_end() {
        let (_folder, directory, _, lock) = begun();
        let other = RunLock::take(&directory, &"abcdefghjkmp".parse().unwrap()).unwrap();
        drop((lock, other));
        let mut asked = 0;
        let reaped = reap_dead_until(&directory, || {
            asked += 1;
            asked > 1
        });
        assert_eq!((reaped.len(), reap_dead(&directory).len()), (1, 1));
    }

    #[test]
    fn a_run_whose_rest_is_still_there_is_removed_only_by_force() {
        let (folder, directory, run, lock) = begun();
        let victim = named_victim(&directory, &lock);
        // Nothing is there to be asked.
        let socket = folder.path().join("engine.sock");
        lock.undo_log(&directory).unwrap().push(sandbox::Undo::Engine(socket, run.clone()));
        RunRecord::for_test(run.as_str()).write(&directory, &run).unwrap();
        drop(lock);
        assert_eq!(reap_dead(&directory)[0].problems.len(), 1);
        let refused = RunRecord::remove(&directory, &run).unwrap_err();
        assert!(
            matches!(&refused, Error::LeftBehind { why: StillThere::Because(why), .. } if why.contains("engine.sock")),
            "{refused}"
        );
        let remedy = refused.remedy().unwrap();
        assert!(remedy.contains("--force") && remedy.contains("with the changes that it keeps"), "{remedy}");
        assert!(directory.record(&run).exists() && directory.live().join(run.as_str()).exists());
        let rest = remove_by_force(&directory, &run).unwrap();
        // The command may still run there: what was acquired before stays, and is told.
        assert!(victim.exists() && rest.len() == 2, "{rest:?}");
        assert!(rest[0].starts_with("written ") && rest[1].starts_with("engine "), "{rest:?}");
        assert!(!directory.record(&run).exists() && reap_dead(&directory).is_empty());
    }

    #[test]
    fn a_run_whose_rest_is_still_there_is_removed_by_force_whatever_its_record_says() {
        for says_running in [true, false] {
            let (folder, directory, run, lock) = begun();
            let socket = folder.path().join("engine.sock");
            lock.undo_log(&directory).unwrap().push(sandbox::Undo::Engine(socket, run.clone()));
            RunRecord::for_test(run.as_str()).write(&directory, &run).unwrap();
            if !says_running {
                std::fs::write(directory.record(&run), "damaged\n").unwrap();
            }
            drop(lock);
            let refused = RunRecord::remove(&directory, &run).unwrap_err();
            assert!(refused.remedy().unwrap().contains("--force"), "{refused}");
            // A check gives nothing up yet.
            RunRecord::check_removable_by_force(&directory, &run).unwrap();
            assert!(directory.live().join(run.as_str()).exists());
            assert_eq!(remove_by_force(&directory, &run).unwrap().len(), 1);
            assert!(!directory.record(&run).exists() && !directory.live().join(run.as_str()).exists());
        }
    }

    fn remove_by_force(directory: &StateDirectory, run: &RunId) -> Result<Vec<String>, Error> {
        let rest = RunRecord::give_up_rest(directory, run)?;
        RunRecord::remove(directory, run).map(|()| rest)
    }

    fn process_lives(record: &RunRecord) -> bool {
        record.process.is_some_and(ProcessStamp::is_alive)
    }

    #[test]
    fn a_killed_run_is_over_since_it_was_last_written_of() {
        let (_folder, directory, run, lock) = begun();
        drop(lock);
        RunRecord::for_test(run.as_str()).write(&directory, &run).unwrap();
        let long_ago = std::time::SystemTime::now() - Duration::from_secs(1000);
        File::options().append(true).open(directory.record(&run)).unwrap().set_modified(long_ago).unwrap();
        assert_eq!(reap_dead(&directory).len(), 1);
        let record = RunRecord::read(&directory, &run).unwrap();
        assert!(record.is_over_for(Duration::from_secs(900)), "{:?}", record.ended);
    }

    #[test]
    fn a_killed_run_whose_end_cannot_be_written_down_can_be_removed() {
        let (_folder, directory, run, lock) = begun();
        let victim = named_victim(&directory, &lock);
        RunRecord::for_test(run.as_str()).write(&directory, &run).unwrap();
        assert!(matches!(RunRecord::check_removable(&directory, &run), Err(Error::GoesOn { .. })));
        drop(lock);
        // Nobody has looked after it. What needs the record up to date is refused for what it is.
        let refused = crate::changes::discard_changes(&directory, &run).unwrap_err();
        assert!(matches!(&refused, Error::LeftBehind { .. }), "{refused}");
        // What also deletes the changes is no remedy here.
        let remedy = refused.remedy().unwrap();
        assert!(remedy.contains("space") && !remedy.contains("--force"), "{remedy}");
        RunRecord::remove(&directory, &run).unwrap();
        assert!(!victim.exists() && !directory.record(&run).exists());
        assert!(!directory.live().join(run.as_str()).exists());
    }

    #[test]
    fn a_record_that_cannot_be_read_now_keeps_its_lock_file() {
        let (folder, directory, run, lock) = begun();
        drop(lock);
        RunRecord::for_test(run.as_str()).write(&directory, &run).unwrap();
        // As an error of the disk, for root as well.
        let (record, aside) = (directory.record(&run), folder.path().join("aside"));
        std::fs::rename(&record, &aside).unwrap();
        std::os::unix::fs::symlink(&record, &record).unwrap();
        assert_eq!(reap_dead(&directory).len(), 1);
        assert!(directory.live().join(run.as_str()).exists());
        std::fs::rename(&aside, &record).unwrap();
        assert_eq!(reap_dead(&directory).len(), 1);
        assert!(!directory.live().join(run.as_str()).exists());
        assert_eq!(RunRecord::read_as_written(&directory, &run).unwrap().state, RunState::Lost);
    }

    /// Takes a lock while somebody takes its unnamed file for a dead run's, and is slow about it.
    fn beside_one_that_looks(removes: bool) {
        let folder = tempfile::tempdir().unwrap();
        let directory = StateDirectory::for_test(folder.path());
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
    fn a_lock_file_is_made_however_long_somebody_takes_it_for_a_dead_runs() {
        beside_one_that_looks(true);
    }

    #[test]
    fn a_lock_file_is_made_where_somebody_was_killed_over_it() {
        beside_one_that_looks(false);
    }
}
