//! The signals that a run hears, and which of them ask for an end.

use sandbox::Signals;

pub(crate) const SIGHUP: i32 = 1;
pub(crate) const SIGINT: i32 = 2;
pub(crate) const SIGQUIT: i32 = 3;
pub(crate) const SIGTERM: i32 = 15;
pub(crate) const SIGCONT: i32 = 18;
pub(crate) const SIGTSTP: i32 = 20;
pub(crate) const SIGWINCH: i32 = 28;

/// Takes the pending signals, and returns whether one asks for an end.
pub(crate) fn is_end_asked(signals: &Signals) -> bool {
    while let Ok(Some(signal)) = signals.next() {
        if matches!(signal, SIGHUP | SIGINT | SIGQUIT | SIGTERM) {
            return true;
        }
    }
    false
}
