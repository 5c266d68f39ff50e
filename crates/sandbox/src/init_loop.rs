//! The event loop of a sandbox's init: it waits for a process, reaps children, passes signals on and serves the socket broker.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions};
use sys::poll;
use sys::process::Exit;
use sys::signal::{self, Signals};

use crate::launch::{Launch, Stdio};
use crate::oom_score::OomScore;
use crate::socket_broker::SocketBrokers;
use crate::{grace, handshake, spawn};

/// The signals from the parent that do not ask for an end.
const NOTIFICATIONS: [Signal; 5] = [Signal::USR1, Signal::USR2, Signal::STOP, Signal::CONT, Signal::WINCH];

/// The signals from the parent that are for all processes, whatever group they are in: a suspended run is.
const FOR_ALL: [Signal; 2] = [Signal::STOP, Signal::CONT];

/// How many processes are reaped at once. Each makes room for another, so that there may always be a next one.
const MOST_REAPED: usize = 64;

/// A command under supervision, and the sockets of its supervisor.
pub(crate) struct Supervised<'a> {
    pub(crate) launch: &'a Launch,
    pub(crate) stdio: &'a Stdio,
    pub(crate) control: BorrowedFd<'a>,
    pub(crate) sidecar: BorrowedFd<'a>,
    /// The inner end of the socket broker's line.
    pub(crate) broker: Option<&'a OwnedFd>,
    /// Asks every process of the sandbox but this one to end, and ends those that do not.
    pub(crate) end_rest: fn(),
    /// Lets the kernel end what is started before this process, where both share a limit of memory.
    pub(crate) oom_score: Option<OomScore>,
}

impl Supervised<'_> {
    pub(crate) fn end_rest(&self) {
        (self.end_rest)();
    }

    /// Starts a command of the run's, on a terminal if one was opened.
    pub(crate) fn spawn(&self, launch: &Launch, stdio: &Stdio, terminal: Option<&CStr>) -> io::Result<Pid> {
        let spawn = || spawn::spawn(launch, stdio, terminal);
        self.oom_score.as_ref().map_or_else(spawn, |score| score.start_nearer(spawn))
    }
}

/// Why a wait for a process is over.
pub(crate) enum WaitEnd {
    /// It has ended.
    Ended(Exit),
    /// The deadline has passed.
    Late,
    /// The parent or the sidecar is gone.
    Gone,
}

/// The event loop of a supervisor.
pub(crate) struct InitLoop<'a> {
    pub(crate) it: &'a Supervised<'a>,
    signals: Signals,
    brokers: SocketBrokers,
    /// The last signal by which the parent asked for an end.
    pub(crate) asked: Option<i32>,
    /// Whether processes may have ended that are not reaped yet.
    unreaped: bool,
}

impl<'a> InitLoop<'a> {
    /// Blocks `SIGCHLD`, so that it can be read from a descriptor, and opens the broker's line.
    ///
    /// # Errors
    /// When `SIGCHLD` cannot be watched.
    pub(crate) fn of(it: &'a Supervised<'a>) -> io::Result<Self> {
        let signals = Signals::block(&[Signal::CHILD.as_raw()])?;
        let brokers = SocketBrokers::of(it.broker.and_then(|line| line.try_clone().ok()));
        Ok(Self { it, signals, brokers, asked: None, unreaped: false })
    }

