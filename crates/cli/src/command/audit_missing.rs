//! Why a run has no audit of its own.

use std::fs::Metadata;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use policy::RunId;
use runtime::{RunRecord, RunState, StateDirectory};

/// Why an audit is missing whose run came to its end.
pub(super) const REMOVED: &str = "its run ended, and it was removed";

/// Whether the record of a run that failed says that it had begun its own audit.
fn had_begun(state: &StateDirectory, run: &RunId) -> bool {
    RunRecord::read(state, run).is_ok_and(|it| it.audits.iter().any(|audit| audit.companion.is_none()))
}

/// Explains a missing audit of a run whose sidecar never served, and so never began one. If the run came to its end, somebody
/// removed the audit, and that stays an error.
///
/// # Errors
/// When it cannot be told whether an audit is there.
pub(super) fn never_asked(
    state: &StateDirectory,
    run: &RunId,
) -> Result<Option<&'static str>, anyhow::Error> {
    let became = RunRecord::read(state, run).ok().map(|record| record.state);
    // A start that failed, as on a full disk, or was killed may have left the file without a record.
    let is_begun =
        |about: Metadata| about.len() > 0 || !matches!(became, Some(RunState::Failed | RunState::Lost));
    if about(&state.audit(run))?.is_some_and(is_begun) {
        return Ok(None);
    }
    let companions = !recorded_companions(state, run)?.is_empty();
    let Some(became) = became else { return Ok(None) };
    Ok(match became {
        RunState::Running => Some("made no requests yet"),
        RunState::Failed if had_begun(state, run) => None,
        RunState::Failed if companions => {
            Some("was over before its command began: what was recorded is of its companions alone")
        }
        RunState::Failed => Some("made no requests: it was over before its command began"),
        RunState::Lost if companions => Some(
            "has an audit of its companions alone: it was killed before it began its own, or somebody has removed that",
        ),
        RunState::Lost => Some("has none: it was killed before it began one, or somebody has removed it"),
        RunState::Ended => None,
    })
}

/// Asks about the file of an audit. Returns `None` if there is none.
pub(super) fn about(audit: &Path) -> Result<Option<Metadata>, anyhow::Error> {
    match std::fs::metadata(audit) {
        Ok(about) => Ok(Some(about)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(anyhow::anyhow!("failed to look for the audit {}: {error}", audit.display())),
    }
}

/// Returns the audits of a run's companions that have a record.
pub(super) fn recorded_companions(
    state: &StateDirectory,
    run: &RunId,
) -> Result<Vec<(String, PathBuf)>, anyhow::Error> {
    let mut recorded = Vec::new();
    for (name, path) in state.companion_audits(run)? {
        if about(&path)?.is_some_and(|about| about.len() > 0) {
            recorded.push((name, path));
        }
    }
    Ok(recorded)
}
