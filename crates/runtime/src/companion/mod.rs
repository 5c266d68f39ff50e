//! The companions of a run: each a sandbox and a sidecar of its own, healthy before the command begins and gone with it.
//!
//! ```text
//! companion's init ◄── link ──► its sidecar ─► outside, by its own rules
//!        ▲ inlet: sockets of its network
//!        ├── this process: is it healthy?
//!        └── the sidecars of the command and of those after it
//! ```
//! Nothing of a companion is on the network of another: whoever reaches it does so through a sidecar, by name and declared port.

mod health;
mod output;

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use egress::{Entrance, Told};
use policy::{Companion, EnvSpec, Hostname, RunId, RunSpec, Terminal};
use rustix::event::{PollFd, PollFlags, Timespec};
use sandbox::{
    Additions, Caller, Ended, Event, Host, Inlet, Lines, Plan, Sidecar, Signals, Started, Stdio, UndoLog,
};

use self::health::Health;
use self::output::Output;
use crate::beside::{Beside, Given};
use crate::error::{Error, plumbing};
use crate::images::{self, KeptImage};
use crate::run::{Report, new_run_id};
use crate::sidecar::Purse;
use crate::state::StateDirectory;

/// How long a sandbox may take to begin its command.
const MAKING: Duration = Duration::from_secs(20);

/// Companions that can be started: what could be refused has been.
#[derive(Default)]
pub(crate) struct Prepared(Vec<Ready>);

/// One of them.
struct Ready {
    companion: Companion,
    spec: RunSpec,
    plan: Plan,
    command: Vec<OsString>,
    image: KeptImage,
}

/// Looks at every companion of a run: its image, its ids, its plan.
///
/// # Errors
/// When one of them cannot be on this machine.
pub(crate) fn prepare(
    spec: &RunSpec,
    run: &RunId,
    caller: &Caller,
    state: &StateDirectory,
    host: &Host,
) -> Result<Prepared, Error> {
    let one = |companion: &Companion| {
        let named = |error: Error| Error::Companion {
            name: companion.name.to_string(),
            why: error.to_string(),
            remedy: error.remedy(),
        };
        ready(spec, companion, run, caller, state, host).map_err(named)
    };
    spec.companions.iter().map(one).collect::<Result<_, _>>().map(Prepared)
}

