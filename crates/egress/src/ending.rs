//! Counts the exchanges under way, so that a draining sidecar can end when none is left.

use std::cell::Cell;

use tokio::sync::Notify;

/// The number of exchanges under way, and the stage of the sidecar's end.
#[derive(Debug, Default)]
pub(crate) struct Ending {
    under_way: Cell<usize>,
    stage: Cell<Stage>,
    none_left: Notify,
    begun: Notify,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Serving,
    /// Exchanges under way go on, and none begins.
    Draining,
    /// Exchanges under way are cut.
    Over,
}

impl Ending {
    /// Counts an exchange as under way until the guard is dropped.
    pub(crate) fn begin(&self) -> UnderWay<'_> {
        self.enter();
        UnderWay(self)
    }

    /// Counts an exchange as under way until [`Ending::leave`].
    pub(crate) fn enter(&self) {
        self.under_way.set(self.under_way.get() + 1);
    }

    /// Ends what [`Ending::enter`] began.
    pub(crate) fn leave(&self) {
        let left = self.under_way.get() - 1;
        self.under_way.set(left);
        if left == 0 && self.stage.get() == Stage::Draining {
            self.none_left.notify_one();
        }
    }

    /// Whether no exchange may begin any more.
    pub(crate) fn has_begun(&self) -> bool {
        self.stage.get() != Stage::Serving
    }

    /// Waits until no exchange may begin any more.
    pub(crate) async fn begun(&self) {
        let begun = self.begun.notified();
        if !self.has_begun() {
            begun.await;
        }
    }

    /// Whether exchanges under way are cut.
    pub(crate) fn is_over(&self) -> bool {
        self.stage.get() == Stage::Over
    }

    /// Lets no exchange begin, and waits until none is under way.
    pub(crate) async fn drain(&self) {
        self.stage.set(Stage::Draining);
        self.begun.notify_waiters();
        while self.under_way.get() > 0 {
            self.none_left.notified().await;
        }
    }

    /// Marks the exchanges that are still under way as cut.
    pub(crate) fn end(&self) {
        self.stage.set(Stage::Over);
    }
}

/// Guard of an exchange under way.
pub(crate) struct UnderWay<'a>(&'a Ending);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}
