//! The journal of one run: holds its record, its lock and its undo log, and gives back what the run acquired.

use std::path::{Path, PathBuf};

use egress::Summary;
use policy::{Backend, ByteSize, Hostname, RunId, Setup, Span, TimeoutCeiling};
use rustix::io::Errno;
use sandbox::{EndingInit, Exit, Plan, ProcessStamp, Sidecar, Signals, Started, Taken, UndoLog};

use crate::audit_end::AuditEnd;
use crate::changes;
use crate::end_signals::end_asked;
use crate::ending::{Ending, SIGKILL, SIGSYS, Shortage};
use crate::error::{Error, UNTOLD};
use crate::missing::SearchedPlaces;
use crate::not_taken_back::not_taken_back;
use crate::permission::permissions;
use crate::plan_run::PlannedRun;
use crate::record::{Outcome, Requests, RunRecord, RunState, failure, now};
use crate::report::{CommandEnd, ExecutedRun, Finished, Report};
use crate::run_lock::{Reaped, RunLock, are_dead, reap_dead_until};
use crate::set_up_log::SetUpLog;
use crate::state::StateDirectory;

/// errno(3)
const ENOENT: i32 = Errno::NOENT.raw_os_error();

/// The record, the undo log and the lock of one run.
pub(crate) struct RunJournal {
    state: StateDirectory,
    run: RunId,
    record: RunRecord,
    pub(crate) undo: UndoLog,
    /// Whether its command began.
    pub(crate) has_begun: bool,
    /// Its companions.
    companions: Vec<Hostname>,
    /// What could not be given back so far.
    problems: Vec<String>,
    dead: DeadRuns,
    lock: RunLock,
    /// Where its command is searched for.
    searched: SearchedPlaces,
    bounds: Bounds,
    /// Whether what the command writes in its workspace is kept apart.
    keeps_apart: bool,
}

/// What this run knows of runs that died.
enum DeadRuns {
    /// There may be some.
    Possible,
    /// There were none when it looked.
    Absent,
    /// It has reaped them.
    Reaped(Vec<Reaped>),
}

/// The limits that an ending names.
struct Bounds {
    memory: ByteSize,
    timeout: Span,
    timeout_ceiling: Option<TimeoutCeiling>,
}

/// Returns the record of a run that is about to begin.
fn first_record(PlannedRun { spec, command, plan, .. }: &PlannedRun) -> RunRecord {
    RunRecord {
        id: plan.run.to_string(),
        state: RunState::Running,
        process: ProcessStamp::this(),
        started: now(),
        ended: None,
        command: command.iter().map(|part| part.to_string_lossy().into_owned()).collect(),
        workspace: plan.workspace.clone(),
        writable: writable(plan),
        backend: plan.backend,
        org: spec.organisation.as_ref().map(ToString::to_string),
        labels: plan.labels.iter().map(|it| (it.name().to_owned(), it.value().to_owned())).collect(),
        exposed: spec.policy.providers().flat_map(|it| it.exposed().iter().cloned()).collect(),
        permissions: permissions(spec).collect(),
        notices: plan.notices.clone(),
        plan: plan.steps.iter().map(ToString::to_string).collect(),
        setup: Vec::new(),
        outcome: None,
        leftover: None,
        failure: None,
        audits: Vec::new(),
        memory_peak: None,
    }
}

/// Returns the paths that a command can write to. Without a sandbox nothing bounds them; the workspace stands for all.
fn writable(plan: &Plan) -> Vec<PathBuf> {
    match plan.backend {
        Backend::Process => vec![plan.workspace.clone()],
        Backend::Linux | Backend::Container | Backend::Docker => {
            plan.writable().map(Path::to_path_buf).collect()
        }
    }
}

