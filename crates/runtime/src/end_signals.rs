//! The signals that a run hears, and which of them ask for an end.

use rustix::process::Signal;
use sandbox::{Signals, TerminalStop};

pub(crate) const SIGHUP: i32 = Signal::HUP.as_raw();
pub(crate) const SIGINT: i32 = Signal::INT.as_raw();
pub(crate) const SIGQUIT: i32 = Signal::QUIT.as_raw();
pub(crate) const SIGTERM: i32 = Signal::TERM.as_raw();
pub(crate) const SIGCONT: i32 = Signal::CONT.as_raw();
pub(crate) const SIGTSTP: i32 = Signal::TSTP.as_raw();
pub(crate) const SIGWINCH: i32 = Signal::WINCH.as_raw();

/// Takes the pending signals, up to the first that asks for an end. Ctrl-Z stops this process, until it is continued.
pub(crate) fn end_asked(signals: &Signals) -> Option<i32> {
    while let Ok(Some(signal)) = signals.next() {
        if matches!(signal, SIGHUP | SIGINT | SIGQUIT | SIGTERM) {
            return Some(signal);
        }
        if signal == SIGTSTP
            && let Ok(Some(stop)) = TerminalStop::ask()
        {
            let _ = stop.carry_out();
        }
    }
    None
}