    /// Serves until the process `pid` has ended, the deadline has passed, or the parent or the sidecar is gone. The caller then ends the
    /// remaining processes: the kernel does it with the pid namespace, and the `process` backend one by one.
    pub(crate) fn until(&mut self, pid: Pid, deadline: Option<Instant>) -> WaitEnd {
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let patience = if self.unreaped { Some(Duration::ZERO) } else { left };
            let Ok(ready) = self.wait(patience) else { continue };
            if ready.is_empty() && left.is_some_and(|left| left.is_zero()) {
                return WaitEnd::Late;
            }
            // From the last one on: removing a line moves those after it.
            for line in ready.iter().rev().filter_map(Ready::broker_line) {
                self.brokers.answer(line, || probe(self.it));
            }
            if self.unreaped || ready.contains(&Ready::Child) {
                while let Ok(Some(_)) = self.signals.next() {}
                if let Some(ended) = self.reap(pid) {
                    return WaitEnd::Ended(ended);
                }
            }
            if ready.contains(&Ready::Parent) && !self.pass_signal_on(pid) {
                return WaitEnd::Gone;
            }
            if ready.contains(&Ready::Sidecar) {
                // The sidecar sends nothing more while it lives: its socket is readable because it is gone, which ends the run.
                return WaitEnd::Gone;
            }
        }
    }

    /// Waits for an event, `patience` long at most.
    fn wait(&self, patience: Option<Duration>) -> io::Result<Vec<Ready>> {
        let mut sources = vec![
            (Ready::Child, self.signals.as_fd(), PollFlags::IN),
            (Ready::Parent, self.it.control, PollFlags::IN),
            (Ready::Sidecar, self.it.sidecar, PollFlags::IN),
        ];
        let lines = self.brokers.lines().enumerate();
        sources.extend(lines.map(|(at, line)| (Ready::Broker(at), line, PollFlags::IN)));
        poll::wait(&sources, patience)
    }

    /// Reaps processes that have ended, until the command is among them. Returns how it ended.
    fn reap(&mut self, command: Pid) -> Option<Exit> {
        self.unreaped = true;
        for _ in 0..MOST_REAPED {
            let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) else {
                self.unreaped = false;
                return None;
            };
            self.brokers.ended(pid, status.exit_status() == Some(0));
            if pid == command {
                return Exit::of(status.exit_status(), status.terminating_signal());
            }
        }
        None
    }

    /// Passes a signal of the parent's on, to all processes or to the process group of `pid`. Returns whether the parent is still there.
    fn pass_signal_on(&mut self, pid: Pid) -> bool {
        let Ok(Some(number)) = handshake::receive_signal(self.it.control) else { return false };
        if !NOTIFICATIONS.iter().any(|signal| signal.as_raw() == number) {
            self.asked = Some(number);
        }
        let for_all = FOR_ALL.into_iter().find(|signal| signal.as_raw() == number);
        if for_all.is_none_or(|signal| signal::send_to_all_as_init(signal).is_err()) {
            let _ = signal::send_to_group(pid, number);
        }
        true
    }
}

/// An event that a supervisor waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ready {
    Child,
    Parent,
    Sidecar,
    /// A request on the broker's line of this number.
    Broker(usize),
}

impl Ready {
    fn broker_line(&self) -> Option<usize> {
        match self {
            Self::Broker(line) => Some(*line),
            _ => None,
        }
    }
}

/// Ends and reaps every other process of the pid namespace, of which the caller is the init. Those that do not end when they are asked to,
/// and what comes into being meanwhile, are killed.
pub(crate) fn end_rest() {
    if signal::send_to_all_as_init(Signal::TERM).is_ok() {
        grace::wait_until(is_none_left);
    }
    if signal::send_to_all_as_init(Signal::KILL).is_err() {
        return; // what was not killed may never end
    }
    while rustix::process::wait(WaitOptions::empty()).is_ok() {}
}

/// Reaps children that have ended, of very many some. Returns whether there is none any more: an init has every orphan for a child.
fn is_none_left() -> bool {
    let reap = |_| match rustix::process::wait(WaitOptions::NOHANG) {
        Ok(Some(_)) => None,
        Ok(None) => Some(false),
        Err(errno) => Some(errno == Errno::CHILD),
    };
    (0..MOST_REAPED).find_map(reap).unwrap_or(false)
}

/// Starts the health command, with its output discarded.
fn probe(it: &Supervised<'_>) -> io::Result<Pid> {
    let null = || {
        let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC;
        rustix::fs::open("/dev/null", flags, rustix::fs::Mode::empty())
    };
    let streams = Stdio::Descriptors([null()?, null()?, null()?]);
    it.spawn(&Launch { command: it.launch.probe.clone(), ..it.launch.clone() }, &streams, None)
}
