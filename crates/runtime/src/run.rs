//! One run, from what is asked to what became of it.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use credential::{Placeholder, Vault};
use egress::{Notice, Summary};
use policy::{Backend, Policy, Provider, RunId, RunSpec, Terminal};
use sandbox::{Additions, Caller, Ended, Host, Plan, Signals, Started, Stdio, UndoLog};

use crate::error::Error;
use crate::key::audit_key;
use crate::live::{Alive, reap_dead};
use crate::platform::{History, Platform, Sources};
use crate::record::{Outcome, RunRecord, RunState, now};
use crate::sidecar::{self, Errand, Purse};
use crate::state::{StateDirectory, append, make_directory};
use crate::vault::refuse_missing;
use crate::watch::{End, Watch, first_word, last_word};

/// Exit codes beside the command's own. DESIGN §4
const TIMED_OUT: i32 = 124;
const NOT_EXECUTABLE: i32 = 126;
const NOT_FOUND: i32 = 127;
const ENOENT: i32 = 2;
const SIGKILL: i32 = 9;

/// What is to be run.
#[derive(Debug)]
pub struct RunRequest {
    /// What it is and what it may do.
    pub spec: RunSpec,
    /// The command and its arguments.
    pub command: Vec<OsString>,
    /// Who asks.
    pub caller: Caller,
    /// Where it is recorded.
    pub state: StateDirectory,
}

/// What is told while a run goes on.
#[derive(Debug)]
pub enum Report<'a> {
    /// Something is weaker than it could be.
    Notice(&'a str),
    /// A request was denied; each target and guard is told once.
    Denied(&'a Notice),
}

/// A run that is over.
#[derive(Clone, Debug)]
pub struct Finished {
    /// Its identifier.
    pub run: RunId,
    /// What became of it.
    pub outcome: Outcome,
}

/// Runs a command to its end.
///
/// # Errors
/// When the sandbox or its sidecar could not be made or kept. Nothing half-made is left.
pub fn run(request: RunRequest, report: &mut dyn FnMut(Report<'_>)) -> Result<Finished, Error> {
    let RunRequest { spec, command, mut caller, state } = request;
    let run = new_run_id()?;
    refuse_missing(&spec, &state)?;
    let host = Host::detect();
    let (purse, platform, additions) = provide(&spec, &mut caller, &state)?;
    let plan = sandbox::plan(&spec, &run, &caller, &host, &additions)?;
    refuse_own_state(&plan, &state)?;
    let mut book = Book::open(state, &run, &plan, &command)?;
    for notice in &plan.notices {
        report(Report::Notice(notice));
    }
    let supplied = Supplied { spec: &spec, command: &command, caller: &caller, purse, platform };
    let lived = live(supplied, &plan, &host, &mut book, report);
    book.close(lived, report)
}

/// What a run begins with: what was asked, what its sidecar is given for credentials, and who answers it.
struct Supplied<'a> {
    spec: &'a RunSpec,
    command: &'a [OsString],
    caller: &'a Caller,
    purse: Purse,
    platform: Option<Platform>,
}

/// Makes the placeholders, and the socket by which the sidecar asks for what they stand for.
fn provide(
    spec: &RunSpec,
    caller: &mut Caller,
    state: &StateDirectory,
) -> Result<(Purse, Option<Platform>, Additions), Error> {
    let mut additions = Additions { environment: Vec::new(), opens_tls: spec.policy.may_open() };
    let mut purse = Purse::default();
    let known_proxy = spec.policy.proxies().declared().any(|proxy| proxy.credential.is_some());
    if spec.policy.providers().next().is_none() && !known_proxy {
        return Ok((purse, None, additions));
    }
    for (placeholder, provider) in placeholders(&spec.policy)? {
        if provider.llm().is_some() {
            additions.environment.push(("MODEL_BASE_URL".into(), "http://sidecar:8080/llm".into())); // S1.25
        }
        let named = provider.environment().iter().map(|name| (name.clone(), placeholder.to_string()));
        additions.environment.extend(named);
        purse.placeholders.push((placeholder, provider.id().clone()));
    }
    let sources = Sources::prepare(caller, state)?;
    purse.generation = Some(Vault::generation_file(&state.vault())?);
    let workspace = spec.workspace.as_ref().map_or_else(|| caller.directory.clone(), |w| caller.resolve(w));
    let history = History { directory: state.clone(), workspace };
    let (platform, theirs) = Platform::pair(sources, &spec.policy, history)?;
    purse.platform = Some(theirs);
    Ok((purse, Some(platform), additions))
}

/// A placeholder for each provider: new for each run, so that none is worth keeping.
pub(crate) fn placeholders(policy: &Policy) -> Result<Vec<(Placeholder, Arc<Provider>)>, Error> {
    let mint = |provider: &Arc<Provider>| {
        let mut random = [0; 24];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
            .map_err(|errno| Error::Plumbing { what: "make a placeholder", source: errno.into() })?;
        Ok((Placeholder::mint(random), Arc::clone(provider)))
    };
    policy.providers().map(mint).collect()
}

/// A new identifier.
///
/// # Errors
/// When the system gives no randomness.
pub fn new_run_id() -> Result<RunId, Error> {
    let mut bytes = [0; 12];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|errno| Error::Plumbing { what: "name the run", source: errno.into() })?;
    Ok(RunId::from_random(bytes))
}

