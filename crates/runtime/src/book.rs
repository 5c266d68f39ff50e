//! The book of one run: its record, its mark of life, and how what it acquired is given back.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use egress::Summary;
use policy::{Backend, ByteSize, RunId, RunSpec, Span};
use sandbox::{Born, Caller, Ended, Plan, Taken, UndoLog};

use crate::error::Error;
use crate::live::{Alive, are_dead, reap_dead};
use crate::missing::Looked;
use crate::permission::permissions;
use crate::record::{Outcome, RunRecord, RunState, SetUpRecord, failure, now};
use crate::report::{End, Finished, Lived, Report};
use crate::state::StateDirectory;

/// Exit codes beside the command's own. DESIGN §4
const TIMED_OUT: i32 = 124;
const NOT_EXECUTABLE: i32 = 126;
const NOT_FOUND: i32 = 127;
const ENOENT: i32 = 2;
const SIGKILL: i32 = 9;

/// The record, the undo log and the mark of life of one run.
pub(crate) struct Book {
    pub(crate) state: StateDirectory,
    run: RunId,
    record: RunRecord,
    pub(crate) undo: UndoLog,
    /// What could not be given back so far.
    problems: Vec<String>,
    alive: Alive,
    /// Where its command is looked for.
    looked: Looked,
    bounds: Bounds,
    /// Whether there are runs that died, where somebody has looked.
    are_dead: Option<bool>,
}

/// What a run may use up and its end may speak of.
struct Bounds {
    memory: ByteSize,
    timeout: Span,
}

/// What a command can write to. Without a sandbox nothing bounds that; its workspace stands for all.
fn writable(plan: &Plan) -> Vec<PathBuf> {
    match plan.backend {
        Backend::Process => vec![plan.workspace.clone()],
        Backend::Linux | Backend::Container | Backend::Docker => {
            plan.writable().map(Path::to_path_buf).collect()
        }
    }
}

impl Book {
    pub(crate) fn open(
        state: StateDirectory,
        run: &RunId,
        plan: &Plan,
        spec: &RunSpec,
        command: &[OsString],
        caller: &Caller,
    ) -> Result<Self, Error> {
        let alive = Alive::mark(&state, run)?;
        let undo = alive.undo_log(&state)?;
        let record = RunRecord {
            id: run.to_string(),
            state: RunState::Running,
            process: Born::this(),
            started: now(),
            ended: None,
            command: command.iter().map(|part| part.to_string_lossy().into_owned()).collect(),
            workspace: plan.workspace.clone(),
            writable: writable(plan),
            backend: plan.backend.to_string(),
            org: spec.organisation.as_ref().map(ToString::to_string),
            labels: plan.labels.iter().map(|it| (it.name().to_owned(), it.value().to_owned())).collect(),
            exposed: spec.policy.providers().flat_map(|it| it.exposed().iter().cloned()).collect(),
            permissions: permissions(spec).collect(),
            notices: plan.notices.clone(),
            plan: plan.steps.iter().map(ToString::to_string).collect(),
            setup: Vec::new(),
            outcome: None,
            failure: None,
        };
        match record.write(&state, run) {
            Ok(()) => Ok(Self {
                state,
                run: run.clone(),
                record,
                undo,
                problems: Vec::new(),
                alive,
                looked: Looked {
                    path: caller.variable("PATH").map(str::to_owned),
                    home: caller.home.clone(),
                    programs: sandbox::programs_of(&plan.home),
                    workspace: plan.workspace.clone(),
                    directory: plan.directory.clone(),
                    sees_this_machine: plan.backend == Backend::Process,
                },
                bounds: Bounds { memory: spec.limits.memory, timeout: spec.timeout },
                are_dead: None,
            }),
            Err(error) => {
                // Nothing has been acquired, so nothing of it stays.
                alive.over();
                let _ = std::fs::remove_file(state.record(run));
                Err(error)
            }
        }
    }

    /// Where it is written down what became of the set-up commands.
    pub(crate) fn set_up(&mut self) -> &mut Vec<SetUpRecord> {
        &mut self.record.setup
    }

    /// Looks for runs that died, while there is time. What they left is taken away at the end: it may take long, and meanwhile
    /// nobody would answer this run.
    pub(crate) fn look_for_dead(&mut self) {
        self.are_dead = Some(are_dead(&self.state));
    }

    /// Gives back the names that were held, as soon as nobody is inside any more. A run that was killed may have held the same ones, and
    /// its processes may go on for a while: they are seen to first.
    pub(crate) fn give_back_names(&mut self) {
        if self.undo.holds_names() && are_dead(&self.state) {
            let _ = reap_dead(&self.state);
        }
        self.problems.extend(self.undo.unwind_names());
    }

