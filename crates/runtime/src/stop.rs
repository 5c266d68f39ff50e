//! Ending a run from elsewhere: its own process is asked to, and takes everything with it as it would at its end.

use std::time::Duration;

use policy::RunId;

use crate::error::Error;
use crate::record::{RunRecord, RunState};
use crate::state::StateDirectory;

/// How long it may take: a command has five seconds to heed a signal, and an engine its own time to take containers away.
const PATIENCE: Duration = Duration::from_secs(30);

/// Asks a run that goes on to end, and waits until it has. Its process is known by its number and by when it was started.
///
/// # Errors
/// When it does not go on, its process cannot be told, or it goes on still.
pub fn stop(directory: &StateDirectory, run: &RunId) -> Result<(), Error> {
    let failed = |why| Error::Stop { run: run.to_string(), why };
    let record = RunRecord::read(directory, run)?;
    if record.state != RunState::Running || !directory.live().join(run.as_str()).exists() {
        return Err(failed("it is over already"));
    }
    let process = record.process.ok_or_else(|| failed("its record does not say which process it is"))?;
    if !process.ask_to_end(PATIENCE) {
        return Err(failed("it was asked to end, and goes on still"));
    }
    match RunRecord::read(directory, run)?.state {
        RunState::Running => Err(failed("its process cannot be seen from here")),
        _ => Ok(()),
    }
}
