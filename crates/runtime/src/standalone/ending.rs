//! How a sidecar alone ends: asked once, it finishes what is under way; asked again, or after its time, it ends at once.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::net::SendFlags;
use rustix::process::Signal;
use sandbox::Signals;

use crate::error::{Error, plumbing};

/// What the process that serves is told over its link, so that it takes nothing new.
const DRAIN: &[u8] = b"drain";
/// After how long it is told what is waited for.
const A_WHILE: Duration = Duration::from_millis(300);

/// No grace is longer.
const LONGEST: Duration = Duration::from_secs(30 * 86_400);

/// How far a sidecar is on the way to its end.
pub(super) struct Ending {
    grace: Duration,
    /// When it is told that something is waited for, and when what is left is cut.
    begun: Option<(Option<Instant>, Instant)>,
}

impl Ending {
    pub(super) fn with(grace: Duration) -> Self {
        Self { grace: grace.min(LONGEST), begun: None }
    }

    /// Whether it was asked for.
    pub(super) fn has_begun(&self) -> bool {
        self.begun.is_some()
    }

    /// How long may be waited for something else.
    pub(super) fn left(&self) -> Option<Duration> {
        let (told, until) = self.begun?;
        let left = told.unwrap_or(until).min(until).saturating_duration_since(Instant::now());
        // Not a moment too early: a wait is rounded down.
        Some(left + Duration::from_millis(1))
    }

    /// How long the rest has, the first time that it takes a while.
    pub(super) fn takes_a_while(&mut self) -> Option<Duration> {
        let (told, until) = self.begun.as_mut()?;
        told.take_if(|at| *at <= Instant::now())?;
        Some(until.saturating_duration_since(Instant::now()))
    }

    /// Whether the time for what was under way is over.
    pub(super) fn is_due(&self) -> bool {
        self.begun.is_some_and(|(_, until)| until <= Instant::now())
    }

    /// Takes the signals that came; whether they say to end at once. A window that changes its size says nothing.
    pub(super) fn is_at_once(&mut self, stop: &Signals, link: &OwnedFd) -> Result<bool, Error> {
        while let Some(signal) = stop.next().map_err(plumbing("read signals"))? {
            match Signal::from_named_raw(signal) {
                Some(Signal::HUP | Signal::QUIT) => return Ok(true),
                Some(Signal::INT | Signal::TERM) if self.has_begun() || self.grace.is_zero() => {
                    return Ok(true);
                }
                Some(Signal::INT | Signal::TERM) => {
                    // Where it cannot be told it has gone, which is seen next.
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
