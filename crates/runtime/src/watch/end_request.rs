//! What a signal that asks for an end does to a command: Ctrl-C asks once and kills the second time. The other signals of a supervisor
//! ask, however often they come: `timeout` of coreutils signals its child, and then the group of that child.

use std::time::{Duration, Instant};

use crate::end_signals::SIGINT;

/// How long a command that was asked to end may take before it is killed.
pub(super) const GRACE: Duration = Duration::from_secs(5);

/// That the command was asked to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EndRequest {
    /// The signal that asked last.
    pub(super) signal: i32,
    /// When it is killed. A command may answer Ctrl-C by going on, and is then not killed for having been asked once.
    pub(super) kill_at: Option<Instant>,
}

impl EndRequest {
    /// Returns the request after a signal asks as well, which takes no time from the one before and adds none.
    pub(super) fn next(before: Option<Self>, signal: i32, now: Instant) -> Self {
        let due = before.and_then(|before| before.kill_at);
        let kill_at = due.into_iter().chain((signal != SIGINT).then(|| now + GRACE)).min();
        Self { signal, kill_at }
    }

    /// Whether a signal kills a command that was asked already.
    pub(super) fn is_killed_by(self, signal: i32) -> bool {
        self.signal == SIGINT && signal == SIGINT
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
    fn whatever_asks_again_leaves_the_time_as_it_is() {
        let begin = Instant::now();
        let later = begin + Duration::from_secs(2);
        let due = Some(begin + GRACE);
        for signal in [SIGTERM, SIGHUP, SIGQUIT, SIGINT] {
            let again = EndRequest::next(Some(EndRequest::next(None, SIGTERM, begin)), signal, later);
            assert_eq!(again, EndRequest { signal, kill_at: due });
        }
        let once = EndRequest::next(None, SIGINT, begin);
        assert_eq!(once.kill_at, None);
        assert_eq!(EndRequest::next(Some(once), SIGTERM, later).kill_at, Some(later + GRACE));
    }
}
