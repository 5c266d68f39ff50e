//! What is told of a folder in the place of a policy. A run that goes on holds such a place by an empty folder.

use std::fs::{File, TryLockError};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use runtime::{RunRecord, RunState, StateDirectory};

use crate::exit::Usage;

/// The mode of the empty directory by which a run holds the name, but for what others may read. See docs/sandbox.md.
const HOLDING_MODE: u32 = 0o500;
const OF_OTHERS: u32 = 0o055;

/// Returns the refusal to write a policy where a folder lies.
pub(super) fn refusal(state: &StateDirectory, name: &str, path: &Path) -> anyhow::Error {
    if !is_placeholder(path) {
        return Usage::error(format!("{name} is a folder"), "move it away, or name a file with --policy");
    }
    match runs_at(state, path.parent().unwrap_or(path)).as_slice() {
        [] => match held_by_others(path) {
            Some(whose) => Usage::error(
                format!("{whose} goes on here and holds the place of {name} until it ends"),
                "say it again then, or name a file with --policy; --allow is for the next run alone",
            ),
            None => Usage::error(
                format!("{name} is an empty folder, and no run that goes on holds its place"),
                "remove the folder, or name a file with --policy",
            ),
        },
        [run] => Usage::error(
            format!("run {run} goes on here and holds the place of {name} until it ends"),
            format!(
                "say it again then, or end it now: lockgate runs stop {run}; --allow is for the next run alone"
            ),
        ),
        runs => {
            let runs = runs.join(" ");
            Usage::error(
                format!("these runs go on here and hold the place of {name} until they end: {runs}"),
                format!("say it again then, or end them now: lockgate runs stop {runs}"),
            )
        }
    }
}

fn is_placeholder(path: &Path) -> bool {
    let is_empty = || match std::fs::read_dir(path) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) => error.kind() == ErrorKind::PermissionDenied,
    };
    std::fs::metadata(path).is_ok_and(|it| it.mode() & 0o777 & !OF_OTHERS == HOLDING_MODE) && is_empty()
}

/// Returns whose run holds a place that no run of the caller's holds: each has a lock on the folder.
fn held_by_others(path: &Path) -> Option<String> {
    let owner = std::fs::metadata(path).ok()?.uid();
    let is_held = match File::open(path) {
        Ok(folder) => matches!(folder.try_lock(), Err(TryLockError::WouldBlock)),
        Err(error) => error.kind() == ErrorKind::PermissionDenied,
    };
    is_held.then(|| match owner == rustix::process::geteuid().as_raw() {
        true => "a run that is none of yours".into(),
        false => format!("a run of user {owner}"),
    })
}

/// Returns the runs that go on with a folder as their writable workspace, and so hold the place of a policy there.
fn runs_at(state: &StateDirectory, folder: &Path) -> Vec<String> {
    let is_there = |record: &RunRecord| {
        let is_writable = record.writable.contains(&record.workspace);
        record.state == RunState::Running && record.workspace == folder && is_writable
    };
    let records = RunRecord::list(state).unwrap_or_default();
    records.into_iter().filter(is_there).map(|record| record.id).collect()
}

#[cfg(test)]
mod tests {
    use std::fs::DirBuilder;
    use std::os::unix::fs::DirBuilderExt;

    use super::*;
    use crate::command::state_below;

    #[test]
    fn a_folder_that_no_run_holds_is_told_as_ones_own() {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().join("state");
        let state = state_below(&home);
        let told = |path: &Path| {
            let error = refusal(&state, "lockgate.toml", path);
            format!("{error}; {}", crate::exit::code_and_remedy(&error).1.unwrap_or_default())
        };
        for (mode, words) in [
            (HOLDING_MODE, "no run that goes on holds"),
            (0o555, "remove the folder"),
            (0o755, "is a folder"),
        ] {
            let path = folder.path().join(format!("{mode:o}"));
            DirBuilder::new().mode(mode).create(&path).unwrap();
            assert!(told(&path).contains(words), "{}", told(&path));
        }
        // Another user's run has a lock of its own, and no record that the caller sees.
        let path = folder.path().join("555");
        let theirs = File::open(&path).unwrap();
        theirs.lock_shared().unwrap();
        assert!(told(&path).contains("a run that is none of yours goes on here"), "{}", told(&path));
        assert!(!told(&path).contains("remove the folder"), "{}", told(&path));
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(61_001), None).unwrap();
            assert!(told(&path).contains("a run of user 61001 goes on here"), "{}", told(&path));
        }
    }
}