impl RunJournal {
    /// Takes the lock of a run, and writes its first record.
    ///
    /// # Errors
    /// When either cannot be written. At most the file of the lock is left then, and the next run removes it.
    pub(crate) fn open(planned: &PlannedRun) -> Result<Self, Error> {
        let PlannedRun { spec, caller, plan, .. } = planned;
        let (state, run) = (planned.state.clone(), plan.run.clone());
        let lock = RunLock::take(&state, &run)?;
        let undo = lock.undo_log(&state)?;
        let record = first_record(planned);
        if let Err(error) = record.write(&state, &run) {
            lock.remove();
            let _ = std::fs::remove_file(state.record(&run));
            return Err(error);
        }
        let searched = SearchedPlaces {
            path: caller.variable("PATH").map(str::to_owned),
            home: caller.home.clone(),
            programs: sandbox::programs_of(&plan.home),
            workspace: plan.workspace.clone(),
            directory: plan.directory.clone(),
            system: plan.system().map(Path::to_owned).collect(),
            sees_this_machine: plan.backend == Backend::Process,
            is_image: matches!(plan.backend, Backend::Container | Backend::Docker),
        };
        Ok(Self {
            state,
            run,
            record,
            undo,
            has_begun: false,
            companions: spec.companions.iter().map(|it| it.name.clone()).collect(),
            problems: Vec::new(),
            dead: DeadRuns::Possible,
            lock,
            searched,
            bounds: Bounds {
                memory: spec.limits.memory,
                timeout: spec.timeout,
                timeout_ceiling: spec.timeout_ceiling.clone(),
            },
            keeps_apart: planned.keeps_apart(),
        })
    }

    /// Returns the log of the set-up commands, which writes into this run's record.
    pub(crate) fn set_up_log<'a>(&'a mut self, commands: &'a [Setup]) -> SetUpLog<'a> {
        SetUpLog { commands, records: &mut self.record.setup }
    }

    /// Notes what is known of a run that fails after its command: what it used, and the processes that go on.
    pub(crate) fn note_end(&mut self, usage: Option<sandbox::Usage>, left: Vec<String>) {
        self.record.memory_peak = usage.and_then(|usage| usage.memory_peak);
        self.undo.tell(left);
    }