/// Records, keys and approvals must be out of the agent's reach.
fn refuse_own_state(plan: &Plan, state: &StateDirectory) -> Result<(), Error> {
    match plan.shown().find(|path| state.overlaps(path)) {
        None => Ok(()),
        Some(path) => Err(sandbox::Error::Refused {
            what: format!(
                "`{}` cannot be shown inside: this program's records and keys are there",
                path.display()
            ),
            remedy: Some("choose a folder beside them, or move them with XDG_STATE_HOME".into()),
        }
        .into()),
    }
}

/// What a life came to, before it is written down.
struct Lived {
    end: End,
    summary: Option<Summary>,
    usage: Option<sandbox::Usage>,
    sandbox: Started,
}

/// Acquires everything in order, waits, and lets the sandbox go. What was acquired for longer is in the undo log.
fn live(
    supplied: Supplied<'_>,
    plan: &Plan,
    host: &Host,
    book: &mut Book,
    report: &mut dyn FnMut(Report<'_>),
) -> Result<Lived, Error> {
    let Supplied { spec, command, caller, purse, platform } = supplied;
    let plumbing = |what: &'static str| move |source| Error::Plumbing { what, source };
    let signals = Signals::block_forwarded().map_err(plumbing("watch for signals"))?;
    let (link, link_inside) = sandbox::message_pair().map_err(plumbing("make a socket"))?;
    let (notices, notices_inside) = sandbox::message_pair().map_err(plumbing("make a socket"))?;
    let errand = Errand {
        run: plan.run.clone(),
        policy: spec.policy.clone(),
        spending: spec.spending.clone(),
        identity: plan.identity,
        bundle: caller.variable("SSL_CERT_FILE").map(str::to_owned),
        audit: append(&book.state.audit(&plan.run))?,
        key: audit_key(&book.state)?,
        link: link_inside,
        notices: notices_inside,
        purse,
    };
    let sidecar = sidecar::start(&errand)?;
    drop(errand);
    let stdio = stdio(spec).map_err(plumbing("use the standard streams"))?;
    let deadline = Instant::now() + spec.timeout.duration();
    let start = match plan.backend {
        Backend::Linux => sandbox::start_linux,
        Backend::Process => sandbox::start_process,
    };
    let mut authority = || first_word(notices.as_fd());
    let started = start(plan, host, command, stdio, link, &mut authority, &mut book.undo);
    let mut sandbox = match started {
        Ok(sandbox) => sandbox,
        Err(error) => {
            sidecar.wait();
            return Err(error.into());
        }
    };
    // This process answers for credentials from now on: nobody may look into it. Not earlier, or ids could not be mapped.
    let _ = sandbox::undumpable();
    let watch = Watch {
        sandbox: &sandbox,
        sidecar: &sidecar,
        notices: notices.as_fd(),
        signals: &signals,
        platform,
        deadline,
        report,
    };
    let end = watch.until_end();
    // The kernel takes its time over namespaces; what there is to write is written meanwhile.
    sandbox.kill();
    let usage = sandbox.usage();
    match end {
        Ok((end, summary)) => {
            let summary = summary.or_else(|| last_word(notices.as_fd(), report));
            Ok(Lived { end, summary, usage, sandbox })
        }
        Err(error) => {
            sandbox.wait();
            sandbox.release();
            Err(error)
        }
    }
}

/// A terminal of its own where the person has one; otherwise the caller's own streams.
fn stdio(spec: &RunSpec) -> std::io::Result<Stdio> {
    let both = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    let own = match spec.terminal {
        Terminal::Always => true,
        Terminal::Auto => both,
        Terminal::Never => false,
    };
    if own {
        return Ok(Stdio::Terminal);
    }
    let copy = |fd: std::os::fd::BorrowedFd<'_>| {
        // A directory would be a way to the host's files.
        let kind = rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(fd)?.st_mode);
        if kind.is_dir() {
            Err(std::io::Error::other("one of them is a directory"))
        } else {
            fd.try_clone_to_owned()
        }
    };
    let list: [OwnedFd; 3] =
        [copy(std::io::stdin().as_fd())?, copy(std::io::stdout().as_fd())?, copy(std::io::stderr().as_fd())?];
    Ok(Stdio::Descriptors(list))
}

