//! Starts the sandbox and the sidecar of each companion.

use std::os::fd::AsFd;

use egress::Entrance;
use policy::Hostname;
use sandbox::{InitChannels, Signals, SocketBroker, Stdio, UndoLog, Visit};

use super::output::Output;
use super::prepare::{PreparedCompanion, PreparedCompanions, RunContext};
use super::running::{Companions, Running, Stage};
use crate::error::{Error, plumbing};
use crate::launch::{SidecarInputs, StartedPair};
use crate::locality::Locality;
use crate::report::Report;
use crate::sidecar::SidecarEndpoints;

impl Companions {
    /// Starts all companions, each as soon as those before it can be reached, and waits until all are healthy.
    ///
    /// # Errors
    /// When a companion does not begin, ends, or is not healthy in time, or a signal asks for an end. Those started stay until they are
    /// ended.
    pub(crate) fn start(
        &mut self,
        prepared: PreparedCompanions,
        context: &RunContext<'_>,
        signals: &Signals,
        undo: &mut UndoLog,
        report: &mut dyn FnMut(Report<'_>),
    ) -> Result<(), Error> {
        for prepared in prepared.0 {
            for notice in &prepared.plan.notices {
                report(Report::Note(&format!("companion `{}`: {notice}", prepared.companion.name)));
            }
            self.await_way(signals, report)?;
            let ways = Ways { companions: self.entrances()?, visits: self.visits(self.0.len() + 1) };
            let began = begin(prepared, context, ways, undo)?;
            self.0.push(began);
        }
        self.await_health(signals, report)
    }
}

/// The ways to the companions that began before one.
struct Ways {
    companions: Vec<(Hostname, Entrance)>,
    visits: Vec<Visit>,
}

/// Makes the sandbox of a companion, and starts its sidecar.
fn begin(
    prepared: PreparedCompanion,
    context: &RunContext<'_>,
    Ways { companions, visits }: Ways,
    undo: &mut UndoLog,
) -> Result<Running, Error> {
    let PreparedCompanion { companion, spec, plan, command, image, image_health } = prepared;
    let (link, link_inside) = sandbox::message_pair().map_err(plumbing("make a socket"))?;
    let (notices, notices_inside) = sandbox::message_pair().map_err(plumbing("make a socket"))?;
    let (broker, broker_inside) = SocketBroker::pair().map_err(plumbing("make a socket"))?;
    let (output, streams) = Output::pipe().map_err(plumbing("make a pipe"))?;
    let endpoints = SidecarEndpoints::without_credentials(link_inside, notices_inside, companions);
    let inputs = SidecarInputs { endpoints, platform_data: None, ports_here: None };
    let mut launch = context.launch(&spec, &plan, Some(&companion.name), notices.as_fd(), inputs);
    let channels = InitChannels {
        stdio: Stdio::Descriptors(streams),
        sidecar: link,
        broker: Some(broker_inside),
        visits,
        ahead: None,
    };
    let started = sandbox::start(&plan, context.host, &command, channels, &mut launch, undo);
    let name_at_engine = plan.engine.is_some().then(|| plan.run.clone());
    let StartedPair { sandbox, sidecar, .. } = launch.finish(started).map_err(|error| Error::Companion {
        name: companion.name.to_string(),
        why: error.to_string(),
        remedy: error.remedy(),
    })?;
    Ok(Running {
        stage: Stage::making(Locality::of(&plan)),
        companion,
        sandbox,
        sidecar,
        notices,
        summary: None,
        broker,
        name_at_engine,
        place: None,
        output,
        ended: false,
        image,
        image_health,
    })
}
