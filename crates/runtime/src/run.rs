//! One run, from the request to its outcome.

use crate::changes;
use crate::error::Error;
use crate::execute::execute;
use crate::plan_run::{RunRequest, plan_run};
use crate::report::{Finished, Report};
use crate::run_journal::RunJournal;

/// Runs a command to its end.
///
/// # Errors
/// When the sandbox or its sidecar could not be made or kept. Nothing half-made is left.
pub fn run(request: RunRequest, report: &mut dyn FnMut(Report<'_>)) -> Result<Finished, Error> {
    let (planned, inputs) = plan_run(request)?;
    let (state, run) = (&planned.state, &planned.plan.run);
    let mut journal = RunJournal::open(&planned)?;
    for notice in &planned.plan.notices {
        report(Report::Note(notice));
    }
    // Not before the run holds its lock: only then is somebody looking after what it leaves if it is killed.
    let prepared =
        if planned.keeps_apart() { changes::prepare(state, run, &planned.plan.workspace) } else { Ok(()) };
    let executed = prepared.and_then(|()| execute(&planned, inputs, &mut journal, report));
    journal.close(executed, report)
}
