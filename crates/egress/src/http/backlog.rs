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
    /// When the first of them began to wait, or one last went on.
    since: Cell<Option<Instant>>,
}

/// A body that waits.
pub(super) struct Waiting<'a>(&'a Backlog);

impl Backlog {
    /// Whether bodies wait and none has gone on for [`BLOCKED`].
    pub(super) fn is_blocked(&self) -> bool {
        self.waiting.get() > 0 && self.since.get().is_some_and(|since| since.elapsed() >= BLOCKED)
    }

    /// Counts a body as waiting for as long as the value returned is held.
    pub(super) fn wait(&self) -> Waiting<'_> {
        if self.waiting.replace(self.waiting.get() + 1) == 0 {
            self.since.set(Some(Instant::now()));
        }
        Waiting(self)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.set(self.0.waiting.get() - 1);
        self.0.since.set(Some(Instant::now()));
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
        drop(second);
        assert!(!backlog.is_blocked(), "one has gone on");
        tokio::time::advance(BLOCKED).await;
        assert!(backlog.is_blocked());
        drop(first);
        tokio::time::advance(BLOCKED).await;
        assert!(!backlog.is_blocked(), "none waits");
    }
}
