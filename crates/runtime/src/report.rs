//! What is told while a run goes on, and what it came to.

use egress::{Notice, Summary};
use policy::RunId;
use sandbox::{Ended, Started};

use crate::ending::Ending;
use crate::record::Outcome;

/// What is told while a run goes on.
#[derive(Debug)]
pub enum Report<'a> {
    /// Something is weaker than it could be.
    Notice(&'a str),
    /// A request was denied; each target and guard is told once.
    Denied(&'a Notice),
    /// What the run wrote in its workspace is kept apart, for a person to decide.
    KeptApart(&'a RunId),
}

/// A run that is over.
#[derive(Clone, Debug)]
pub struct Finished {
    /// Its identifier.
    pub run: RunId,
    /// How its command ended.
    pub ending: Ending,
    /// What became of it, as it is on record.
    pub outcome: Outcome,
}

/// How the middle came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The command ended.
    Ended(Ended),
    /// Its time was over.
    TimedOut,
    /// It was asked to end, did not, and was made to.
    Killed(i32),
    /// The command could not be executed.
    NotExecuted(i32),
}

/// What a life came to, before it is written down.
pub(crate) struct Lived {
    pub(crate) end: End,
    pub(crate) summary: Option<Summary>,
    pub(crate) usage: Option<sandbox::Usage>,
    pub(crate) sandbox: Started,
}