/// The record, the undo log and the mark of life of one run.
struct Book {
    state: StateDirectory,
    run: RunId,
    record: RunRecord,
    undo: UndoLog,
    alive: Alive,
}

impl Book {
    fn open(state: StateDirectory, run: &RunId, plan: &Plan, command: &[OsString]) -> Result<Self, Error> {
        make_directory(&state.run(run))?;
        make_directory(&state.live())?;
        let alive = Alive::mark(&state, run)?;
        let undo = alive.undo_log()?;
        let record = RunRecord {
            id: run.to_string(),
            state: RunState::Running,
            started: now(),
            ended: None,
            command: command.iter().map(|part| part.to_string_lossy().into_owned()).collect(),
            workspace: plan.workspace.clone(),
            backend: plan.backend.to_string(),
            notices: plan.notices.clone(),
            plan: plan.steps.iter().map(ToString::to_string).collect(),
            outcome: None,
        };
        match record.write(&state, run) {
            Ok(()) => Ok(Self { state, run: run.clone(), record, undo, alive }),
            Err(error) => {
                // Nothing has been acquired, so nothing of it stays.
                alive.over();
                let _ = std::fs::remove_dir_all(state.run(run));
                Err(error)
            }
        }
    }

    /// Takes back what was acquired, writes down what became of the run, and looks after runs that died.
    fn close(
        mut self,
        lived: Result<Lived, Error>,
        report: &mut dyn FnMut(Report<'_>),
    ) -> Result<Finished, Error> {
        self.record.ended = Some(now());
        let outcome = match &lived {
            Ok(lived) => Some(outcome(lived, self.record.command.first().map_or("", String::as_str))),
            Err(_) => None,
        };
        self.record.state = if outcome.is_some() { RunState::Ended } else { RunState::Failed };
        self.record.outcome.clone_from(&outcome);
        let written = self.record.write(&self.state, &self.run);
        let lived = lived.map(|mut lived| {
            lived.sandbox.release();
            // A command that ended by itself took every other process with it, and init's own end needs nobody. What
            // was ended from outside is waited for.
            if !matches!(lived.end, End::Ended(_)) || lived.sandbox.outlives_its_end() {
                lived.sandbox.wait();
            }
        });
        let problems = self.undo.unwind();
        for problem in &problems {
            report(Report::Notice(&format!("could not take back {problem}; the next run tries again")));
        }
        if problems.is_empty() {
            self.alive.over();
        }
        let _ = reap_dead(&self.state);
        lived?;
        written?;
        let outcome = outcome.ok_or(Error::SidecarLost)?;
        Ok(Finished { run: self.run, outcome })
    }
}

fn outcome(lived: &Lived, command: &str) -> Outcome {
    let summary = lived.summary.clone().unwrap_or_default();
    let usage = lived.usage.unwrap_or_default();
    let (exit_code, text) = match lived.end {
        End::Ended(Ended::Signal(SIGKILL)) if usage.out_of_memory > 0 => {
            let peak = usage.memory_peak.map(|p| format!(" (it used {})", policy::ByteSize::from_bytes(p)));
            (128 + SIGKILL, format!("killed: out of memory{}", peak.unwrap_or_default()))
        }
        End::Ended(Ended::Code(code)) if usage.out_of_memory > 0 => {
            (code, format!("exited {code}; {} of its processes ran out of memory", usage.out_of_memory))
        }
        End::Ended(Ended::Code(code)) if usage.pids_refused > 0 => {
            (code, format!("exited {code}; it reached its limit of processes {} times", usage.pids_refused))
        }
        End::Ended(Ended::Code(code)) => (code, format!("exited {code}")),
        End::Ended(Ended::Signal(signal)) => (128 + signal, format!("ended by signal {signal}")),
        End::TimedOut => (TIMED_OUT, "timed out".into()),
        End::Killed(signal) => (128 + signal, format!("killed after signal {signal}")),
        End::NotExecuted(ENOENT) => (NOT_FOUND, format!("`{command}` was not found in the sandbox")),
        End::NotExecuted(errno) => {
            let why = std::io::Error::from_raw_os_error(errno);
            (NOT_EXECUTABLE, format!("`{command}` cannot be executed: {why}"))
        }
    };
    let Summary { allowed, denied, failed, models } = summary;
    Outcome { exit_code, summary: text, memory_peak: usage.memory_peak, allowed, denied, failed, models }
}
