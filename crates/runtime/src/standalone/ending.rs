//! The end of a sidecar that serves alone: at the first signal it finishes open exchanges; at the second, or when its time is up, it
//! ends at once.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::net::SendFlags;
use rustix::process::Signal;
use sandbox::Signals;

use crate::error::{Error, plumbing};

/// The message that tells the serving process to take nothing new.
const DRAIN: &[u8] = b"drain";
/// How long it may take before the person is told what is waited for.
const A_WHILE: Duration = Duration::from_millis(300);

/// The longest grace.
const LONGEST: Duration = Duration::from_secs(30 * 86_400);

/// The progress of a sidecar towards its end.
pub(super) struct Ending {
    grace: Duration,
    /// When the person is told of the wait, and when what is left is cut.
    begun: Option<(Option<Instant>, Instant)>,
}

impl Ending {
    pub(super) fn with(grace: Duration) -> Self {
        Self { grace: grace.min(LONGEST), begun: None }
    }

    /// Whether an end was asked for.
    pub(super) fn has_begun(&self) -> bool {
        self.begun.is_some()
    }

    /// Returns how long the caller may wait for something else.
    pub(super) fn left(&self) -> Option<Duration> {
        let (told, until) = self.begun?;
        let left = told.unwrap_or(until).min(until).saturating_duration_since(Instant::now());
        // Rounded up, for poll(2) rounds down.
        Some(left + Duration::from_millis(1))
    }

    /// Returns how long open exchanges still have, the first time that they take a while.
    pub(super) fn takes_a_while(&mut self) -> Option<Duration> {
        let (told, until) = self.begun.as_mut()?;
        told.take_if(|at| *at <= Instant::now())?;
        Some(until.saturating_duration_since(Instant::now()))
    }

    /// Whether the time for open exchanges is over.
    pub(super) fn is_due(&self) -> bool {
        self.begun.is_some_and(|(_, until)| until <= Instant::now())
    }

    /// Takes the signals that came, and returns whether they say to end at once. A change of the window's size says nothing.
    pub(super) fn is_at_once(&mut self, stop: &Signals, link: &OwnedFd) -> Result<bool, Error> {
        while let Some(signal) = stop.next().map_err(plumbing("read signals"))? {
            match Signal::from_named_raw(signal) {
                Some(Signal::HUP | Signal::QUIT) => return Ok(true),
                Some(Signal::INT | Signal::TERM) if self.has_begun() || self.grace.is_zero() => {
                    return Ok(true);
                }
                Some(Signal::INT | Signal::TERM) => {
                    // If it cannot be told, it is gone, which is seen next.
                    let _ = rustix::net::send(link, DRAIN, SendFlags::NOSIGNAL);
                    let now = Instant::now();
                    self.begun = Some((Some(now + A_WHILE), now + self.grace));
                }
                _ => {}
            }
        }
        Ok(false)
    }
}
