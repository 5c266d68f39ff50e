//! The changes of runs whose workspaces are kept apart: from before a run begins until a person decides on them.

use std::path::{Path, PathBuf};

use policy::RunId;
use sandbox::{Applied, Changes};

use crate::error::Error;
use crate::record::{RunRecord, RunState, refuse_running};
use crate::state::{StateDirectory, state};

/// Makes the directory for the changes of a run.
pub(crate) fn prepare(directory: &StateDirectory, run: &RunId) -> Result<(), Error> {
    let path = directory.changes(run);
    Changes::prepare(&path).map_err(|source| state(&path, source))
}

/// Removes the directory of a run that wrote nothing. Returns whether it wrote something.
pub(crate) fn settle(directory: &StateDirectory, run: &RunId) -> bool {
    let path = directory.changes(run);
    match Changes::is_empty(&path) {
        Ok(true) => {
            let _ = Changes::discard(&path);
            false
        }
        Ok(false) => true,
        // A directory that cannot be read is there all the same.
        Err(error) => error.kind() != std::io::ErrorKind::NotFound,
    }
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

/// Returns the changes of a run that is over, for a decision.
///
/// # Errors
/// As [`changes_of`], and while the run is going on.
pub fn finished_changes_of(directory: &StateDirectory, run: &RunId) -> Result<Changes, Error> {
    refuse_running("apply", directory, run)?;
    changes_of(directory, run)
}

/// Applies changes to the workspace: all of them, or those at or below the named paths.
///
/// # Errors
/// When a change cannot be written; those written before it stay, and are no changes any more. And when a path is named that this
/// machine executes or trusts, while the command of a run can write beside it.
pub fn apply_changes(
    directory: &StateDirectory,
    run: &RunId,
    changes: &Changes,
    paths: &[PathBuf],
) -> Result<Applied, Error> {
    refuse_writers(directory, run, changes, paths)?;
    changes.apply(paths).map_err(|(path, source)| Error::TakeOver { path: shown(&path), source })
}

/// Refuses while a running command can write beside a protected path: it could replace what is applied, and so escape the protection of
/// the old file.
fn refuse_writers(
    directory: &StateDirectory,
    run: &RunId,
    changes: &Changes,
    paths: &[PathBuf],
) -> Result<(), Error> {
    let Some(path) = changes.list.iter().find(|it| it.protected && paths.contains(&it.path)) else {
        return Ok(());
    };
    let workspace = RunRecord::read(directory, run)?.workspace;
    let overlaps = |other: &PathBuf| other.starts_with(&workspace) || workspace.starts_with(other);
    let living = std::fs::read_dir(directory.live()).map_err(|source| state(&directory.live(), source))?;
    for entry in living.flatten() {
        let Some(Ok(other)) = entry.file_name().to_str().map(str::parse::<RunId>) else { continue };
        // A run without a record has shown its command nothing yet.
        let Ok(record) = RunRecord::read(directory, &other) else { continue };
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
/// When nothing was kept, it cannot be removed, or the run is going on and still writes there.
pub fn discard_changes(directory: &StateDirectory, run: &RunId) -> Result<(), Error> {
    refuse_running("discard", directory, run)?;
    drop_leftovers(directory);
    let path = kept(directory, run)?;
    // If this process is killed half-way, nobody sees a part of it: the next process that discards something removes the rest.
    let gone = path.with_file_name(format!("{GONE}{run}"));
    std::fs::rename(&path, &gone).map_err(|source| state(&path, source))?;
    Changes::discard(&gone).map_err(|source| state(&gone, source))
}

/// The prefix of directories that are being removed.
const GONE: &str = ".gone-";

/// Removes what killed processes left half removed.
fn drop_leftovers(directory: &StateDirectory) {
    let all = directory.directory().join("changes");
    let Ok(entries) = std::fs::read_dir(all) else { return };
    let gone = |entry: &std::fs::DirEntry| entry.file_name().as_encoded_bytes().starts_with(GONE.as_bytes());
    entries.flatten().filter(gone).for_each(|entry| {
        let _ = Changes::discard(&entry.path());
    });
}

/// Returns the directory of a run's changes, if they are kept.
fn kept(directory: &StateDirectory, run: &RunId) -> Result<PathBuf, Error> {
    let path = directory.changes(run);
    if path.exists() {
        return Ok(path);
    }
    Err(Error::NothingKept { run: run.to_string() })
}

/// Discards what a run wrote, if anything was kept.
pub(crate) fn forget(directory: &StateDirectory, run: &RunId) -> Result<(), Error> {
    if directory.changes(run).exists() { discard_changes(directory, run) } else { Ok(()) }
}

/// Whether the changes of a run are kept, for a person to decide on.
#[must_use]
pub fn keeps_changes(directory: &StateDirectory, run: &RunId) -> bool {
    directory.changes(run).exists()
}

/// Returns the runs whose changes are kept, the latest first, each with its workspace.
#[must_use]
pub fn all_with_changes(directory: &StateDirectory) -> Vec<(RunId, PathBuf)> {
    let records = RunRecord::list(directory).unwrap_or_default().into_iter();
    let runs = records.filter_map(|record| Some((record.id.parse().ok()?, record.workspace)));
    runs.filter(|(run, _)| directory.changes(run).exists()).collect()
}

#[cfg(test)]
mod tests {
    use sandbox::Caller;

    use super::*;

    #[test]
    fn changes_of_a_workspace_that_is_gone_are_no_matter_of_the_state_directory() {
        let folder = tempfile::tempdir().unwrap();
        let (home, environment) = (None, vec![("XDG_STATE_HOME".into(), folder.path().into())]);
        let directory = folder.path().into();
        let caller = Caller { uid: 0, gid: 0, superuser: false, home, directory, environment };
        let state = StateDirectory::of(&caller).unwrap();
        let run: RunId = "abcdefghjkmn".parse().unwrap();
        let workspace = folder.path().join("gone");
        let record = RunRecord { workspace, ..RunRecord::for_test(run.as_str()) };
        record.write(&state, &run).unwrap();
        prepare(&state, &run).unwrap();
        let error = changes_of(&state, &run).unwrap_err();
        assert!(matches!(error, Error::Changes { .. }), "{error}");
        let remedy = error.remedy().unwrap();
        assert!(remedy.contains("workspace") && !remedy.contains("XDG_STATE_HOME"), "{remedy}");
    }
}
