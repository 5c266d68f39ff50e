//! Why a run has no audit of its own.

use std::path::PathBuf;

use policy::RunId;
use runtime::{RunRecord, RunState, StateDirectory};

/// Why an audit is missing whose run came to its end.
pub(super) const REMOVED: &str = "its run ended, and it was removed";

/// Explains a missing audit of a run whose sidecar never served, and so never began one. If the run came to its end, somebody
/// removed the audit, and that stays an error.
pub(super) fn never_asked(state: &StateDirectory, run: &RunId) -> Option<&'static str> {
    let became = RunRecord::read(state, run).ok().map(|record| record.state);
    // A start that failed, as on a full disk, or was killed may have left the file without a record.
    let is_begun = |about: std::fs::Metadata| {
        about.len() > 0 || !matches!(became, Some(RunState::Failed | RunState::Lost))
    };
    if std::fs::metadata(state.audit(run)).is_ok_and(is_begun) {
        return None;
    }
    let companions = !recorded_companions(state, run).is_empty();
    match became? {
        RunState::Running => Some("made no requests yet"),
        RunState::Failed if companions => {
            Some("was over before its command began: what was recorded is of its companions alone")
        }
        RunState::Failed => Some("made no requests: it was over before its command began"),
        RunState::Lost if companions => Some(
            "has an audit of its companions alone: it was killed before it began its own, or somebody has removed that",
        ),
        RunState::Lost => Some("has none: it was killed before it began one, or somebody has removed it"),
        RunState::Ended => None,
    }
}

/// Returns the audits of a run's companions that have a record.
pub(super) fn recorded_companions(state: &StateDirectory, run: &RunId) -> Vec<(String, PathBuf)> {
    let mut all = state.companion_audits(run);
    all.retain(|(_, path)| std::fs::metadata(path).is_ok_and(|about| about.len() > 0));
    all
}
