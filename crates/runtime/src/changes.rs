//! The changes of runs whose workspaces are kept apart: from before a run begins until a person decides on them.

use std::cell::Cell;
use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use policy::RunId;
use rustix::fs::FlockOperation;
use sandbox::{Applied, Changes, Signals};

use crate::end_signals::end_asked;
use crate::error::{Error, plumbing};
use crate::record::{RunRecord, RunState, refuse_running};
use crate::state::{StateDirectory, state_error};
use crate::still_there::Act;
use crate::without_waiting::open_directory;

/// Makes the directory for the changes of a run in a workspace.
pub(crate) fn prepare(directory: &StateDirectory, run: &RunId, workspace: &Path) -> Result<(), Error> {
    let path = directory.changes(run);
    Changes::prepare(&path, workspace).map_err(|source| state_error(&path, source))
}

/// Removes the directory of a run that wrote nothing. Returns whether it wrote something.
pub(crate) fn settle(directory: &StateDirectory, run: &RunId) -> bool {
    let path = directory.changes(run);
    match Changes::is_empty(&path) {
        Ok(true) => {}
        Ok(false) => return true,
        // There is none, or a process was killed while it made or removed it.
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        // A directory that cannot be read is there all the same.
        Err(_) => return true,
    }
    let _dropping = lock_directory(&path);
    if drop_changes(&path, run).is_err() {
        let _ = Changes::discard(&path);
    }
    false
}

/// Returns what a run wrote in a workspace that was kept apart, as long as nobody has decided on it. The run may still be going on.
///
/// # Errors
/// When there is no such run, nothing was kept, or it cannot be read.
pub fn changes_of(directory: &StateDirectory, run: &RunId) -> Result<Changes, Error> {
    let record = RunRecord::read(directory, run)?;
    let path = kept(directory, run)?;
    Changes::read(&path, &record.workspace).map_err(|source| Error::Changes { path, source })
}

/// The changes of a run that is over: as long as this lives, nobody else applies or drops them.
#[derive(Debug)]
pub struct FinishedChanges {
    /// The changes, as they were once nobody else could decide on them.
    pub changes: Changes,
    #[expect(dead_code, reason = "holding the lock is what it is for")]
    deciding: Option<File>,
}

/// Returns the changes of a run that is over, for a decision.
///
/// # Errors
/// As [`changes_of`], and while the run is going on, or another process decides on them.
pub fn finished_changes_of(directory: &StateDirectory, run: &RunId) -> Result<FinishedChanges, Error> {
    refuse_running(Act::Apply, directory, run)?;
    let deciding = decide(Act::Apply, directory, run)?;
    Ok(FinishedChanges { changes: changes_of(directory, run)?, deciding })
}

/// Applies changes to the workspace: all of them, or those at or below the named paths.
///
/// # Errors
/// When a change cannot be written, or a signal asks for the end; those written before it stay, and are no changes any more. And when a
/// path is named that this machine executes or trusts, while the command of a run can write beside it.
pub fn apply_changes(
    directory: &StateDirectory,
    run: &RunId,
    FinishedChanges { changes, .. }: &FinishedChanges,
    paths: &[PathBuf],
) -> Result<Applied, Error> {
    refuse_writers(directory, run, changes, paths)?;
    // They stay blocked: once all is taken over, what is kept of it is dropped.
    let signals = Signals::block_forwarded(&[]).map_err(plumbing("hear signals"))?;
    let asked = Cell::new(None);
    let is_ended = || {
        asked.set(asked.get().or_else(|| end_asked(&signals)));
        asked.get().is_some()
    };
    changes.apply(paths, &is_ended).map_err(|(path, source)| {
        let path = shown(&path);
        match asked.get() {
            Some(signal) => Error::TakeOverEnded { path, signal },
            None => Error::TakeOver { path, source },
        }
    })
}

