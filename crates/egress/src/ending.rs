//! The end of a sidecar that lets what is under way come to its own: what that is, and when there is none left.

use std::cell::Cell;

use tokio::sync::Notify;

/// What is under way, and whether more may begin.
#[derive(Debug, Default)]
pub(crate) struct Ending {
    under_way: Cell<usize>,
    stage: Cell<Stage>,
    none_left: Notify,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Serving,
    /// What is under way goes on, and nothing new begins.
    Draining,
    /// Nothing goes on.
    Over,
}

impl Ending {
    /// Something begins, and is under way until what this gives is dropped.
    pub(crate) fn begin(&self) -> UnderWay<'_> {
        self.enter();
        UnderWay(self)
    }

    /// The same without a borrow: [`Ending::leave`] follows.
    pub(crate) fn enter(&self) {
        self.under_way.set(self.under_way.get() + 1);
    }

    pub(crate) fn leave(&self) {
        let left = self.under_way.get() - 1;
        self.under_way.set(left);
        if left == 0 && self.stage.get() == Stage::Draining {
            self.none_left.notify_one();
        }
    }

    /// Whether nothing new may begin.
    pub(crate) fn has_begun(&self) -> bool {
        self.stage.get() != Stage::Serving
    }

    /// Whether nothing goes on any more.
    pub(crate) fn is_over(&self) -> bool {
        self.stage.get() == Stage::Over
    }

    /// Lets nothing new begin, and waits until nothing is under way.
    pub(crate) async fn drain(&self) {
        self.stage.set(Stage::Draining);
        while self.under_way.get() > 0 {
            self.none_left.notified().await;
        }
    }

    /// Says that what is still under way is cut.
    pub(crate) fn end(&self) {
        self.stage.set(Stage::Over);
    }
}

/// Something that is under way.
pub(crate) struct UnderWay<'a>(&'a Ending);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}
