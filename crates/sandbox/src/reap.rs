//! What a run left when its process was killed: read from its undo log and given back.

use std::io;
use std::path::Path;

use crate::undo::UndoLog;

/// Unwinds the undo log at `path`. A log that is not there has nothing to undo.
///
/// # Errors
/// When the log cannot be read. What could not be given back is in the answer.
pub fn reap(path: &Path) -> io::Result<Vec<String>> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(UndoLog::recover(&text).unwind()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}
