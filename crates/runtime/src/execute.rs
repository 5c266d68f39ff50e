//! Executes a planned run: starts its companions, its sandbox and its sidecar, waits for the command's end, and lets all of them go.
//! Whatever outlives this process is in the undo log before it is made.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use egress::{SidecarMessage, Summary};
use policy::Inbound;
use sandbox::{Exit, InitChannels, Sidecar, Signals, Started, UndoLog, Usage};

use crate::companion::{Companions, RunContext};
use crate::end_signals::{SIGTERM, SIGTSTP, end_asked};
use crate::ending::SIGKILL;
use crate::engine::PortsHere;
use crate::error::{Error, plumbing};
use crate::expose::Exposed;
use crate::inbound;
use crate::launch::{PlatformData, SidecarInputs, SidecarLaunch, StartedPair, allowed_peer};
use crate::locality::Locality;
use crate::plan_run::{PlannedRun, RunInputs};
use crate::protection::AT_THE_END;
use crate::report::{CommandEnd, ExecutedRun, Report};
use crate::run_journal::RunJournal;
use crate::sidecar::{SidecarCredentials, SidecarEndpoints};
use crate::sidecar_messages::{LONGEST_END, LONGEST_GOOD_END, await_summary, is_too_late, panicked};
use crate::streams::{Copiers, RunningCopiers, stdio};
use crate::taken_image::TakenImage;
use crate::watch::{Clock, Watch, WatchedRun};

/// How long an engine may take over the containers of a run, beyond the command's own time: its wait for a slot, and the making.
const MAKING: Duration = sandbox::LONGEST_SLOT_WAIT.saturating_add(Duration::from_secs(120));

