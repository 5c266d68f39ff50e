//! Waits for the two directions of a connection that is carried between two peers: one of them outlives the other for a while.

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use tokio::time::Instant;

/// How long one direction may be idle when the other has ended. A half-closed connection would hold its slot for nobody.
pub(crate) const HALF_CLOSED: Duration = Duration::from_secs(600);
/// How long one direction may be idle when the other has failed.
pub(crate) const BROKEN: Duration = Duration::from_secs(5);

/// How both directions ended without an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// Both peers ended theirs.
    ByPeers,
    /// Nothing moved for too long.
    Idle,
}

/// One of the two peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    First,
    Second,
}

impl Side {
    fn other(self) -> Self {
        match self {
            Self::First => Self::Second,
            Self::Second => Self::First,
        }
    }
}

/// How one direction failed.
#[derive(Debug)]
pub(crate) enum Failed {
    /// Its peer is gone: nothing more can be read.
    Reading(io::Error),
    /// Nothing more can be written, or must.
    Writing(io::Error),
}

impl Failed {
    /// Tells which peer the direction from `from` failed at.
    pub(crate) fn at(self, from: Side) -> Broken {
        match self {
            Self::Reading(error) => Broken { is_over: is_gone(&error), by: from, error },
            Self::Writing(error) => Broken { is_over: is_cut(&error), by: from.other(), error },
        }
    }
}

/// A connection that one of its peers broke off.
#[derive(Debug)]
pub(crate) struct Broken {
    pub(crate) by: Side,
    pub(crate) error: io::Error,
    /// Whether nothing more can pass, either way.
    pub(crate) is_over: bool,
}

impl Broken {
    /// Whether the peer is gone without an end to what it said.
    pub(crate) fn is_reset(&self) -> bool {
        is_gone(&self.error)
    }
}

/// A peer that only takes no more may have ended before. A proxy's TLS may end without `close_notify`.
fn is_gone(error: &io::Error) -> bool {
    !matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::UnexpectedEof)
}

/// Whether a connection was cut that its peers did not end: one of them stalls, or what it says must not pass.
pub(crate) fn is_cut(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::InvalidData)
}

/// Waits for both directions. The other goes on for a while when one has ended or failed: a peer that reads no more may have sent the
/// reason before. Both end where nothing has `moved` for `idle`, and at once where a peer is gone, or one stalls or carries what must not
/// pass.
///
/// One timer serves both. It is polled only when neither has moved, so a busy connection is woken by octets alone.
pub(crate) async fn both(
    there: impl Future<Output = Result<(), Failed>>,
    back: impl Future<Output = Result<(), Failed>>,
    moved: &Cell<Instant>,
    idle: Duration,
) -> Result<Ended, Broken> {
    let (mut there, mut back) = (pin!(there), pin!(back));
    let (mut is_there, mut is_back, mut failed) = (false, false, None::<Broken>);
    let mut due = moved.get() + idle;
    let mut timer = pin!(tokio::time::sleep_until(due));
    let mut is_set = false;
    poll_fn(|context| {
        let before = moved.get();
        let mut is_over = false;
        let mut end = |polled: Poll<Result<(), Failed>>, from: Side| {
            let Poll::Ready(outcome) = polled else { return false };
            moved.set(Instant::now()); // from now on the other one has its time
            if let Err(error) = outcome {
                let broken = error.at(from);
                is_over |= broken.is_over;
                // That one took no more is told unless the other, or itself, is gone.
                let is_first = failed.as_ref().is_none_or(|failed| broken.is_over && !failed.is_over);
                failed = if is_first { Some(broken) } else { failed.take() };
            }
            true
        };
        is_there = is_there || end(there.as_mut().poll(context), Side::First);
        is_back = is_back || end(back.as_mut().poll(context), Side::Second);
        if is_over || is_there && is_back {
            return Poll::Ready(failed.take().map_or(Ok(Ended::ByPeers), Err));
        }
        let rest = match (failed.is_some(), is_there || is_back) {
            (true, _) => BROKEN,
            (false, true) => HALF_CLOSED,
            (false, false) => idle,
        };
        let until = moved.get() + idle.min(rest);
        // A timer that is too early is reset when it fires, and not with every octet.
        if until < due {
            due = until;
            timer.as_mut().reset(due);
        } else if is_set && moved.get() > before && moved.get() < due {
            return Poll::Pending;
        }
        is_set = true;
        while timer.as_mut().poll(context).is_ready() {
            if until <= due {
                return Poll::Ready(failed.take().map_or(Ok(Ended::Idle), Err));
            }
            due = until;
            timer.as_mut().reset(due);
        }
        Poll::Pending
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_direction_outlives_the_other() {
        let moved = Cell::new(Instant::now());
        let after = |wait: Duration, outcome: Result<(), Failed>| async move {
            tokio::time::sleep(wait).await;
            outcome
        };
        let idle = HALF_CLOSED * 6;
        let reset = || Err(Failed::Writing(io::ErrorKind::ConnectionReset.into()));
        let gone = || Err(Failed::Reading(io::ErrorKind::ConnectionReset.into()));
        let cut = || Err(Failed::Reading(io::ErrorKind::UnexpectedEof.into()));
        let stalled = || Err(Failed::Writing(io::ErrorKind::TimedOut.into()));
        let soon = Duration::from_secs(1);
        for (there, back, long, kind) in [
            (after(soon, Ok(())), after(HALF_CLOSED / 2, Ok(())), HALF_CLOSED / 2, Ok(Ended::ByPeers)),
            (after(soon, reset()), after(BROKEN, Ok(())), BROKEN, Err(io::ErrorKind::ConnectionReset)),
            (after(soon, reset()), after(idle, Ok(())), soon + BROKEN, Err(io::ErrorKind::ConnectionReset)),
            (after(soon, gone()), after(idle, Ok(())), soon, Err(io::ErrorKind::ConnectionReset)),
            (after(soon, cut()), after(idle, Ok(())), soon + BROKEN, Err(io::ErrorKind::UnexpectedEof)),
            (after(soon, Ok(())), after(idle, Ok(())), soon + HALF_CLOSED, Ok(Ended::Idle)),
            (after(soon, stalled()), after(idle, Ok(())), soon, Err(io::ErrorKind::TimedOut)),
            (after(idle * 2, Ok(())), after(idle * 2, Ok(())), idle, Ok(Ended::Idle)),
        ] {
            let began = Instant::now();
            moved.set(began);
            let outcome = both(there, back, &moved, idle).await;
            assert_eq!(outcome.map_err(|broken| broken.error.kind()), kind);
            let took = began.elapsed();
            assert!(took >= long && took < long + Duration::from_secs(1), "{took:?} and not {long:?}");
        }
    }
}
