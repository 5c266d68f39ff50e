//! Stops a run from another process: its own process is asked to end, and takes everything of the run away as at any end.

use std::time::Duration;

use policy::RunId;

use crate::error::Error;
use crate::lock_file;
use crate::record::{RunRecord, RunState};
use crate::state::StateDirectory;

/// How long stopping may take: a command has five seconds to heed a signal, and an engine its own time to take containers away.
const PATIENCE: Duration = Duration::from_secs(30);

/// Asks a running run to end, and waits until it has. The process is identified by its number and its start time.
///
/// # Errors
/// When it is not running, its process cannot be identified, or it is still running after that time.
pub fn stop(directory: &StateDirectory, run: &RunId) -> Result<(), Error> {
    let failed = |why| Error::Stop { run: run.to_string(), why };
    let record = RunRecord::read(directory, run)?;
    let lock = directory.live().join(run.as_str());
    if record.state != RunState::Running {
        return Err(Error::AlreadyEnded { run: run.to_string() });
    }
    let process = record.process.ok_or_else(|| failed("its record does not say which process it is"))?;
    // Only the process of the run holds its lock while the record says that it runs.
    let is_alive = || lock.exists() && !lock_file::is_abandoned(&lock);
    if !process.ask_to_end(PATIENCE, is_alive) {
        return Err(failed("it was asked to end, and goes on still"));
    }
    match RunRecord::read(directory, run)?.state {
        RunState::Running => Err(failed("its process cannot be seen from here")),
        _ => Ok(()),
    }
}
