//! Gives up the standard streams of a caller: a process that has nothing to say to that person holds `/dev/null` in their place. It never
//! closes them, because the next file that is opened would take their number.

use std::fs::OpenOptions;
use std::io;

use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};

/// Replaces stdin, stdout and stderr of this process.
pub(crate) fn take() -> io::Result<()> {
    let nothing = OpenOptions::new().read(true).write(true).open("/dev/null")?;
    dup2_stdin(&nothing)?;
    dup2_stdout(&nothing)?;
    dup2_stderr(&nothing)?;
    Ok(())
}
