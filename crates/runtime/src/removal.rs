//! Removes a run from the record, with everything that is kept of it.

use policy::RunId;

use crate::changes::forget;
use crate::error::Error;
use crate::record::{RunRecord, refuse_running};
use crate::state::{StateDirectory, state};

impl RunRecord {
    /// Whether a run can be removed.
    ///
    /// # Errors
    /// When it is still running, or is not on record.
    pub fn check_removable(directory: &StateDirectory, run: &RunId) -> Result<(), Error> {
        refuse_running("remove", directory, run)
    }

    /// Removes a run from the record.
    ///
    /// # Errors
    /// When it is still running, is not on record, or cannot be removed.
    pub fn remove(directory: &StateDirectory, run: &RunId) -> Result<(), Error> {
        Self::check_removable(directory, run)?;
        forget(directory, run)?;
        // The audit goes first: a record without an audit can be removed again.
        let companions = directory.companion_audits(run).into_iter().map(|(_, path)| path);
        for path in companions.chain([directory.audit(run), directory.record(run)]) {
            match std::fs::remove_file(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(state(&path, error));
                }
                _ => {}
            }
        }
        Ok(())
    }
}
