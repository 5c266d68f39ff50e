//! The second half of every init: wait for the sidecar, start the command, reap, pass signals on, report the end.
//!
//! The report goes over a socket the command does not have. When the parent or the sidecar is gone, init goes too.

use std::ffi::{CString, OsString};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, WaitOptions, WaitStatus};
use serde::{Deserialize, Serialize};
use sys::descriptor;
use sys::signal::{self, Signals};

use crate::handshake::{self, Ended, Event};
use crate::inlet::Inlets;
use crate::plan::Plan;
use crate::setup::{self, SetUp};
use crate::spawn;
use crate::started::Stdio;

/// `SIGCHLD`, signal(7).
const SIGCHLD: i32 = 17;

/// `SIGKILL`, signal(7).
const SIGKILL: i32 = 9;

/// `SIGUSR1`, `SIGUSR2`, `SIGCONT` and `SIGWINCH`, signal(7): of what the parent passes on they ask nobody to end.
const NEWS: [i32; 4] = [10, 12, 18, 28];

/// What a command is started with.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Launch {
    /// The command and its arguments.
    pub(crate) command: Vec<OsString>,
    /// Where it starts.
    pub(crate) directory: PathBuf,
    /// Its environment.
    pub(crate) environment: Vec<(String, String)>,
    /// The command that tells whether it is healthy, where there is one.
    #[serde(default)]
    pub(crate) probe: Vec<OsString>,
    /// What is run before it.
    #[serde(default)]
    pub(crate) setup: Vec<SetUp>,
}

impl Launch {
    /// The command, as a plan has it.
    pub(crate) fn of(plan: &Plan, command: &[OsString]) -> Self {
        Self {
            command: command.to_vec(),
            directory: plan.directory.clone(),
            environment: plan.environment.clone(),
            probe: plan.probe.iter().map(OsString::from).collect(),
            setup: plan.setup.iter().map(SetUp::of).collect(),
        }
    }
}

/// What init supervises, and whom it talks to.
pub(crate) struct Supervised<'a> {
    pub(crate) launch: &'a Launch,
    pub(crate) stdio: &'a Stdio,
    pub(crate) control: BorrowedFd<'a>,
    pub(crate) sidecar: BorrowedFd<'a>,
    /// The line on which sockets of this network are asked for.
    pub(crate) inlet: Option<&'a OwnedFd>,
    /// Ends every process of the sandbox but this one.
    pub(crate) end_rest: fn(),
}

impl Supervised<'_> {
    pub(crate) fn end_rest(&self) {
        (self.end_rest)();
    }
}

/// A step that failed, in words for the parent.
#[derive(Clone)]
pub(crate) struct Failure {
    pub(crate) step: String,
    pub(crate) cause: String,
}

/// What the preparation left for the start of the command.
pub(crate) struct Ready {
    pub(crate) notices: Vec<String>,
    /// The master side of a terminal, and the name of its other side.
    pub(crate) terminal: Option<(OwnedFd, CString)>,
}

/// Runs init to its end; the answer is the exit status of its process, which nobody reads.
pub(crate) fn run(it: &Supervised<'_>, prepared: Result<Ready, Failure>) -> i32 {
    match prepared.map_err(Some).and_then(|ready| live(it, ready)) {
        Ok(ended) => {
            // Before the end is told, so that whoever hears of it may take away what held the sandbox.
            it.end_rest();
            // Told before the sidecar is let go: a parent that saw the sidecar go first would take it for lost.
            let _ = Event::Ended(ended).send(it.control);
            let _ = rustix::net::shutdown(it.sidecar, rustix::net::Shutdown::Write);
            await_last_word(it.sidecar);
        }
        Err(Some(Failure { step, cause })) => {
            let _ = Event::Failed { step, cause }.send(it.control);
        }
        Err(None) => {}
    }
    0
}

/// How long the sidecar may take over its last record before nobody waits for it.
const LAST_WORD: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

/// Leaves the processor to the sidecar, which is told to end, until it has: the kernel lets nobody between while it takes a
/// sandbox apart, and the parent waits for the sidecar's last word.
fn await_last_word(sidecar: BorrowedFd<'_>) {
    let mut gone = [PollFd::from_borrowed_fd(sidecar, PollFlags::IN)];
    let _ = rustix::event::poll(&mut gone, Some(&LAST_WORD));
}

