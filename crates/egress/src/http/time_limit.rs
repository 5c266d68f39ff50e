//! How long work of an exchange may take, and the error that says what has not come by then.

use std::io;
use std::pin::Pin;
use std::time::Duration;

use policy::Host;
use tokio::time::Instant;

/// When an upstream must have answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline<'a> {
    within: Duration,
    until: Instant,
    host: &'a Host,
}

impl<'a> Deadline<'a> {
    /// Begins now.
    pub(super) fn from_now(within: Duration, host: &'a Host) -> Self {
        Self { within, until: Instant::now() + within, host }
    }
}

/// What must have come of an upstream by a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Awaited {
    /// The beginning of its answer.
    Answer,
    /// All of its answer.
    WholeAnswer,
}

/// Runs work that must be done by a deadline, if there is one. The agent may have been late with its request, so nobody is blamed.
pub(super) async fn by_deadline<T>(
    deadline: Option<Deadline<'_>>,
    awaited: Awaited,
    work: Pin<&mut impl Future<Output = io::Result<T>>>,
) -> io::Result<T> {
    let Some(Deadline { within, until, host }) = deadline else { return work.await };
    tokio::time::timeout_at(until, work).await.unwrap_or_else(|_| {
        let what = match awaited {
            Awaited::Answer => "no answer",
            Awaited::WholeAnswer => "no whole answer",
        };
        let why = format!("{what} of {host} came within {} s", within.as_secs());
        Err(io::Error::new(io::ErrorKind::TimedOut, why))
    })
}
