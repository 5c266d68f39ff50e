//! Waits for companions to begin and to become healthy. At an engine all begin at once, elsewhere one after the other; each is checked
//! from its own beginning on.
//!
//! ```text
//! making ── its command runs ──► begun ── it is well ──► well
//!    └── at an engine: its network is there ─► the next one can be made, which may have to reach it
//! ```
//! The shims at the engine limit how many are made at the same time.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use sandbox::{Event, HealthLine, Signals};

use super::health::{self, Health};
use super::running::{Companions, Running, Stage};
use super::wait::{readable, wait_for};
use crate::end_signals::end_asked;
use crate::error::Error;
use crate::report::Report;

impl Companions {
    /// Waits until the next one can be made: it may have to reach the last.
    pub(super) fn await_way(
        &mut self,
        signals: &Signals,
        report: &mut dyn FnMut(Report<'_>),
    ) -> Result<(), Error> {
        while self.0.last().is_some_and(|last| !last.has_way()) {
            self.attend(signals, report)?;
        }
        Ok(())
    }

    /// Waits until all are healthy.
    pub(super) fn await_health(
        &mut self,
        signals: &Signals,
        report: &mut dyn FnMut(Report<'_>),
    ) -> Result<(), Error> {
        while self.0.iter().any(|it| !matches!(it.stage, Stage::Well)) {
            self.attend(signals, report)?;
        }
        Ok(())
    }

    /// Takes the events of all of them, and checks those that have begun.
    fn attend(&mut self, signals: &Signals, report: &mut dyn FnMut(Report<'_>)) -> Result<(), Error> {
        let told = self.0.iter().filter(|it| !it.has_way()).map(|it| it.broker.as_fd());
        let waits: Vec<BorrowedFd<'_>> = self.descriptors().chain(told).chain([signals.as_fd()]).collect();
        wait_for(waits, health::PAUSE);
        heed(signals)?;
        for it in &mut self.0 {
            it.output.read();
            it.take_notices(report);
            it.go_on(report)?;
        }
        Ok(())
    }
}

impl Running {
    /// Whether another sidecar can be told how to reach it.
    fn has_way(&self) -> bool {
        match self.name_at_engine {
            Some(_) => self.place.is_some(),
            None => !matches!(self.stage, Stage::Making(_)),
        }
    }

    /// Returns a line for its health command, if it is checked by one.
    fn health_line(&self) -> io::Result<Option<HealthLine>> {
        match self.name_at_engine {
            Some(_) => self.broker.health_line_at_engine().map(Some),
            None => self.companion.probe.as_ref().map(|_| self.broker.health_line()).transpose(),
        }
    }

    fn go_on(&mut self, report: &mut dyn FnMut(Report<'_>)) -> Result<(), Error> {
        self.take_place();
        if let Stage::Making(until) = self.stage {
            return self.go_on_making(until, report);
        }
        if matches!(self.stage, Stage::Well) {
            self.hear_end(report);
            return Ok(());
        }
        if let Some(error) = self.ended_early() {
            return Err(error);
        }
        let Stage::Begun(health, since) = &mut self.stage else { return Ok(()) };
        health.look(&self.broker);
        if health.is_well() {
            self.stage = Stage::Well;
        } else if since.elapsed() > self.companion.patience.duration() {
            let why = format!("it was not healthy within {}: {}", self.companion.patience, health.why());
            return Err(self.lost(&why));
        }
        Ok(())
    }

    /// Takes its network, once the engine has made it: the first message on its line.
    fn take_place(&mut self) {
        if let (Some(name), None) = (&self.name_at_engine, &self.place)
            && readable(self.broker.as_fd())
            // If the shim is gone, its last message tells why.
            && let Ok(network) = self.broker.network()
        {
            self.place = Some((name.clone(), network));
        }
    }

    fn go_on_making(&mut self, until: Instant, report: &mut dyn FnMut(Report<'_>)) -> Result<(), Error> {
        if !readable(self.sandbox.events()) {
            return if Instant::now() < until { Ok(()) } else { Err(self.lost("it did not begin in time")) };
        }
        match self.sandbox.next_event() {
            Ok(Some(Event::Started { notices, .. })) => {
                for notice in &notices {
                    report(Report::Note(&format!("companion `{}`: {notice}", self.companion.name)));
                }
                let line = self.health_line().map_err(|source| self.lost(&source.to_string()))?;
                let health = Health::of(&self.companion, self.image_health.as_ref(), line);
                self.stage = Stage::Begun(health, Instant::now());
                Ok(())
            }
            Ok(Some(Event::Failed(failure))) => Err(self.lost(&sandbox::Error::Step(failure).to_string())),
            Ok(Some(Event::NotExecuted { errno })) => {
                let why = io::Error::from_raw_os_error(errno);
                Err(self.lost(&format!("its command cannot be executed: {why}")))
            }
            Ok(Some(_)) => Ok(()),
            Ok(None) | Err(_) => Err(self.lost("its sandbox ended before it began")),
        }
    }

    /// Returns the error if it ended before it was healthy.
    fn ended_early(&mut self) -> Option<Error> {
        let how = self.end_if_any()?;
        Some(self.lost(&format!("it ended before it was healthy: {how}")))
    }
}

/// Ends the wait if a signal asks for the end of the run.
fn heed(signals: &Signals) -> Result<(), Error> {
    match end_asked(signals) {
        Some(signal) => Err(Error::Interrupted { signal }),
        None => Ok(()),
    }
}