/// Waits for the sidecar, has the sandbox set up, and starts the command: how it ended. Where it cannot be executed that is told, and
/// where somebody is gone nobody is left to tell: neither is a failure with a name.
fn live(it: &Supervised<'_>, ready: Ready) -> Result<Ended, Option<Failure>> {
    let control = it.control;
    let fail =
        |step: &str, error: std::io::Error| Some(Failure { step: step.into(), cause: error.to_string() });
    let signals = Signals::block(&[SIGCHLD]).map_err(|e| fail("watch for ended processes", e))?;
    handshake::await_ready(it.sidecar).map_err(|e| fail("wait for the sidecar", e))?;
    let mut terminal = None;
    if let Some((master, name)) = ready.terminal {
        terminal = Some(name);
        Event::Terminal(master).send(control).map_err(|e| fail("hand the terminal over", e))?;
    }
    let directory = &it.launch.directory;
    rustix::process::chdir(directory)
        .map_err(|e| fail(&format!("enter {}", directory.display()), e.into()))?;
    descriptor::close_on_exec_from_3().map_err(|e| fail("close descriptors", e))?;
    let inlets = Inlets::of(it.inlet.and_then(|line| line.try_clone().ok()));
    let mut watch = Watch { it, signals, inlets, asked: None };
    let mut started = Some(Event::Started { notices: ready.notices });
    let mut held = None;
    if !it.launch.setup.is_empty() {
        // The time of the run begins with the first of them.
        let _ = started.take().map(|started| started.send(control));
        let hold = terminal.as_deref().map(setup::hold).transpose();
        held = hold.map_err(|e| fail("keep the terminal open", e))?;
        if let Some(ended) = setup::run(&mut watch, terminal.as_deref())? {
            return Ok(ended);
        }
    }
    let spawned = spawn::spawn(it.launch, it.stdio, terminal.as_deref());
    drop(held);
    match spawned {
        Ok(command) => {
            let _ = started.map(|started| started.send(control));
            match watch.until(command, None) {
                Seen::Ended(ended) => Ok(ended),
                Seen::Late | Seen::Gone => Err(None),
            }
        }
        Err(error) => {
            let errno = error.raw_os_error().unwrap_or(0);
            let _ = Event::NotExecuted { errno }.send(control);
            Err(None)
        }
    }
}

/// What came of waiting for a process.
pub(crate) enum Seen {
    /// It has ended.
    Ended(Ended),
    /// Its time is over, and it has not.
    Late,
    /// The parent or the sidecar is gone.
    Gone,
}

/// Whoever waits, hears and answers while a process runs.
pub(crate) struct Watch<'a> {
    pub(crate) it: &'a Supervised<'a>,
    signals: Signals,
    inlets: Inlets,
    /// The signal by which the parent asked for an end.
    pub(crate) asked: Option<i32>,
}

impl Watch<'_> {
    /// Reaps every child until the one that is meant has ended, its time is over, or the parent or the sidecar is gone. What is left is
    /// ended after that: by the kernel with the pid namespace, or by the `process` backend one by one.
    pub(crate) fn until(&mut self, pid: Pid, deadline: Option<Instant>) -> Seen {
        let it = self.it;
        loop {
            let mut ready = vec![
                PollFd::new(&self.signals, PollFlags::IN),
                PollFd::new(&it.control, PollFlags::IN),
                PollFd::new(&it.sidecar, PollFlags::IN),
            ];
            ready.extend(self.inlets.lines().map(|line| PollFd::from_borrowed_fd(line, PollFlags::IN)));
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let wait = left.and_then(|left| Timespec::try_from(left).ok());
            match rustix::event::poll(&mut ready, wait.as_ref()) {
                Ok(0) if left.is_some_and(|left| left.is_zero()) => return Seen::Late,
                Ok(_) => {}
                Err(_) => continue, // interrupted
            }
            let is_ready: Vec<bool> = ready.iter().map(|p| !p.revents().is_empty()).collect();
            let [child, control, sidecar, asked @ ..] = is_ready.as_slice() else { return Seen::Gone };
            let (child, control, sidecar) = (*child, *control, *sidecar);
            // From the last one on: a line that is let go of moves those after it.
            for line in (0..asked.len()).rev().filter(|line| asked[*line]) {
                self.inlets.answer(line, || probe(it.launch));
            }
            if child {
                while let Ok(Some(_)) = self.signals.next() {}
                if let Some(ended) = reap(pid, &mut self.inlets) {
                    return Seen::Ended(ended);
                }
            }
            if control {
                match handshake::receive_signal(it.control) {
                    Ok(Some(number)) => {
                        if !NEWS.contains(&number) {
                            self.asked = Some(number);
                        }
                        let _ = signal::send(-pid.as_raw_nonzero().get(), number);
                    }
                    _ => return Seen::Gone,
                }
            }
            if sidecar {
                // The sidecar says nothing more while it lives; readable means gone, and without it the run ends.
                return Seen::Gone;
            }
        }
    }
}

/// For an init that is PID 1 of its namespace: every other process there is killed and reaped.
pub(crate) fn end_rest() {
    let _ = signal::kill_all(SIGKILL);
    while rustix::process::wait(WaitOptions::empty()).is_ok() {}
}

/// Reaps whatever has ended; the end of the command, if it was among it.
fn reap(command: Pid, inlets: &mut Inlets) -> Option<Ended> {
    let mut found = None;
    while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
        if pid == command {
            found = ended(status);
        }
        inlets.ended(pid, status.exit_status() == Some(0));
    }
    found
}

/// Starts the command that tells whether the other one is healthy. Nobody hears what else it says.
fn probe(launch: &Launch) -> std::io::Result<Pid> {
    let null = || {
        let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC;
        rustix::fs::open("/dev/null", flags, rustix::fs::Mode::empty())
    };
    let streams = Stdio::Descriptors([null()?, null()?, null()?]);
    spawn::spawn(&Launch { command: launch.probe.clone(), ..launch.clone() }, &streams, None)
}

fn ended(status: WaitStatus) -> Option<Ended> {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => Some(Ended::Code(code)),
        (None, Some(signal)) => Some(Ended::Signal(signal)),
        (None, None) => None,
    }
}
