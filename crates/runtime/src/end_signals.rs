//! The signals that ask for an end. Others, such as that of a terminal that changes its size, do not.

use sandbox::Signals;

pub(crate) const SIGHUP: i32 = 1;
pub(crate) const SIGINT: i32 = 2;
pub(crate) const SIGQUIT: i32 = 3;
pub(crate) const SIGTERM: i32 = 15;

/// Takes the pending signals, and returns whether one asks for an end.
pub(crate) fn is_end_asked(signals: &Signals) -> bool {
    while let Ok(Some(signal)) = signals.next() {
        if matches!(signal, SIGHUP | SIGINT | SIGQUIT | SIGTERM) {
            return true;
        }
    }
    false
}