/// Executes a run until its command has ended.
///
/// # Errors
/// When the sandbox or its sidecar could not be started or kept.
pub(crate) fn execute(
    planned: &PlannedRun,
    inputs: RunInputs,
    journal: &mut RunJournal,
    report: &mut dyn FnMut(Report<'_>),
) -> Result<ExecutedRun, Error> {
    let mut companions = Companions::default();
    let executed = execute_beside(&mut companions, planned, inputs, journal, report);
    // Before anything that held them is taken away.
    companions.end(journal, report);
    executed
}

/// Starts the companions, and executes the command beside them until it has ended.
fn execute_beside(
    companions: &mut Companions,
    planned: &PlannedRun,
    inputs: RunInputs,
    journal: &mut RunJournal,
    report: &mut dyn FnMut(Report<'_>),
) -> Result<ExecutedRun, Error> {
    let signals = Signals::block_forwarded(&[SIGTSTP]).map_err(plumbing("watch for signals"))?;
    let begun = begin(companions, planned, inputs, &signals, &mut journal.undo, report)?;
    let BegunRun { notices, pair: StartedPair { sandbox, sidecar, platform }, mut streams, deadline } = begun;
    // This process answers for credentials from now on, so no other may look into it. Set earlier, ids could not be mapped.
    let _ = sandbox::undumpable();
    journal.look_for_dead();
    let watch = Watch {
        sandbox: &sandbox,
        sidecar: &sidecar,
        notices: notices.as_fd(),
        signals: &signals,
        platform,
        companions,
        streams: &mut streams,
        clock: Clock::Runs(deadline),
        timeout: planned.spec.timeout.duration(),
        stop: planned.image.as_ref().and_then(TakenImage::stop_signal).unwrap_or(SIGTERM),
        set_up: journal.set_up_log(&planned.spec.setup),
        report: &mut *report,
    };
    let WatchedRun { end, has_begun, summary, used } = watch.until_end();
    let (notices, signals) = (notices.as_fd(), &signals);
    let over = EndedRun { has_begun, summary, used, sandbox, sidecar, notices, signals, journal, report };
    over.let_go(end)
}

/// A run that was begun. Its sandbox and its sidecar are still being made.
struct BegunRun {
    notices: OwnedFd,
    pair: StartedPair,
    streams: RunningCopiers,
    /// When the command must have ended.
    deadline: Instant,
}

/// Starts the companions, and then the sandbox, the sidecar and the copying of the streams.
fn begin(
    companions: &mut Companions,
    planned: &PlannedRun,
    inputs: RunInputs,
    signals: &Signals,
    undo: &mut UndoLog,
    report: &mut dyn FnMut(Report<'_>),
) -> Result<BegunRun, Error> {
    let PlannedRun { spec, caller, state, host, plan, .. } = planned;
    let RunInputs { mut credentials, platform_data, exposed, proxy, companions: prepared, ports, ahead } =
        inputs;
    let context = RunContext { run: &plan.run, caller, state, host, proxy: proxy.as_ref() };
    companions.start(prepared, &context, signals, undo, report)?;
    // Not before: a companion is a copy of this process.
    credentials.exposed = exposed.values()?;
    let (inputs, ends) = make_inputs(planned, credentials, platform_data, ports, companions)?;
    let RunEnds { link, broker, notices } = ends;
    let launch = context.launch(spec, plan, None, notices.as_fd(), inputs);
    let (stdio, copiers) =
        stdio(spec.terminal, Locality::of(plan)).map_err(plumbing("use the standard streams"))?;
    // The command's time begins with the command; an engine takes its own before that.
    let making = match Locality::of(plan) {
        Locality::AtEngine => MAKING,
        Locality::Here => Duration::ZERO,
    };
    let deadline = Instant::now() + making + spec.timeout.duration();
    let channels = InitChannels { stdio, sidecar: link, broker, visits: companions.visits(0), ahead };
    let pair = start_sandbox(planned, &exposed, channels, launch, undo)?;
    let streams = start_copiers(copiers, &pair)?;
    Ok(BegunRun { notices, pair, streams, deadline })
}

/// The run's ends of what its sidecar holds.
struct RunEnds {
    /// Init's, over which the sidecar gets its listeners.
    link: OwnedFd,
    /// Init's, over which the sidecar asks for sockets inside, where ports are declared.
    broker: Option<OwnedFd>,
    /// This process's, on which the sidecar tells denials.
    notices: OwnedFd,
}

/// Makes what the sidecar is made of, and the run's ends of its descriptors.
fn make_inputs(
    PlannedRun { plan, state, .. }: &PlannedRun,
    credentials: SidecarCredentials,
    platform_data: PlatformData,
    ports: Vec<(OwnedFd, Inbound)>,
    companions: &Companions,
) -> Result<(SidecarInputs, RunEnds), Error> {
    let (ports, ports_here) = match Locality::of(plan) {
        Locality::AtEngine => (Vec::new(), ports),
        Locality::Here => (ports, Vec::new()),
    };
    let (inbound, broker) = inbound::broker(ports).map_err(plumbing("make a socket"))?.unzip();
    let (link, link_inside) = sandbox::message_pair().map_err(plumbing("make a socket"))?;
    let (notices, notices_inside) = sandbox::message_pair().map_err(plumbing("make a socket"))?;
    let endpoints = SidecarEndpoints {
        init: link_inside,
        notices: notices_inside,
        credentials,
        allowed_peer: allowed_peer(plan)?,
        companions: companions.entrances()?,
        inbound,
        chains: companions.chains(state, &plan.run)?,
    };
    let inputs = SidecarInputs {
        endpoints,
        platform_data: Some(platform_data),
        ports_here: PortsHere::of(ports_here)?,
    };
    Ok((inputs, RunEnds { link, broker, notices }))
}

/// Has the backend make the sandbox, and start the sidecar meanwhile.
fn start_sandbox(
    planned: &PlannedRun,
    exposed: &Exposed,
    channels: InitChannels,
    mut launch: SidecarLaunch<'_>,
    undo: &mut UndoLog,
) -> Result<StartedPair, Error> {
    let PlannedRun { command, host, plan, .. } = planned;
    let filled = exposed.put_into(plan)?;
    let started = sandbox::start(&filled, host, command, channels, &mut launch, undo);
    drop(filled);
    launch.finish(started)
}

/// Starts the threads that copy the standard streams, or ends the sandbox and its sidecar.
fn start_copiers(copiers: Copiers, pair: &StartedPair) -> Result<RunningCopiers, Error> {
    copiers.start().map_err(|source| {
        pair.sandbox.kill();
        pair.sandbox.wait();
        pair.sidecar.end();
        plumbing("carry the standard streams")(source)
    })
}

/// A run whose command is over, what of it is still there, and who is told.
struct EndedRun<'a> {
    /// Whether the command began.
    has_begun: bool,
    /// The sidecar's last message, if it has come.
    summary: Option<Summary>,
    /// What the sandbox used, as far as it is known.
    used: Option<Usage>,
    sandbox: Started,
    sidecar: Sidecar,
    notices: BorrowedFd<'a>,
    signals: &'a Signals,
    journal: &'a mut RunJournal,
    report: &'a mut dyn FnMut(Report<'_>),
}

impl EndedRun<'_> {
    /// Ends what is left, in an order in which nothing is used after its end.
    fn let_go(mut self, end: Result<CommandEnd, Error>) -> Result<ExecutedRun, Error> {
        self.journal.has_begun = self.has_begun;
        let is_by_itself = matches!(end, Ok(CommandEnd::Ended(_)));
        // After a command that ended by itself init ends by itself, too.
        if !is_by_itself {
            self.sandbox.kill();
        }
        let usage = self.sandbox.usage();
        self.used = usage.or(self.used);
        let patience = if is_by_itself { LONGEST_GOOD_END } else { LONGEST_END };
        match end {
            Ok(end) => self.ended(end, patience),
            // The kernel chose init when it had to kill a process for its memory, and all others went with it.
            Err(Error::SandboxLost) if usage.is_some_and(|usage| usage.out_of_memory > 0) => {
                self.ended(CommandEnd::Ended(Exit::Signal(SIGKILL)), patience)
            }
            Err(error) => Err(self.lost(error)),
        }
    }

    /// Returns a run that came to an end. Its sandbox and its sidecar are ended once that is on record.
    fn ended(mut self, end: CommandEnd, patience: Duration) -> Result<ExecutedRun, Error> {
        for path in self.sandbox.unprotected(AT_THE_END) {
            let path = path.display();
            (self.report)(Report::Note(&format!(
                "`{path}` was replaced on this machine as the run ended; see that it says what you wrote"
            )));
        }
        if matches!(end, CommandEnd::Ended(_)) {
            // Nobody is left inside; the sidecar still writes.
            self.sandbox.stop_watching_covers();
            self.journal.give_back_names(Some(self.signals));
        }
        let summary = self.last_message(patience);
        if let (None, CommandEnd::Ended(Exit::Code(code))) = (&summary, end) {
            // Any other end says already that the run did not come to its own.
            return Err(self.untold(code));
        }
        self.journal.note_missing_records(None, summary.as_ref(), self.report);
        let Self { used: usage, sandbox, sidecar, .. } = self;
        Ok(ExecutedRun { end, summary, usage, sandbox, sidecar })
    }

    /// Ends what is left where the sidecar did not say how it ended: the covers and the names are let go already.
    fn untold(self, code: i32) -> Error {
        if self.sandbox.outlives_its_end() {
            self.sandbox.kill();
        }
        self.sandbox.wait();
        self.journal.note_end(self.used, self.sandbox.left());
        self.sidecar.end();
        Error::SidecarUntold { after: Some(code) }
    }

    /// Ends what is left of a run that could not go on.
    fn lost(mut self, why: Error) -> Error {
        self.sandbox.wait();
        self.sandbox.stop_watching_covers();
        if self.has_begun {
            let summary = self.last_message(LONGEST_END);
            self.journal.note_missing_records(None, summary.as_ref(), self.report);
        }
        // The sidecar's record is whole before this process ends.
        self.sidecar.end();
        why
    }

    /// Returns the sidecar's last message, and waits for it if it has not come.
    fn last_message(&mut self, patience: Duration) -> Option<Summary> {
        let Self { summary, sidecar, notices, signals, report, .. } = self;
        let is_in_vain = || sidecar.is_stopped() || end_asked(signals).is_some();
        let is_given_up = |waited| is_too_late(waited, patience, is_in_vain);
        summary
            .take()
            .or_else(|| await_summary(*notices, is_given_up, &mut |message| tell(&message, *report)))
    }
}

/// Reports what the sidecar tells after the command has ended.
fn tell(message: &SidecarMessage, report: &mut dyn FnMut(Report<'_>)) {
    match message {
        SidecarMessage::Notice(notice) => report(Report::Notice(notice)),
        SidecarMessage::Failed { why, .. } => {
            report(Report::Note(&format!("the sidecar failed to {why}")));
        }
        SidecarMessage::Panicked(what) => report(Report::Note(&panicked(what))),
        SidecarMessage::Authority(_)
        | SidecarMessage::NameFilesChanged
        | SidecarMessage::NoMoreDenials
        | SidecarMessage::Summary(_) => {}
    }
}
