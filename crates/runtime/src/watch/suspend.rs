//! Suspends a run whose command has no terminal of its own, as Ctrl-Z asks: what is inside is in no job of the caller's shell, and would
//! go on, and read what is typed at the shell's prompt.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use sandbox::TerminalStop;

use super::{GRACE, State, Watch};
use crate::streams::is_behind;

/// How often it is looked whether a run is in the foreground again: a shell does not say so to a job that it takes to be running.
const GLANCE: Duration = Duration::from_millis(100);

impl Watch<'_> {
    /// Stops everything inside and then this process, until it is continued. A process that nobody would continue goes on at once.
    pub(super) fn suspend(&self, state: &mut State) {
        // Asked for first: whoever continues this process while what is inside is being stopped takes it back.
        let Ok(Some(stop)) = TerminalStop::ask() else { return };
        state.suspended.get_or_insert_with(Instant::now);
        self.sandbox.suspend();
        let _ = stop.carry_out();
    }

    /// Continues what is inside a suspended run. A command that has the terminal to read from goes on in the foreground only.
    pub(super) fn go_on(&mut self, state: &mut State) {
        let would_read = || self.streams.reads_terminal() && is_behind(std::io::stdin());
        let Some(since) = state.suspended.take_if(|_| !would_read()) else { return };
        self.sandbox.signal(Signal::CONT.as_raw());
        // Its time stood still.
        let took = since.elapsed();
        *self.clock.at_mut() += took;
        let kills = state.asked.iter_mut().filter_map(|asked| asked.kill_at.as_mut());
        kills.for_each(|at| *at = put_off(*at, since, took));
    }

    /// Returns how long may be waited at once, of the time that is `left`, which stands still while the run is suspended.
    pub(super) fn patience(state: &State, left: Duration) -> Duration {
        if state.suspended.is_some() { GLANCE } else { left.max(Duration::from_millis(1)) }
    }
}

/// Puts off when a command is killed by the time that a suspension took, unless it was asked to end since that began: it had no time yet.
fn put_off(kill_at: Instant, since: Instant, took: Duration) -> Instant {
    if kill_at < since + GRACE { kill_at + took } else { kill_at }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_end_that_was_asked_for_before_a_suspension_is_put_off_by_it() {
        let (since, took) = (Instant::now(), Duration::from_secs(3600));
        let before = since + GRACE - Duration::from_secs(2);
        assert_eq!(put_off(before, since, took), before + took);
        for asked_after in [Duration::ZERO, Duration::from_secs(1800), took] {
            let kill_at = since + asked_after + GRACE;
            assert_eq!(put_off(kill_at, since, took), kill_at);
        }
    }
}
