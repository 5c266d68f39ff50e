//! The time that an exchange may take, and the error that says what has not come by then: the upstream's answer, or the agent's request.

use std::io;
use std::pin::Pin;
use std::time::Duration;

use policy::{Host, Target};
use tokio::time::Instant;

/// How long an exchange may take, and when that is over.
#[derive(Clone, Copy, Debug)]
pub(super) struct TimeLimit {
    within: Duration,
    until: Instant,
}

impl TimeLimit {
    pub(super) fn from_now(within: Duration) -> Self {
        Self { within, until: Instant::now() + within }
    }

    /// Runs what reads a request's body, which must have come by then.
    pub(super) async fn hold_for_body<T>(self, reads: impl Future<Output = T>) -> Result<T, TooLate> {
        tokio::time::timeout_at(self.until, reads).await.map_err(|_| TooLate::Body(self.within))
    }

    /// The same limit, for the answer of an upstream.
    pub(super) fn of_answer(self, target: &Target) -> Deadline<'_> {
        Deadline { limit: self, host: target.host() }
    }
}

/// When an upstream must have answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline<'a> {
    limit: TimeLimit,
    host: &'a Host,
}

/// What an upstream must have done by a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Awaited {
    /// It has begun to answer.
    Answer,
    /// Its answer has come to its end.
    WholeAnswer,
}

/// Runs work that must be done by a deadline, if there is one.
pub(super) async fn by_deadline<T>(
    deadline: Option<Deadline<'_>>,
    awaited: Awaited,
    work: Pin<&mut impl Future<Output = io::Result<T>>>,
) -> io::Result<T> {
    let Some(Deadline { limit: TimeLimit { within, until }, host }) = deadline else { return work.await };
    tokio::time::timeout_at(until, work).await.unwrap_or_else(|_| {
        let host = host.to_string();
        Err(match awaited {
            Awaited::Answer => TooLate::Answer { host, within },
            Awaited::WholeAnswer => TooLate::WholeAnswer { host, within },
        }
        .into())
    })
}

/// The time of an exchange was over before this had come.
#[derive(Debug, thiserror::Error)]
pub(super) enum TooLate {
    #[error("{host} gave no answer within {} s", within.as_secs())]
    Answer { host: String, within: Duration },
    #[error("{host} gave no whole answer within {} s", within.as_secs())]
    WholeAnswer { host: String, within: Duration },
    #[error("The request body did not come whole within {} s", .0.as_secs())]
    Body(Duration),
}

impl From<TooLate> for io::Error {
    fn from(late: TooLate) -> Self {
        Self::new(io::ErrorKind::TimedOut, late)
    }
}

impl TooLate {
    /// Tells an error of an answer that has not begun for what it is where the upstream had not the whole request: the agent was late.
    pub(super) fn blame_agent(error: &mut io::Error) {
        if let Some(&Self::Answer { within, .. }) = Self::inside(error) {
            *error = Self::Body(within).into();
        }
    }

    /// Whether it was the agent who was late.
    pub(super) fn is_of_body(error: &io::Error) -> bool {
        matches!(Self::inside(error), Some(Self::Body(_)))
    }

    fn inside(error: &io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }
}
