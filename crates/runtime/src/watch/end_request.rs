//! What a signal that asks for an end does to a command: Ctrl-C asks once and kills the second time, unless it is the same press of the
//! key: a wrapper may pass on what the kernel gave the whole group already. The other signals of a supervisor ask, however often they
//! come: `timeout` of coreutils signals its child, and then the group of that child.

use std::time::{Duration, Instant};

use crate::end_signals::SIGINT;

/// How long a command that was asked to end may take before it is killed.
pub(super) const GRACE: Duration = Duration::from_secs(5);
/// Within what time two signals are of one press of Ctrl-C. Nobody presses it twice as fast.
const ONE_PRESS: Duration = Duration::from_millis(100);

/// That the command was asked to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EndRequest {
    /// The signal that asked last.
    pub(super) signal: i32,
    /// When that was.
    pub(super) asked_at: Instant,
    /// When it is killed. A command may answer Ctrl-C by going on, and is then not killed for having been asked once.
    pub(super) kill_at: Option<Instant>,
}

impl EndRequest {
    /// Returns the request after a signal asks as well, which takes no time from the one before and adds none.
    pub(super) fn next(before: Option<Self>, signal: i32, now: Instant) -> Self {
        let due = before.and_then(|before| before.kill_at);
        let kill_at = due.into_iter().chain((signal != SIGINT).then(|| now + GRACE)).min();
        Self { signal, asked_at: now, kill_at }
    }

    /// Whether a signal kills a command that was asked already.
    pub(super) fn is_killed_by(self, signal: i32) -> bool {
        self.signal == SIGINT && signal == SIGINT
    }

    /// Whether a signal is of the same press of the key as the last one, and asks for nothing.
    pub(super) fn is_repeated_by(self, signal: i32, now: Instant) -> bool {
        self.is_killed_by(signal) && now.saturating_duration_since(self.asked_at) < ONE_PRESS
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::end_signals::{SIGHUP, SIGQUIT, SIGTERM};

    #[test]
    fn only_ctrl_c_kills_the_second_time() {
        let begin = Instant::now();
        let asked = |signal| EndRequest::next(None, signal, begin);
        assert!(asked(SIGINT).is_killed_by(SIGINT));
        for signal in [SIGTERM, SIGHUP, SIGQUIT] {
            for again in [SIGTERM, SIGHUP, SIGQUIT, SIGINT] {
                assert!(!asked(signal).is_killed_by(again), "{signal} {again}");
            }
            assert!(!asked(SIGINT).is_killed_by(signal), "{signal}");
        }
    }

    #[test]
    fn what_comes_at_once_is_the_same_press_of_the_key() {
        let begin = Instant::now();
        let after = |milliseconds| begin + Duration::from_millis(milliseconds);
        let asked = EndRequest::next(None, SIGINT, begin);
        assert!(asked.is_repeated_by(SIGINT, after(2)) && !asked.is_repeated_by(SIGINT, after(150)));
        for signal in [SIGTERM, SIGHUP, SIGQUIT] {
            assert!(!asked.is_repeated_by(signal, after(2)), "{signal}");
            assert!(!EndRequest::next(None, signal, begin).is_repeated_by(SIGINT, after(2)), "{signal}");
        }
    }

    #[test]
    fn whatever_asks_again_leaves_the_time_as_it_is() {
        let begin = Instant::now();
        let later = begin + Duration::from_secs(2);
        let due = Some(begin + GRACE);
        for signal in [SIGTERM, SIGHUP, SIGQUIT, SIGINT] {
            let again = EndRequest::next(Some(EndRequest::next(None, SIGTERM, begin)), signal, later);
            assert_eq!(again, EndRequest { signal, asked_at: later, kill_at: due });
        }
        let once = EndRequest::next(None, SIGINT, begin);
        assert_eq!(once.kill_at, None);
        assert_eq!(EndRequest::next(Some(once), SIGTERM, later).kill_at, Some(later + GRACE));
    }
}
