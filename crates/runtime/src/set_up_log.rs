//! Writes down how the set-up commands of a run ended (S4.54).

use std::time::Duration;

use policy::{OnFailure, Setup};
use sandbox::{Exit, SetUpEnd};

use crate::record::SetUpRecord;

/// The set-up commands of a run, and the records of those that have ended.
pub(crate) struct SetUpLog<'a> {
    pub(crate) commands: &'a [Setup],
    pub(crate) records: &'a mut Vec<SetUpRecord>,
}

impl SetUpLog<'_> {
    /// Records how a command ended. Returns a notice for the person if it failed and the run goes on without it.
    pub(crate) fn note(&mut self, number: u32, end: SetUpEnd, took: Duration) -> Option<String> {
        let one = usize::try_from(number).ok().and_then(|number| self.commands.get(number))?;
        let (command, status, succeeded) = (one.name(), end.to_string(), end.succeeded());
        let told = match end {
            SetUpEnd::Ended(Exit::Code(code)) => format!("failed with exit code {code}"),
            _ => status.clone(),
        };
        let notice = (!succeeded && one.on_failure == OnFailure::GoOn)
            .then(|| format!("set-up command `{command}` {told}; the run continues"));
        let milliseconds = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        self.records.push(SetUpRecord { command, status, succeeded, milliseconds });
        notice
    }
}
