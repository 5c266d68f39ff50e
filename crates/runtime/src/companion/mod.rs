//! The companions of a run: each a sandbox and a sidecar of its own, healthy before the command begins and gone with it.
//!
//! ```text
//! companion's init ◄── link ──► its sidecar ─► outside, by its own rules
//!        ▲ inlet: sockets of its network
//!        ├── this process: is it healthy?
//!        └── the sidecars of the command and of those after it
//! ```
//! Nothing of a companion is on the network of another: whoever reaches it does so through a sidecar, by name and declared port.
//! At an engine the inlet leads to its keeper and gives no sockets; the sidecars that reach it have a place on its network instead.

mod beginning;
mod chains;
mod ending;
mod health;
mod output;
mod prepare;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use egress::{Entrance, Told};
use image::HealthCheck;
use policy::{Companion, Hostname, RunId};
use rustix::event::{PollFd, PollFlags, Timespec};
use sandbox::{
    Caller, Ended, Event, Host, Inlet, Lines, RunNetwork, Sidecar, Signals, Started, Stdio, UndoLog, Visit,
};

use self::beginning::Stage;
use self::output::Output;
use self::prepare::Ready;
pub(crate) use self::prepare::{Prepared, prepare};
use crate::beside::{Beside, Given};
use crate::error::{Error, plumbing};
use crate::images::KeptImage;
use crate::run::Report;
use crate::sidecar::Purse;
use crate::state::StateDirectory;

/// Companions that run.
#[derive(Default)]
pub(crate) struct Companions(Vec<Running>);

/// One of them.
struct Running {
    companion: Companion,
    sandbox: Started,
    sidecar: Sidecar,
    notices: OwnedFd,
    inlet: Inlet,
    stage: Stage,
    /// At an engine: its name there, and once it is made its network.
    name_at_engine: Option<RunId>,
    place: Option<(RunId, RunNetwork)>,
    output: Output,
    /// Whether it has ended.
    ended: bool,
    /// Its files must be there as long as it is.
    _image: Option<KeptImage>,
    /// The digest of its image.
    digest: String,
    image_health: Option<HealthCheck>,
    /// The signal by which its image wants to be asked to end.
    stop: Option<i32>,
}

/// What the companions of a run are started with.
pub(crate) struct Common<'a> {
    pub(crate) run: &'a RunId,
    pub(crate) caller: &'a Caller,
    pub(crate) state: &'a StateDirectory,
    pub(crate) host: &'a Host,
    pub(crate) signals: &'a Signals,
}

impl Companions {
    /// Starts them, each as soon as those before it can be reached, and waits until all are healthy.
    ///
    /// # Errors
    /// When one does not begin, ends, or is not healthy in time; or the person has enough of waiting. None is left then.
    pub(crate) fn start(
        prepared: Prepared,
        common: &Common<'_>,
        undo: &mut UndoLog,
        report: &mut dyn FnMut(Report<'_>),
    ) -> Result<Self, Error> {
        let mut companions = Self::default();
        for ready in prepared.0 {
            for notice in &ready.plan.notices {
                report(Report::Notice(&format!("companion `{}`: {notice}", ready.companion.name)));
            }
            companions.await_way(common.signals, report)?;
            let ways = (companions.entrances()?, companions.visits(companions.0.len() + 1));
            let began = begin(ready, common, ways, undo)?;
            companions.0.push(began);
        }
        companions.await_health(common.signals, report)?;
        Ok(companions)
    }

    /// A way into each, for another sidecar.
    ///
    /// # Errors
    /// When one of them is gone.
    pub(crate) fn entrances(&self) -> Result<Vec<(Hostname, Entrance)>, Error> {
        let way = |it: &Running| {
            if let Some((_, network)) = &it.place {
                return Ok((it.companion.name.clone(), Entrance::at(network.command())));
            }
            let line = it.inlet.another().map_err(|source| it.lost(&source.to_string()))?;
            let entrance = Entrance::new(line.into_line(), sandbox::ask_for_socket, sandbox::take_socket);
            Ok((it.companion.name.clone(), entrance))
        };
        self.0.iter().map(way).collect()
    }

    /// The networks of those at an engine, for a sidecar that has its turn among those that reach them: that of the command is
    /// the first, and no two are the same.
    pub(crate) fn visits(&self, turn: usize) -> Vec<Visit> {
        let visit = |(run, network): &(RunId, RunNetwork)| Visit {
            run: run.clone(),
            network: *network,
            turn: turn as u32,
        };
        self.0.iter().filter_map(|it| it.place.as_ref().map(visit)).collect()
    }

    /// What becomes readable when one of them says something, or ends.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let live = self.0.iter().filter(|it| !it.ended);
        live.flat_map(|it| [it.sandbox.events(), it.notices.as_fd()])
            .chain(self.0.iter().filter_map(|it| it.output.descriptor()))
    }