/// Refuses while a running command can write beside a protected path: it could replace what is applied, and so escape the protection of
/// the old file.
fn refuse_writers(
    directory: &StateDirectory,
    run: &RunId,
    changes: &Changes,
    paths: &[PathBuf],
) -> Result<(), Error> {
    let Some(path) = changes.list.iter().find(|it| it.protected.is_some() && !it.is_withheld(paths)) else {
        return Ok(());
    };
    let workspace = RunRecord::read(directory, run)?.workspace;
    let overlaps = |other: &PathBuf| other.starts_with(&workspace) || workspace.starts_with(other);
    let living =
        std::fs::read_dir(directory.live()).map_err(|source| state_error(&directory.live(), source))?;
    for entry in living {
        let entry = entry.map_err(|source| state_error(&directory.live(), source))?;
        let Some(Ok(other)) = entry.file_name().to_str().map(str::parse::<RunId>) else { continue };
        let record = match RunRecord::read_as_written(directory, &other) {
            // A run without a record has shown its command nothing yet.
            Err(Error::NoRun { .. }) => continue,
            record => record?,
        };
        if record.state == RunState::Running && record.writable.iter().any(overlaps) {
            let path = shown(&path.path);
            return Err(Error::WrittenBy { path, run: other.to_string(), workspace });
        }
    }
    Ok(())
}

/// Returns a path that a run chose, escaped to one line.
fn shown(path: &Path) -> String {
    path.to_string_lossy().escape_debug().to_string()
}

/// Discards what a run wrote.
///
/// # Errors
/// When nothing was kept, it cannot be removed, the run is going on and still writes there, or another process decides on it.
pub fn discard_changes(directory: &StateDirectory, run: &RunId) -> Result<(), Error> {
    discard_for(Act::Discard, directory, run)
}

/// Discards what of a run was applied.
///
/// # Errors
/// When it cannot be removed.
pub fn discard_applied(directory: &StateDirectory, run: &RunId, of: FinishedChanges) -> Result<(), Error> {
    let path = directory.changes(run);
    let dropped = drop_changes(&path, run).map_err(|source| state_error(&path, source));
    drop(of); // it holds the lock until here
    dropped
}

fn discard_for(what: Act, directory: &StateDirectory, run: &RunId) -> Result<(), Error> {
    refuse_running(what, directory, run)?;
    let _deciding = decide(what, directory, run)?;
    let path = directory.changes(run);
    drop_changes(&path, run).map_err(|source| state_error(&path, source))
}

/// Takes the lock of the one process that decides on the changes of a run. There is none on a file system without locks.
fn decide(what: Act, directory: &StateDirectory, run: &RunId) -> Result<Option<File>, Error> {
    let path = kept(directory, run)?;
    let lock = match lock_directory(&path) {
        Ok(lock) => Some(lock),
        Err(error) if error.kind() == ErrorKind::WouldBlock => {
            return Err(Error::BeingApplied(what, run.clone()));
        }
        // A directory that cannot be opened is dropped all the same, and cannot be applied.
        Err(_) => None,
    };
    // Whoever had the lock before may have dropped them.
    kept(directory, run).map(|_| lock)
}

