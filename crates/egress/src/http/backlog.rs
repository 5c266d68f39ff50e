//! Counts the bodies of one session that wait for its upstream to take more of them. One that the upstream leaves unread may have filled
//! the window that all of them share (RFC 9113 §5.2.1), and any further body would wait with them.

use std::cell::Cell;
use std::time::Duration;

use tokio::time::Instant;

/// How long bodies may wait without any going on before others go elsewhere. An upstream that reads gives its window back sooner.
const BLOCKED: Duration = Duration::from_millis(500);

/// The bodies of one session that wait.
#[derive(Default)]
pub(crate) struct Backlog {
    waiting: Cell<usize>,
    /// Since when none has gone on: when the first of them began to wait, or one last went on.
    since: Cell<Option<Instant>>,
}

/// A body that waits. Dropped, it has given up, and what the others sent may still fill the window.
pub(super) struct Waiting<'a>(&'a Backlog);

impl Backlog {
    /// Whether bodies have waited for [`BLOCKED`] and none has gone on since.
    pub(super) fn is_blocked(&self) -> bool {
        self.since.get().is_some_and(|since| since.elapsed() >= BLOCKED)
    }

    /// Counts a body as waiting for as long as the value returned is held.
    pub(super) fn wait(&self) -> Waiting<'_> {
        self.waiting.set(self.waiting.get() + 1);
        self.since.set(self.since.get().or_else(|| Some(Instant::now())));
        Waiting(self)
    }
}

impl Waiting<'_> {
    /// Says that the upstream takes more of the body.
    pub(super) fn goes_on(self) {
        self.0.since.set(Some(Instant::now()));
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.set(self.0.waiting.get() - 1);
        if self.0.waiting.get() == 0 && !self.0.is_blocked() {
            self.0.since.set(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn bodies_are_blocked_while_none_of_them_goes_on() {
        let backlog = Backlog::default();
        let first = backlog.wait();
        tokio::time::advance(BLOCKED / 2).await;
        let second = backlog.wait();
        assert!(!backlog.is_blocked());
        tokio::time::advance(BLOCKED / 2).await;
        assert!(backlog.is_blocked());
        second.goes_on();
        assert!(!backlog.is_blocked(), "one has gone on");
        tokio::time::advance(BLOCKED).await;
        assert!(backlog.is_blocked());
        first.goes_on();
        tokio::time::advance(BLOCKED).await;
        assert!(!backlog.is_blocked(), "none waits");
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_gives_up_unblocks_nothing() {
        let backlog = Backlog::default();
        drop(backlog.wait());
        tokio::time::advance(BLOCKED).await;
        assert!(!backlog.is_blocked(), "it did not wait for long");
        let body = backlog.wait();
        tokio::time::advance(BLOCKED).await;
        drop(body);
        assert!(backlog.is_blocked(), "nothing has gone on");
        // One that had begun meanwhile.
        backlog.wait().goes_on();
        tokio::time::advance(BLOCKED).await;
        assert!(!backlog.is_blocked());
    }
}