    /// Hears what they say. One that has ended is told of, and the run goes on.
    pub(crate) fn hear(&mut self, report: &mut dyn FnMut(Report<'_>)) {
        for it in &mut self.0 {
            it.output.read();
            it.take_notices(report);
            if let Some(how) = it.end_if_any() {
                let told = format!("companion `{}` has ended: {how}{}", it.companion.name, it.output.told());
                report(Report::Notice(&told));
            }
        }
    }
}

impl Running {
    fn lost(&self, why: &str) -> Error {
        Error::Companion {
            name: self.companion.name.to_string(),
            why: format!("{why}{}", self.output.told()),
            remedy: None,
        }
    }

    /// How it ended, the first time it is asked for after that.
    fn end_if_any(&mut self) -> Option<String> {
        while !self.ended && readable(self.sandbox.events()) {
            let how = match self.sandbox.next_event() {
                Ok(Some(Event::Ended(Ended::Code(code)))) => format!("it exited with {code}"),
                Ok(Some(Event::Ended(Ended::Signal(signal)))) => match self.sandbox.usage() {
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

    fn take_notices(&mut self, report: &mut dyn FnMut(Report<'_>)) {
        let mut buffer = [0; 8192];
        while let Ok((length @ 1.., _)) =
            rustix::net::recv(&self.notices, &mut buffer[..], rustix::net::RecvFlags::DONTWAIT)
        {
            match Told::parse(&buffer[..length]) {
                Some(Told::Denied(mut notice)) => {
                    // What would allow it is not the command's to change.
                    notice.hint = None;
                    notice.target = format!("{} (companion `{}`)", notice.target, self.companion.name);
                    report(Report::Denied(&notice));
                }
                Some(Told::Authority(pem)) => self.sandbox.hand_over(pem.as_bytes()),
                _ => {}
            }
        }
    }
}

/// Makes the sandbox of one, and starts its sidecar.
fn begin(
    ready: Ready,
    common: &Common<'_>,
    (entrances, visits): (Vec<(Hostname, Entrance)>, Vec<Visit>),
    undo: &mut UndoLog,
) -> Result<Running, Error> {
    let Ready { companion, spec, plan, command, image, digest, image_health, stop } = ready;
    let name = companion.name.to_string();
    let failed = |why: String| Error::Companion { name: name.clone(), why, remedy: None };
    let (link, link_inside) = sandbox::message_pair().map_err(plumbing("make a socket"))?;
    let (notices, notices_inside) = sandbox::message_pair().map_err(plumbing("make a socket"))?;
    let (inlet, inlet_inside) = Inlet::pair().map_err(plumbing("make a socket"))?;
    let (output, streams) = Output::pipe().map_err(plumbing("make a pipe"))?;
    let given = Given {
        purse: Purse::default(),
        desk: None,
        link: link_inside,
        notices: notices_inside,
        peers: None,
        entrances,
        inbound: None,
        chains: Vec::new(),
        ports_here: None,
    };
    let mut beside = Beside {
        spec: &spec,
        plan: &plan,
        run: common.run,
        companion: Some(&companion.name),
        audit: common.state.audit_of(common.run, &companion.name),
        caller: common.caller,
        state: common.state,
        proxy: None,
        given: Some(given),
        notices: notices.as_fd(),
        sidecar: None,
        platform: None,
        failed: None,
    };
    let lines =
        Lines { stdio: Stdio::Descriptors(streams), link, inlet: Some(inlet_inside), visits, ahead: None };
    let start = match plan.engine {
        Some(_) => sandbox::start_docker,
        None => sandbox::start_linux,
    };
    let started = start(&plan, common.host, &command, lines, &mut beside, undo);
    let name_at_engine = plan.engine.is_some().then(|| plan.run.clone());
    let Beside { sidecar, failed: cause, .. } = beside;
    match (started, sidecar) {
        (Ok(sandbox), Some(sidecar)) => {
            let (place, ended) = (None, false);
            let stage = Stage::making(name_at_engine.is_some());
            Ok(Running {
                companion,
                sandbox,
                sidecar,
                notices,
                inlet,
                stage,
                name_at_engine,
                place,
                output,
                ended,
                _image: image,
                digest,
                image_health,
                stop,
            })
        }
        (Ok(_), None) => Err(failed("it has no sidecar".into())),
        (Err(error), sidecar) => {
            sidecar.as_ref().map(Sidecar::end);
            Err(failed(cause.map_or_else(|| error.to_string(), |cause| cause.to_string())))
        }
    }
}

/// Waits until one of them is readable, and no longer than said.
fn wait_for<'a>(list: impl IntoIterator<Item = BorrowedFd<'a>>, longest: Duration) {
    let mut fds: Vec<PollFd<'_>> =
        list.into_iter().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
    // Interrupted or not, whoever waits looks again.
    let _ = rustix::event::poll(&mut fds, Timespec::try_from(longest).ok().as_ref());
}

fn readable(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    matches!(rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(1..))
}