/// Refuses while another process decides on the changes of a run.
pub(crate) fn refuse_decided(what: Act, directory: &StateDirectory, run: &RunId) -> Result<(), Error> {
    match decide(what, directory, run) {
        Ok(_) | Err(Error::NothingKept { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Removes a directory of changes, or what is left of one. If this process is killed half-way, nobody sees a part of it: the next process
/// removes the rest. The caller holds the lock of the directory.
fn drop_changes(path: &Path, run: &RunId) -> std::io::Result<()> {
    let gone = path.with_file_name(format!("{GONE}{run}"));
    match std::fs::rename(path, &gone) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    match Changes::discard(&gone) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        discarded => discarded,
    }
}

/// The prefix of directories that are being removed.
const GONE: &str = ".gone-";

/// Removes the changes that killed processes left half removed, which may take long.
pub fn remove_dropped_changes(directory: &StateDirectory) {
    let Ok(entries) = std::fs::read_dir(directory.all_changes()) else { return };
    let gone = |entry: &std::fs::DirEntry| entry.file_name().as_encoded_bytes().starts_with(GONE.as_bytes());
    for path in entries.flatten().filter(gone).map(|entry| entry.path()) {
        if let Ok(_dropping) = lock_directory(&path) {
            let _ = Changes::discard(&path);
        }
    }
}

/// Returns the lock of the one process that applies or removes a directory of changes. While another one does, it would block.
fn lock_directory(path: &Path) -> std::io::Result<File> {
    let directory = open_directory(path)?;
    rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive)?;
    Ok(directory)
}

/// Returns the directory of a run's changes, if they are kept.
fn kept(directory: &StateDirectory, run: &RunId) -> Result<PathBuf, Error> {
    if keeps_changes(directory, run)? {
        return Ok(directory.changes(run));
    }
    Err(Error::NothingKept { run: run.to_string() })
}

/// Discards what a run wrote that is to be removed, if anything was kept.
pub(crate) fn forget(directory: &StateDirectory, run: &RunId) -> Result<(), Error> {
    if keeps_changes(directory, run)? { discard_for(Act::Remove, directory, run) } else { Ok(()) }
}

/// Whether the changes of a run are kept, for a person to decide on.
///
/// # Errors
/// When the directory of all changes cannot be read.
pub fn keeps_changes(directory: &StateDirectory, run: &RunId) -> Result<bool, Error> {
    let path = directory.changes(run);
    path.try_exists().map_err(|source| state_error(&path, source))
}

/// A run whose changes are kept.
#[derive(Debug)]
pub struct KeptRun {
    /// The run.
    pub run: RunId,
    /// Its workspace, or why its record does not tell.
    pub workspace: Result<PathBuf, Error>,
}

/// Returns the runs whose changes are kept: the latest first, then those whose records cannot be read.
///
/// # Errors
/// When the records or the changes cannot be listed.
pub fn all_with_changes(directory: &StateDirectory) -> Result<Vec<KeptRun>, Error> {
    let mut kept = runs_in(&directory.all_changes())?;
    let mut all = Vec::new();
    for record in RunRecord::list(directory)? {
        if let Some(at) = kept.iter().position(|run| run.as_str() == record.id) {
            all.push(KeptRun { run: kept.swap_remove(at), workspace: Ok(record.workspace) });
        }
    }
    let unlisted = kept.into_iter().map(|run| {
        let workspace = RunRecord::read(directory, &run).map(|record| record.workspace);
        KeptRun { run, workspace }
    });
    // Without any record there is no such run, and the directory only awaits its removal.
    all.extend(unlisted.filter(|it| !matches!(it.workspace, Err(Error::NoRun { .. }))));
    Ok(all)
}

/// Returns the runs that have a directory of changes.
fn runs_in(all: &Path) -> Result<Vec<RunId>, Error> {
    let entries = match std::fs::read_dir(all) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(state_error(all, source)),
    };
    Ok(entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_of_a_workspace_that_is_gone_are_no_matter_of_the_state_directory() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateDirectory::for_test(folder.path());
        let run: RunId = "abcdefghjkmn".parse().unwrap();
        let workspace = folder.path().join("gone");
        let record = RunRecord { workspace, ..RunRecord::for_test(run.as_str()) };
        record.write(&state, &run).unwrap();
        prepare(&state, &run, folder.path()).unwrap();
        let error = changes_of(&state, &run).unwrap_err();
        assert!(matches!(error, Error::Changes { .. }), "{error}");
        let remedy = error.remedy().unwrap();
        assert!(remedy.contains("workspace") && !remedy.contains("XDG_STATE_HOME"), "{remedy}");
    }
    #[test]
    fn every_run_with_changes_is_listed_those_with_damaged_records_last() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateDirectory::for_test(folder.path());
        assert!(all_with_changes(&state).unwrap().is_empty());
        let runs = ["abcdefghjkmn", "bcdefghjkmna", "cdefghjkmnab"].map(|run| run.parse::<RunId>().unwrap());
        for run in &runs {
            let damaged = *run == runs[0];
            RunRecord::for_test(run.as_str()).write(&state, run).unwrap();
            prepare(&state, run, folder.path()).unwrap();
            if damaged {
                std::fs::write(state.record(run), "{").unwrap();
            }
        }
        discard_changes(&state, &runs[1]).unwrap();
        assert!(!keeps_changes(&state, &runs[1]).unwrap());
        let all = all_with_changes(&state).unwrap();
        assert_eq!(all.iter().map(|it| &it.run).collect::<Vec<_>>(), [&runs[2], &runs[0]]);
        assert!(all[0].workspace.is_ok());
        assert!(matches!(all[1].workspace, Err(Error::Record { .. })), "{all:?}");
        std::fs::remove_file(state.record(&runs[0])).unwrap();
        assert_eq!(all_with_changes(&state).unwrap().len(), 1);
    }

    #[test]
    fn nobody_else_decides_on_what_is_being_applied() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateDirectory::for_test(&folder.path().join("state"));
        let run: RunId = "abcdefghjkmn".parse().unwrap();
        let workspace = folder.path().join("w");
        std::fs::create_dir(&workspace).unwrap();
        std::fs::create_dir_all(state.live()).unwrap();
        let record = RunRecord { workspace, state: RunState::Ended, ..RunRecord::for_test(run.as_str()) };
        record.write(&state, &run).unwrap();
        prepare(&state, &run, &record.workspace).unwrap();
        let written = state.changes(&run).join("written/file");
        std::fs::write(&written, "the run's").unwrap();
        let finished = finished_changes_of(&state, &run).unwrap();
        let refused = |told: Result<(), Error>| {
            let error = told.unwrap_err();
            assert!(error.to_string().ends_with("run abcdefghjkmn: it is being applied"), "{error}");
            assert_eq!(error.kind(), crate::error_kind::ErrorKind::Nothing);
        };
        refused(finished_changes_of(&state, &run).map(drop));
        refused(discard_changes(&state, &run));
        refused(RunRecord::check_removable_by_force(&state, &run));
        refused(RunRecord::remove(&state, &run));
        // A look changes nothing.
        assert_eq!(changes_of(&state, &run).unwrap().list.len(), 1);
        assert!(written.exists() && state.record(&run).exists());
        assert_eq!(apply_changes(&state, &run, &finished, &[]).unwrap().done.len(), 1);
        discard_applied(&state, &run, finished).unwrap();
        assert!(!keeps_changes(&state, &run).unwrap());
        assert!(matches!(finished_changes_of(&state, &run), Err(Error::NothingKept { .. })));
        // What was refused once is not refused for ever.
        prepare(&state, &run, &record.workspace).unwrap();
        drop(finished_changes_of(&state, &run).unwrap());
        RunRecord::remove(&state, &run).unwrap();
    }

    #[test]
    fn what_a_killed_process_was_dropping_goes_away() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateDirectory::for_test(folder.path());
        let runs = ["abcdefghjkmn", "bcdefghjkmna"].map(|run| run.parse::<RunId>().unwrap());
        let gone = runs.clone().map(|run| state.all_changes().join(format!("{GONE}{run}")));
        for (run, gone) in runs.iter().zip(&gone) {
            prepare(&state, run, folder.path()).unwrap();
            std::fs::rename(state.changes(run), gone).unwrap();
        }
        // Another process is still at the second one.
        let dropping = lock_directory(&gone[1]).unwrap();
        std::fs::create_dir_all(state.live()).unwrap();
        remove_dropped_changes(&state);
        assert!(!gone[0].exists() && gone[1].exists());
        drop(dropping);
        remove_dropped_changes(&state);
        assert!(!gone[1].exists());
    }

    // L01
    #[test]
    fn a_directory_that_was_half_made_or_half_removed_is_settled() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateDirectory::for_test(folder.path());
        let run: RunId = "abcdefghjkmn".parse().unwrap();
        RunRecord::for_test(run.as_str()).write(&state, &run).unwrap();
        let path = state.changes(&run);
        let gone = state.all_changes().join(format!("{GONE}{run}"));
        let make = || prepare(&state, &run, folder.path()).unwrap();
        let is_settled = || {
            let kept = settle(&state, &run) || path.exists() || gone.exists();
            !kept && !keeps_changes(&state, &run).unwrap() && all_with_changes(&state).unwrap().is_empty()
        };
        std::fs::create_dir_all(&path).unwrap();
        assert!(is_settled());
        make();
        std::fs::remove_dir(path.join("written")).unwrap();
        assert!(is_settled());
        make();
        std::fs::rename(&path, &gone).unwrap();
        assert!(is_settled() && is_settled());
        make();
        assert!(is_settled());
        make();
        std::fs::write(path.join("written/file"), "theirs").unwrap();
        assert!(settle(&state, &run) && keeps_changes(&state, &run).unwrap());
    }

    #[test]
    fn what_cannot_be_read_is_not_nothing() {
        let run: RunId = "abcdefghjkmn".parse().unwrap();
        for part in ["runs", "changes"] {
            let folder = tempfile::tempdir().unwrap();
            let state = StateDirectory::for_test(folder.path());
            RunRecord::for_test(run.as_str()).write(&state, &run).unwrap();
            prepare(&state, &run, folder.path()).unwrap();
            let shut = state.directory().join(part);
            std::fs::remove_dir_all(&shut).unwrap();
            std::fs::write(&shut, "").unwrap();
            let error = all_with_changes(&state).unwrap_err();
            assert!(matches!(&error, Error::State { path, .. } if *path == shut), "{part}: {error}");
            if part == "changes" {
                assert!(matches!(keeps_changes(&state, &run), Err(Error::State { .. })));
                assert!(matches!(forget(&state, &run), Err(Error::State { .. })));
            }
        }
    }
}
