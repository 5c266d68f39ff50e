//! The running companions, and their events.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use egress::{Entrance, SidecarMessage, Summary};
use image::HealthCheck;
use policy::{Companion, Hostname, RunId};
use sandbox::{Event, Exit, RunNetwork, Sidecar, SocketBroker, Started, Visit};

use super::health::Health;
use super::output::Output;
use super::wait::readable;
use crate::error::Error;
use crate::locality::Locality;
use crate::name_files;
use crate::report::Report;
use crate::sidecar_messages::{self, LONGEST_END, await_summary, is_too_late, panicked};
use crate::taken_image::TakenImage;

/// How long a sandbox may take to begin its command; an engine, with its wait for a slot and the containers.
const MAKING: Duration = Duration::from_secs(20);
const MAKING_BY_ENGINE: Duration = sandbox::LONGEST_SLOT_WAIT.saturating_add(Duration::from_secs(120));

/// The progress of a companion.
pub(super) enum Stage {
    /// Its sandbox is being made, until this moment at the latest.
    Making(Instant),
    /// Its command has run since this moment, and is not healthy yet.
    Begun(Health, Instant),
    Well,
}

impl Stage {
    /// Returns the first stage.
    pub(super) fn making(place: Locality) -> Self {
        let patience = match place {
            Locality::Here => MAKING,
            Locality::AtEngine => MAKING_BY_ENGINE,
        };
        Self::Making(Instant::now() + patience)
    }
}

/// The companions of a run that have been started.
#[derive(Default)]
pub(crate) struct Companions(pub(super) Vec<Running>);

/// A running companion.
pub(super) struct Running {
    pub(super) companion: Companion,
    pub(super) sandbox: Started,
    pub(super) sidecar: Sidecar,
    pub(super) notices: OwnedFd,
    /// The last message of its sidecar, if it has come.
    pub(super) summary: Option<Summary>,
    pub(super) broker: SocketBroker,
    pub(super) stage: Stage,
    /// At an engine: its run id there, and its network once that is made.
    pub(super) name_at_engine: Option<RunId>,
    pub(super) place: Option<(RunId, RunNetwork)>,
    pub(super) output: Output,
    /// Whether it has ended.
    pub(super) ended: bool,
    /// Keeps the image's files for as long as the companion runs.
    pub(super) image: TakenImage,
    pub(super) image_health: Option<HealthCheck>,
}

impl Companions {
    /// Returns a way to each companion that has not ended, for another sidecar.
    ///
    /// # Errors
    /// When one of them is gone.
    pub(crate) fn entrances(&self) -> Result<Vec<(Hostname, Entrance)>, Error> {
        let way = |it: &Running| {
            if let Some((_, network)) = &it.place {
                return Ok((it.companion.name.clone(), Entrance::at(network.command())));
            }
            let line = it.broker.another().map_err(|source| it.lost(&source.to_string()))?;
            let entrance = Entrance::new(line.into_line(), sandbox::ask_for_socket, sandbox::take_socket);
            Ok((it.companion.name.clone(), entrance))
        };
        self.0.iter().filter(|it| !it.ended).map(way).collect()
    }

    /// Returns the networks of the companions at an engine, for the sidecar of index `index`: no two sidecars on a network have the
    /// same, and the command's has the first. Of one that has ended the network is gone.
    pub(crate) fn visits(&self, index: usize) -> Vec<Visit> {
        let visit = |(run, network): &(RunId, RunNetwork)| Visit {
            run: run.clone(),
            network: *network,
            index: index as u32,
        };
        self.0.iter().filter(|it| !it.ended).filter_map(|it| it.place.as_ref().map(visit)).collect()
    }

    /// Returns the descriptors that become readable when a companion says something, or ends.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let live = self.0.iter().filter(|it| !it.ended);
        live.flat_map(|it| [it.sandbox.events(), it.notices.as_fd()])
            .chain(self.0.iter().filter_map(|it| it.output.descriptor()))
    }

    /// Takes their events. A companion that has ended is reported, and the run goes on.
    pub(crate) fn hear(&mut self, report: &mut dyn FnMut(Report<'_>)) {
        for it in &mut self.0 {
            it.output.read();
            it.take_notices(report);
            it.hear_end(report);
        }
    }
}

impl Running {
    pub(super) fn lost(&self, why: &str) -> Error {
        Error::Companion {
            name: self.companion.name.to_string(),
            why: format!("{why}{}", self.output.told()),
            remedy: None,
        }
    }

    /// Reports its end, once after that.
    pub(super) fn hear_end(&mut self, report: &mut dyn FnMut(Report<'_>)) {
        if let Some(how) = self.end_if_any() {
            let told = format!("companion `{}` has ended: {how}{}", self.companion.name, self.output.told());
            report(Report::Note(&told));
        }
    }

    /// Returns how it ended, once after its end.
    pub(super) fn end_if_any(&mut self) -> Option<String> {
        while !self.ended && readable(self.sandbox.events()) {
            let how = match self.sandbox.next_event() {
                Ok(Some(Event::Ended(Exit::Code(code)))) => format!("it exited with {code}"),
                Ok(Some(Event::Ended(Exit::Signal(signal)))) => match self.sandbox.usage() {
                    Some(usage) if usage.out_of_memory > 0 => "it ran out of memory".into(),
                    _ => format!("signal {signal} ended it"),
                },
                Ok(Some(_)) => continue,
                Ok(None) | Err(_) => "its sandbox is gone".into(),
            };
            self.ended = true;
            self.output.read();
            return Some(how);
        }
        None
    }

    pub(super) fn take_notices(&mut self, report: &mut dyn FnMut(Report<'_>)) {
        while let Ok(Some(message)) = sidecar_messages::next(&self.notices) {
            match message {
                SidecarMessage::Summary(summary) => self.summary = Some(summary),
                message => self.heed(message, report),
            }
        }
    }

    /// Waits for the last message of its sidecar. Its sandbox is gone.
    pub(super) fn await_summary(&mut self, report: &mut dyn FnMut(Report<'_>)) {
        if self.summary.is_none() {
            let mut hear = |message| self.heed(message, report);
            let is_given_up = |waited| is_too_late(waited, LONGEST_END, || self.sidecar.is_stopped());
            self.summary = await_summary(self.notices.as_fd(), is_given_up, &mut hear);
        }
    }

    /// Acts on a message that is not the last.
    fn heed(&self, message: SidecarMessage, report: &mut dyn FnMut(Report<'_>)) {
        match message {
            SidecarMessage::Notice(mut notice) => {
                // What would allow it is not for the command to change.
                notice.hint = None;
                notice.target = format!("{} (companion `{}`)", notice.target, self.companion.name);
                report(Report::Notice(&notice));
            }
            SidecarMessage::Authority(pem) => self.sandbox.hand_over(pem.as_bytes()),
            SidecarMessage::Failed { why, .. } => {
                let told = format!("the sidecar of companion `{}` failed to {why}", self.companion.name);
                report(Report::Note(&told));
            }
            SidecarMessage::Panicked(what) => report(Report::Note(&panicked(&what))),
            SidecarMessage::NameFilesChanged => name_files::send(self.notices.as_fd()),
            SidecarMessage::NoMoreDenials | SidecarMessage::Summary(_) => {}
        }
    }
}
