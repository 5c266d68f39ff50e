//! Suspends a run whose command has no terminal of its own, as Ctrl-Z asks: what is inside is in no job of the caller's shell, and would
//! go on, and read what is typed at the shell's prompt.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use rustix::process::{Signal, getpid, kill_process};
use sandbox::Started;

use crate::streams::is_behind;

/// Stops everything inside and then this process, until it is continued, and returns how long that took. A command that has the terminal
/// to read from goes on only in the foreground.
pub(crate) fn suspend(sandbox: &Started, reads_terminal: bool) -> Duration {
    let began = Instant::now();
    sandbox.signal(Signal::STOP.as_raw());
    loop {
        if kill_process(getpid(), Signal::STOP).is_err() {
            break;
        }
        let stdin = std::io::stdin();
        if !(reads_terminal && stdin.is_terminal() && is_behind(&stdin)) {
            break;
        }
    }
    sandbox.signal(Signal::CONT.as_raw());
    began.elapsed()
}
