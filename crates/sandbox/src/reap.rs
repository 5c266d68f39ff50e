//! Gives back what a run left when its process was killed or could not clean up, according to its undo log.

use std::io::{self, Read};

use crate::undo::{UndoLog, why_left};

/// The result of unwinding the log of a run that is over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unwound {
    /// What could not be given back.
    pub problems: Vec<String>,
    /// Messages to the user about what was given back.
    pub told: Vec<String>,
    /// The reason why something was left, if the process that cleaned up after the run recorded one.
    pub why_left: Option<String>,
}

/// Unwinds an undo log. The log is obeyed, so the caller must have checked its owner.
///
/// # Errors
/// When the log cannot be read. What could not be given back is in the result.
pub fn reap(mut log: impl Read) -> io::Result<Unwound> {
    let mut octets = Vec::new();
    log.read_to_end(&mut octets)?;
    // A full disk may have cut the last line inside a character.
    let log = String::from_utf8_lossy(&octets);
    let mut undo = UndoLog::recover(&log);
    let problems = undo.unwind();
    Ok(Unwound { problems, told: undo.told(), why_left: why_left(&log).map(str::to_owned) })
}