    /// Tells what came to light when things were given back, and adds it to the record.
    fn note_told(&mut self, report: &mut dyn FnMut(Report<'_>)) -> Result<(), Error> {
        let told = self.undo.told();
        if told.is_empty() {
            return Ok(());
        }
        told.iter().for_each(|told| report(Report::Notice(told)));
        self.record.notices.extend(told);
        self.record.write(&self.state, &self.run)
    }

    /// Takes back what was acquired, writes down what became of the run, and looks after runs that died.
    pub(crate) fn close(
        mut self,
        lived: Result<Lived, Error>,
        report: &mut dyn FnMut(Report<'_>),
    ) -> Result<Finished, Error> {
        self.record.ended = Some(now());
        let outcome = match &lived {
            Ok(lived) => {
                let command = self.record.command.first().map_or("", String::as_str);
                Some(outcome(lived, command, &self.looked, &self.bounds))
            }
            Err(_) => None,
        };
        self.record.state = if outcome.is_some() { RunState::Ended } else { RunState::Failed };
        self.record.outcome.clone_from(&outcome);
        self.record.failure = lived.as_ref().err().map(failure);
        let written = self.record.write(&self.state, &self.run);
        let lived = lived.map(|mut lived| {
            lived.sandbox.release();
            // A command that ended by itself took every other process with it, and init's own end needs nobody. What
            // was ended from outside is waited for.
            let mut took_away = match lived.end {
                End::Ended(_) => None,
                _ => Some(lived.sandbox.wait()),
            };
            self.give_back_names();
            if took_away.is_none() && lived.sandbox.outlives_its_end() {
                lived.sandbox.kill();
                took_away = Some(lived.sandbox.wait());
            }
            if matches!(took_away, Some(Taken::All | Taken::Behind)) {
                self.undo.engine_is_done(&self.run);
            }
            (took_away == Some(Taken::Behind)).then_some(lived.sandbox)
        });
        let mut problems = std::mem::take(&mut self.problems);
        problems.extend(self.undo.unwind());
        // Told also where the record could not be written.
        let noted = self.note_told(report);
        let written = written.and(noted);
        for problem in &problems {
            report(Report::Notice(&format!("could not take back {problem}; the next run tries again")));
        }
        // It holds the mark as well.
        drop(self.undo);
        match &lived {
            // The next run sees to what is left, and to a record that could not be written.
            _ if !problems.is_empty() || written.is_err() => {}
            Ok(Some(sandbox)) => self.alive.hand_over(sandbox),
            _ => self.alive.over(),
        }
        if self.are_dead != Some(false) {
            let _ = reap_dead(&self.state);
        }
        lived?;
        written?;
        let outcome = outcome.ok_or(Error::SidecarLost)?;
        Ok(Finished { run: self.run, outcome })
    }
}

fn outcome(lived: &Lived, command: &str, looked: &Looked, bounds: &Bounds) -> Outcome {
    let summary = lived.summary.clone().unwrap_or_default();
    let usage = lived.usage.unwrap_or_default();
    let (exit_code, text) = match lived.end {
        End::Ended(Ended::Signal(SIGKILL)) if usage.out_of_memory > 0 => {
            (128 + SIGKILL, format!("killed: out of memory ({})", used(usage.memory_peak, bounds.memory)))
        }
        End::Ended(Ended::Code(code)) if usage.out_of_memory > 0 => {
            let (count, limit) = (usage.out_of_memory, bounds.memory);
            (code, format!("exited {code}; {count} of its processes ran out of memory (limit {limit})"))
        }
        End::Ended(Ended::Code(code)) if usage.pids_refused > 0 => {
            let times =
                if usage.pids_refused == 1 { "once".into() } else { format!("{} times", usage.pids_refused) };
            (code, format!("exited {code}; it reached its limit of processes {times}"))
        }
        End::Ended(Ended::Code(code)) => (code, format!("exited {code}")),
        End::Ended(Ended::Signal(signal)) => (128 + signal, format!("ended by signal {}", named(signal))),
        End::TimedOut => (
            TIMED_OUT,
            format!("timed out after {}; --timeout, or `timeout` in the policy, sets it", bounds.timeout),
        ),
        End::Killed(signal) => (128 + signal, format!("killed after signal {}", named(signal))),
        End::NotExecuted(ENOENT) => {
            let hint = looked.hint(command).map(|hint| format!("; {hint}")).unwrap_or_default();
            (NOT_FOUND, format!("`{}` was not found in the sandbox{hint}", command.escape_debug()))
        }
        End::NotExecuted(errno) => {
            let why = std::io::Error::from_raw_os_error(errno);
            (NOT_EXECUTABLE, format!("`{}` cannot be executed: {why}", command.escape_debug()))
        }
    };
    let Summary { allowed, denied, failed, models } = summary;
    Outcome { exit_code, summary: text, memory_peak: usage.memory_peak, allowed, denied, failed, models }
}

/// How much memory was used of what there was. What a control group tells may be a little over its limit.
fn used(peak: Option<u64>, limit: ByteSize) -> String {
    match peak {
        Some(peak) => format!("it used {} of {limit}", ByteSize::from_bytes(peak)),
        None => format!("limit {limit}"),
    }
}

/// A signal's number, with its name where it is one that people send. signal(7)
fn named(signal: i32) -> String {
    let name = match signal {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        10 => "SIGUSR1",
        11 => "SIGSEGV",
        12 => "SIGUSR2",
        13 => "SIGPIPE",
        14 => "SIGALRM",
        15 => "SIGTERM",
        24 => "SIGXCPU",
        25 => "SIGXFSZ",
        31 => "SIGSYS",
        _ => return signal.to_string(),
    };
    format!("{signal} ({name})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_named_beside_what_was_used_of_it() {
        let limit = ByteSize::from_mib(64);
        assert_eq!(used(Some(64 << 20), limit), "it used 64MiB of 64MiB");
        assert_eq!(used(None, limit), "limit 64MiB");
    }

    #[test]
    fn a_signal_has_its_name() {
        assert_eq!([15, 9, 40].map(named), ["15 (SIGTERM)", "9 (SIGKILL)", "40"]);
    }
}
