//! Removes a run from the record, with everything that is kept of it.

use policy::RunId;

use crate::changes::{forget, refuse_decided};
use crate::error::Error;
use crate::record::{RunRecord, refuse_running};
use crate::run_lock::{give_up, take_away};
use crate::state::{StateDirectory, state_error};
use crate::still_there::{Act, StillThere};

impl RunRecord {
    /// Whether a run can be removed. What a killed one left is taken away first.
    ///
    /// # Errors
    /// When it is still running or being applied, what it left cannot be taken away, as from an engine that does not answer, or it is not on
    /// record.
    pub fn check_removable(directory: &StateDirectory, run: &RunId) -> Result<(), Error> {
        refuse_decided(Act::Remove, directory, run)?;
        let left_behind = |why| Error::LeftBehind { what: Act::Remove, run: run.to_string(), why };
        match refuse_running(Act::Remove, directory, run) {
            // Whoever reaped it last has just tried.
            Ok(()) if directory.live().join(run.as_str()).exists() => match known_rest(directory, run) {
                Some(why) => Err(left_behind(StillThere::Because(why))),
                None => take_away(directory, run).map_err(left_behind),
            },
            Err(Error::LeftBehind { .. }) => take_away(directory, run).map_err(left_behind),
            found => found,
        }
    }

    /// Whether a run can be removed once all that it left and that cannot be taken away is given up.
    ///
    /// # Errors
    /// When it is still running or being applied, or is not on record.
    pub fn check_removable_by_force(directory: &StateDirectory, run: &RunId) -> Result<(), Error> {
        match Self::check_removable(directory, run) {
            Err(Error::LeftBehind { why: StillThere::Because(_), .. }) => Ok(()),
            found => found,
        }
    }

    /// Gives up all that a run left and that cannot be taken away, so that the run can be removed. Returns what may still be there: nothing
    /// else tells of it from then on.
    ///
    /// # Errors
    /// When it is still running, or is not on record.
    pub fn give_up_rest(directory: &StateDirectory, run: &RunId) -> Result<Vec<String>, Error> {
        Self::check_removable_by_force(directory, run)?;
        give_up(directory, run)
    }

    /// Removes a run from the record.
    ///
    /// # Errors
    /// When it is still running, is not on record, or cannot be removed.
    pub fn remove(directory: &StateDirectory, run: &RunId) -> Result<(), Error> {
        Self::check_removable(directory, run)?;
        // Asked before anything goes: nothing else would tell of what is not found now.
        let companions = directory.companion_audits(run)?.into_iter().map(|(_, path)| path);
        forget(directory, run)?;
        // The audit goes first: a record without an audit can be removed again.
        for path in companions.chain([directory.audit(run), directory.record(run)]) {
            match std::fs::remove_file(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(state_error(&path, error));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Returns what is still there of a run that is over, and why.
fn known_rest(directory: &StateDirectory, run: &RunId) -> Option<String> {
    let record = RunRecord::read_as_written(directory, run).ok()?;
    record.leftover.filter(|left| !left.is_gone).map(|left| left.why)
}
