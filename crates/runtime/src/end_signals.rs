//! The signals by which somebody would have an end: what else comes (a terminal that changes its size, say) is none.

use sandbox::Signals;

pub(crate) const SIGHUP: i32 = 1;
pub(crate) const SIGINT: i32 = 2;
pub(crate) const SIGQUIT: i32 = 3;
pub(crate) const SIGTERM: i32 = 15;

/// Takes the signals that have come: whether an end was asked for.
pub(crate) fn is_end_asked(signals: &Signals) -> bool {
    while let Ok(Some(signal)) = signals.next() {
        if matches!(signal, SIGHUP | SIGINT | SIGQUIT | SIGTERM) {
            return true;
        }
    }
    false
}