    /// Reports records that are missing from the audit of the command or of a companion, and adds them to the run's record, which is
    /// written as the run is closed.
    pub(crate) fn note_missing_records(
        &mut self,
        companion: Option<&Hostname>,
        summary: Option<&Summary>,
        report: &mut dyn FnMut(Report<'_>),
    ) {
        let missing = match summary {
            Some(summary) => summary.missing_records().collect(),
            None => vec![format!("the sidecar did not say how it ended: {UNTOLD}")],
        };
        let of = companion.map(|name| format!("of companion `{name}`: ")).unwrap_or_default();
        for missing in missing {
            let missing = format!("{of}{missing}");
            report(Report::Note(&missing));
            self.record.notices.push(missing);
        }
    }

    /// Looks for runs that died. What they left is taken away when this run ends, for it may take long, and meanwhile nobody would
    /// answer this run.
    pub(crate) fn look_for_dead(&mut self) {
        self.dead = if are_dead(&self.state) { DeadRuns::Possible } else { DeadRuns::Absent };
    }

    /// Gives back the names that were held, once nobody is inside any more. A run that was killed may have held the same names, and its
    /// processes may go on for a while, so dead runs are reaped first.
    pub(crate) fn give_back_names(&mut self, signals: Option<&Signals>) {
        let is_reaped = matches!(self.dead, DeadRuns::Reaped(_));
        if self.undo.holds_names() && !is_reaped && are_dead(&self.state) {
            self.dead = DeadRuns::Reaped(reap(&self.state, signals));
        }
        self.problems.extend(self.undo.unwind_names());
    }

    /// Tells what came to light as things were given back and what could not be given back, and adds both to the record.
    fn note(&mut self, problems: &[String], report: &mut dyn FnMut(Report<'_>)) -> Result<(), Error> {
        let told = self.undo.told();
        told.iter().for_each(|told| report(Report::Note(told)));
        for problem in problems {
            report(Report::Note(&not_taken_back(problem, &self.record.id)));
        }
        if told.is_empty() && problems.is_empty() {
            return Ok(());
        }
        self.record.notices.extend(told);
        self.record.note_leftover(None, problems);
        self.record.write(&self.state, &self.run)
    }

    /// Ends a sandbox whose command is over, and gives back the names it held.
    fn end_sandbox(&mut self, mut executed: ExecutedRun, signals: Option<&Signals>) -> Remains {
        executed.sandbox.stop_watching_covers();
        // A command that ended by itself took every other process with it, and init's own end needs nobody. A sandbox that was ended
        // from outside is waited for.
        let mut took_away = match executed.end {
            CommandEnd::Ended(_) => None,
            _ => Some(executed.sandbox.wait()),
        };
        self.give_back_names(signals);
        if took_away.is_none() && executed.sandbox.outlives_its_end() {
            executed.sandbox.kill();
            took_away = Some(executed.sandbox.wait());
        }
        self.undo.tell(executed.sandbox.left());
        if matches!(took_away, Some(Taken::All | Taken::Behind)) {
            self.undo.engine_is_done(&self.run);
        }
        let sandbox = match took_away {
            Some(Taken::Behind) => SandboxRemains::TakenBehind(Box::new(executed.sandbox)),
            _ => SandboxRemains::Init(executed.sandbox.into_init()),
        };
        Remains { sidecar: executed.sidecar, sandbox }
    }

    /// Returns the audits that were begun. Their sidecars are over.
    fn audits(&self) -> Vec<AuditEnd> {
        // The sidecar begins its audit before anything runs that could ask it.
        let is_begun = self.has_begun || !self.record.setup.is_empty();
        let own = AuditEnd::of(&self.state.audit(&self.run), None, is_begun);
        let of = |name: &Hostname| AuditEnd::of(&self.state.audit_of(&self.run, name), Some(name), false);
        own.into_iter().chain(self.companions.iter().filter_map(of)).collect()
    }

    /// Takes back what was acquired, writes down what became of the run, and looks after runs that died.
    pub(crate) fn close(
        mut self,
        executed: Result<ExecutedRun, Error>,
        report: &mut dyn FnMut(Report<'_>),
    ) -> Result<Finished, Error> {
        self.record.ended = Some(now());
        let executed = executed.map(|executed| {
            let command = self.record.command.first().map_or("", String::as_str);
            let ending = ending(&executed, command, self.record.backend, &self.searched, &self.bounds);
            let outcome = outcome(&executed, &ending);
            (executed, ending, outcome)
        });
        self.record.state = if executed.is_ok() { RunState::Ended } else { RunState::Failed };
        self.record.outcome = executed.as_ref().ok().map(|(_, _, outcome)| outcome.clone());
        self.record.failure = executed.as_ref().err().map(failure);
        if executed.is_err() {
            self.record.audits = self.audits();
        }
        let written = self.record.write(&self.state, &self.run);
        let signals = Signals::block_forwarded(&[]).ok();
        let executed = executed.map(|(executed, ending, outcome)| {
            (self.end_sandbox(executed, signals.as_ref()), ending, outcome)
        });
        let mut problems = std::mem::take(&mut self.problems);
        problems.extend(self.undo.unwind());
        // Told even where the record could not be written.
        let noted = self.note(&problems, report);
        let written = written.and(noted);
        // Before the lock goes: whoever finds the lock of a run that was killed does the same.
        if self.keeps_apart && changes::settle(&self.state, &self.run) {
            report(Report::KeptApart(&self.run));
        }
        // The undo log holds the lock as well.
        drop(self.undo);
        match &executed {
            // The next run sees to what is left, and to a record that could not be written.
            _ if !problems.is_empty() || written.is_err() => {}
            Ok((Remains { sandbox: SandboxRemains::TakenBehind(sandbox), .. }, ..)) => {
                self.lock.hand_over(sandbox);
            }
            _ => self.lock.remove(),
        }
        let reaped = match self.dead {
            DeadRuns::Possible => reap(&self.state, signals.as_ref()),
            DeadRuns::Absent => Vec::new(),
            DeadRuns::Reaped(reaped) => reaped,
        };
        tell_reaped(&reaped, report);
        if executed.is_err() && reaped.iter().any(|reaped| !reaped.told.is_empty()) {
            report(Report::Note("that may have stood in the way of this run: start it again"));
        }
        let (remains, ending, outcome) = executed?;
        remains.bury();
        written?;
        Ok(Finished { run: self.run, ending, outcome })
    }
}

/// Takes away what dead runs left, until a signal asks for the end. What is still there then is left to the next run.
fn reap(state: &StateDirectory, signals: Option<&Signals>) -> Vec<Reaped> {
    reap_dead_until(state, || signals.is_some_and(|signals| end_asked(signals).is_some()))
}

/// What is left of a run that is over.
struct Remains {
    sidecar: Sidecar,
    sandbox: SandboxRemains,
}

/// What is left of its sandbox.
enum SandboxRemains {
    /// Its init, which ends.
    Init(EndingInit),
    /// All of it: a remover takes away behind the run what it had at an engine.
    TakenBehind(Box<Started>),
}

impl Remains {
    /// Waits until the run's processes are gone. They have said all they had to say; but an ended process stays in the table until its
    /// parent asks, and who would adopt these might never ask (L03).
    fn bury(self) {
        let init = match self.sandbox {
            SandboxRemains::Init(init) => Some(init),
            SandboxRemains::TakenBehind(sandbox) => {
                drop(sandbox);
                None
            }
        };
        self.sidecar.end();
        init.iter().for_each(EndingInit::bury);
    }
}

/// Tells of the runs whose process was killed, and what was taken away behind them.
fn tell_reaped(all: &[Reaped], report: &mut dyn FnMut(Report<'_>)) {
    for reaped in all {
        reaped.sentences().for_each(|sentence| report(Report::Note(&sentence)));
        for problem in &reaped.problems {
            report(Report::Note(&not_taken_back(problem, reaped.run.as_str())));
        }
    }
}

fn ending(
    executed: &ExecutedRun,
    command: &str,
    backend: Backend,
    searched: &SearchedPlaces,
    bounds: &Bounds,
) -> Ending {
    let usage = executed.usage.unwrap_or_default();
    let limit = Some(bounds.memory).filter(|_| !usage.short_outside);
    match executed.end {
        CommandEnd::Ended(Exit::Signal(SIGKILL)) if usage.out_of_memory > 0 => {
            Ending::OutOfMemory { peak: usage.memory_peak.map(ByteSize::from_bytes), limit }
        }
        CommandEnd::Ended(Exit::Code(code)) => {
            let shortage = if usage.out_of_memory > 0 {
                Some(Shortage::Memory { killed: usage.out_of_memory, limit })
            } else {
                (usage.pids_refused > 0).then_some(Shortage::Processes { refused: usage.pids_refused })
            };
            Ending::Exited { code, shortage }
        }
        CommandEnd::Ended(Exit::Signal(SIGSYS)) if backend != Backend::Process => Ending::ForeignCall,
        CommandEnd::Ended(Exit::Signal(signal)) => Ending::Signalled(signal),
        CommandEnd::TimedOut => {
            Ending::TimedOut { timeout: bounds.timeout, ceiling: bounds.timeout_ceiling.clone() }
        }
        CommandEnd::Killed(signal) => Ending::Killed(signal),
        CommandEnd::NotExecuted(ENOENT) => {
            Ending::NotFound { command: command.into(), hint: searched.hint(command) }
        }
        CommandEnd::NotExecuted(errno) => Ending::NotExecutable { command: command.into(), errno },
    }
}

fn outcome(executed: &ExecutedRun, ending: &Ending) -> Outcome {
    let summary = executed.summary.as_ref();
    let requests =
        summary.map(|&Summary { allowed, denied, failed, .. }| Requests { allowed, denied, failed });
    let models = summary.and_then(|summary| summary.models.clone());
    let memory_peak = executed.usage.unwrap_or_default().memory_peak;
    let (exit_code, summary) = (ending.exit_code(), ending.to_string());
    Outcome { exit_code, summary, memory_peak, requests, models }
}
