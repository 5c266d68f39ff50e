//! The time that a command may take, and what becomes of it afterwards.

use std::time::Instant;

/// What the time of a command comes to next, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clock {
    /// It is asked to end.
    Runs(Instant),
    /// Its time is over, and it was asked to end. It is killed.
    TimedOut(Instant),
}

impl Clock {
    pub(super) fn at(self) -> Instant {
        let (Self::Runs(at) | Self::TimedOut(at)) = self;
        at
    }

    pub(super) fn at_mut(&mut self) -> &mut Instant {
        let (Self::Runs(at) | Self::TimedOut(at)) = self;
        at
    }

    pub(super) fn is_over(self) -> bool {
        matches!(self, Self::TimedOut(_))
    }
}
