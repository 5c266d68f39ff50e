//! Reports of a run while it goes on, and its result.

use egress::{Notice, Summary};
use policy::RunId;
use sandbox::{Exit, Sidecar, Started};

use crate::ending::Ending;
use crate::record::Outcome;

/// A report while a run goes on.
#[derive(Debug)]
pub enum Report<'a> {
    /// A sentence for the person, as of what is weaker than it could be.
    Note(&'a str),
    /// A request was denied, or was allowed and failed; reported once for each target and guard.
    Notice(&'a Notice),
    /// The run's changes to its workspace are kept apart, for a person to decide on.
    KeptApart(&'a RunId),
}

/// A run that is over.
#[derive(Clone, Debug)]
pub struct Finished {
    /// Its identifier.
    pub run: RunId,
    /// How its command ended.
    pub ending: Ending,
    /// The outcome, as it is on record.
    pub outcome: Outcome,
}

/// Why the wait for the command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommandEnd {
    /// The command ended.
    Ended(Exit),
    /// The command exceeded its time.
    TimedOut,
    /// The command was asked to end by this signal, did not, and was killed.
    Killed(i32),
    /// The command could not be executed.
    NotExecuted(i32),
}

/// The result of executing a run, before it is written down.
pub(crate) struct ExecutedRun {
    pub(crate) end: CommandEnd,
    pub(crate) summary: Option<Summary>,
    pub(crate) usage: Option<sandbox::Usage>,
    pub(crate) sandbox: Started,
    pub(crate) sidecar: Sidecar,
}
