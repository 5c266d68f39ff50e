//! What a run left when its process was killed, or when nobody could take it away behind it: read from its undo log and given back.

use std::io::{self, Read};

use crate::undo::{UndoLog, why_left};

/// What unwinding the log of a run that is over came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unwound {
    /// What could not be given back.
    pub problems: Vec<String>,
    /// What the person should know of what was.
    pub told: Vec<String>,
    /// Why something was still there, where whoever took away behind the run said so.
    pub why_left: Option<String>,
}

/// Unwinds an undo log. It is obeyed, so whoever opened it has seen whose it is.
///
/// # Errors
/// When the log cannot be read. What could not be given back is in the answer.
pub fn reap(log: impl Read) -> io::Result<Unwound> {
    let log = io::read_to_string(log)?;
    let mut undo = UndoLog::recover(&log);
    let problems = undo.unwind();
    Ok(Unwound { problems, told: undo.told(), why_left: why_left(&log).map(str::to_owned) })
}