fn ready(
    of: &RunSpec,
    companion: &Companion,
    run: &RunId,
    caller: &Caller,
    state: &StateDirectory,
    host: &Host,
) -> Result<Ready, Error> {
    let mut spec = RunSpec {
        backend: policy::Backend::Container,
        image: Some(companion.image.clone()),
        directory: None,
        limits: companion.limits.clone(),
        limits_asked: companion.limits_asked,
        env: EnvSpec { set: companion.env.clone(), pass: Vec::new() },
        terminal: Terminal::Never,
        policy: companion.policy.clone(),
        companions: Vec::new(),
        inbound: Vec::new(),
        ..of.clone()
    };
    spec.limits.enforcement = of.limits.enforcement;
    let command = companion.command.iter().flatten().map(OsString::from).collect();
    let (image, command) = images::take(&mut spec, caller, command)?;
    let image = image.ok_or_else(|| plumbing("take its image")(io::ErrorKind::NotFound.into()))?;
    // A name of its own: what is made for it is not the run's.
    let own = new_run_id()?;
    let [_, written] = state.mounted(&own)?;
    let additions = Additions {
        opens_tls: spec.policy.may_open(),
        image: Some(images::root_of(&image.image)),
        ids: image.ids.as_ref().map(|ids| ids.range),
        written: Some(written),
        environment: vec![("LOCKGATE_RUN_ID".into(), run.to_string())],
        ..Additions::default()
    };
    let probe = companion.probe.clone().unwrap_or_default();
    let plan = sandbox::plan_companion(&spec, &probe, &own, caller, host, &additions)?;
    Ok(Ready { companion: companion.clone(), spec, plan, command, image })
}

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
    output: Output,
    /// Whether it has ended.
    ended: bool,
    /// Its files must be there as long as it is.
    _image: KeptImage,
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
    /// Starts them one after the other, and waits until all are healthy.
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
            let entrances = companions.entrances()?;
            let began = begin(ready, common, entrances, undo)?;
            companions.0.push(began);
            let last = companions.0.len() - 1;
            companions.await_start(last, report)?;
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
            let line = it.inlet.another().map_err(|source| it.lost(&source.to_string()))?;
            let entrance = Entrance::new(line.into_line(), sandbox::ask_for_socket, sandbox::take_socket);
            Ok((it.companion.name.clone(), entrance))
        };
        self.0.iter().map(way).collect()
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

    /// Until the command of one has been started.
    fn await_start(&mut self, index: usize, report: &mut dyn FnMut(Report<'_>)) -> Result<(), Error> {
        let deadline = Instant::now() + MAKING;
        let it = &mut self.0[index];
        while Instant::now() < deadline {
            wait_for([it.sandbox.events()], deadline.saturating_duration_since(Instant::now()));
            if !readable(it.sandbox.events()) {
                continue;
            }
            match it.sandbox.next_event() {
                Ok(Some(Event::Started { notices })) => {
                    for notice in &notices {
                        report(Report::Notice(&format!("companion `{}`: {notice}", it.companion.name)));
                    }
                    return Ok(());
                }
                Ok(Some(Event::Failed { step, cause })) => return Err(it.lost(&format!("{step}: {cause}"))),
                Ok(Some(Event::NotExecuted { errno })) => {
                    let why = io::Error::from_raw_os_error(errno);
                    return Err(it.lost(&format!("its command cannot be executed: {why}")));
                }
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => return Err(it.lost("its sandbox ended before it began")),
            }
        }
        Err(it.lost("it did not begin in time"))
    }

    /// Until all are healthy.
    fn await_health(&mut self, signals: &Signals, report: &mut dyn FnMut(Report<'_>)) -> Result<(), Error> {
        let began = Instant::now();
        let mut health: Vec<Health> = self.0.iter().map(|it| Health::of(&it.companion)).collect();
        while health.iter().any(|one| !one.is_well()) {
            let waits: Vec<BorrowedFd<'_>> = self.descriptors().chain([signals.as_fd()]).collect();
            wait_for(waits, health::PAUSE);
            while let Ok(Some(signal)) = signals.next() {
                if let Some(signal) = asks_to_end(signal) {
                    return Err(Error::Interrupted { signal });
                }
            }
            for (it, health) in self.0.iter_mut().zip(&mut health) {
                it.output.read();
                it.take_notices(report);
                if let Some(how) = it.end_if_any() {
                    return Err(it.lost(&format!("it ended before it was healthy: {how}")));
                }
                health.look(&it.inlet);
                if !health.is_well() && began.elapsed() > it.companion.patience.duration() {
                    let why =
                        format!("it was not healthy within {}: {}", it.companion.patience, health.why());
                    return Err(it.lost(&why));
                }
            }
        }
        Ok(())
    }
}

impl Drop for Companions {
    /// Ends them all at once, then waits for each: what held them is taken away after this.
    fn drop(&mut self) {
        self.0.iter().for_each(|it| it.sandbox.kill());
        for it in &mut self.0 {
            it.sandbox.wait();
            it.sandbox.release();
            it.sidecar.end();
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
            if let Some(Told::Denied(mut notice)) = Told::parse(&buffer[..length]) {
                // What would allow it is not the command's to change.
                notice.hint = None;
                notice.target = format!("{} (companion `{}`)", notice.target, self.companion.name);
                report(Report::Denied(&notice));
            }
        }
    }
}

/// Makes the sandbox of one, and starts its sidecar.
fn begin(
    ready: Ready,
    common: &Common<'_>,
    entrances: Vec<(Hostname, Entrance)>,
    undo: &mut UndoLog,
) -> Result<Running, Error> {
    let Ready { companion, spec, plan, command, image } = ready;
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
    };
    let mut beside = Beside {
        spec: &spec,
        plan: &plan,
        run: common.run,
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
    let lines = Lines { stdio: Stdio::Descriptors(streams), link, inlet: Some(inlet_inside), ahead: None };
    let started = sandbox::start_linux(&plan, common.host, &command, lines, &mut beside, undo);
    let Beside { sidecar, failed: cause, .. } = beside;
    match (started, sidecar) {
        (Ok(sandbox), Some(sidecar)) => {
            Ok(Running { companion, sandbox, sidecar, notices, inlet, output, ended: false, _image: image })
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

/// A signal by which somebody asks for the end of the run.
fn asks_to_end(signal: i32) -> Option<i32> {
    const ENDS: [i32; 4] = [1, 2, 3, 15]; // SIGHUP, SIGINT, SIGQUIT, SIGTERM
    ENDS.contains(&signal).then_some(signal)
}
