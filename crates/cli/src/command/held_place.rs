//! What is told of a folder in the place of a policy. A run that goes on holds such a place by an empty folder.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use runtime::{RunRecord, RunState, StateDirectory};

use crate::exit::Usage;

/// The mode of the empty directory by which a run holds the name. See docs/sandbox.md.
const HOLDING_MODE: u32 = 0o500;

/// Returns the refusal to write a policy where a folder lies.
pub(super) fn refusal(state: &StateDirectory, name: &str, path: &Path) -> anyhow::Error {
    if !is_placeholder(path) {
        return Usage::error(format!("{name} is a folder"), "move it away, or name a file with --policy");
    }
    match runs_at(state, path.parent().unwrap_or(path)).as_slice() {
        [] => Usage::error(
            format!("{name} is an empty folder, and no run of yours that goes on holds its place"),
            "remove the folder, or name a file with --policy",
        ),
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
    std::fs::metadata(path).is_ok_and(|it| it.mode() & 0o777 == HOLDING_MODE)
        && std::fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none())
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
        for (mode, words) in [(HOLDING_MODE, "no run of yours that goes on holds"), (0o700, "is a folder")] {
            let path = folder.path().join(format!("{mode:o}"));
            DirBuilder::new().mode(mode).create(&path).unwrap();
            let told = refusal(&state, "lockgate.toml", &path).to_string();
            assert!(told.contains(words), "{told}");
        }
    }
}
