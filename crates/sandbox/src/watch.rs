//! Whoever waits for a process in a sandbox: reaps, passes signals on, and answers who asks for sockets.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, WaitOptions, WaitStatus};
use sys::signal::{self, Signals};

use crate::event::Ended;
use crate::launch::{Launch, Stdio};
use crate::socket_broker::SocketBrokers;
use crate::{handshake, spawn};

/// `SIGKILL`, signal(7).
const SIGKILL: i32 = 9;

/// `SIGUSR1`, `SIGUSR2`, `SIGCONT` and `SIGWINCH`, signal(7): of what the parent passes on they ask nobody to end.
const NEWS: [i32; 4] = [10, 12, 18, 28];

/// `SIGCHLD`, signal(7).
const SIGCHLD: i32 = 17;

/// What init supervises, and whom it talks to.
pub(crate) struct Supervised<'a> {
    pub(crate) launch: &'a Launch,
    pub(crate) stdio: &'a Stdio,
    pub(crate) control: BorrowedFd<'a>,
    pub(crate) sidecar: BorrowedFd<'a>,
    /// The line on which sockets of this network are asked for.
    pub(crate) broker: Option<&'a OwnedFd>,
    /// Ends every process of the sandbox but this one.
    pub(crate) end_rest: fn(),
}

impl Supervised<'_> {
    pub(crate) fn end_rest(&self) {
        (self.end_rest)();
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
    brokers: SocketBrokers,
    /// The signal by which the parent asked for an end.
    pub(crate) asked: Option<i32>,
}

impl<'a> Watch<'a> {
    /// Begins to watch for ended processes, and for who asks for sockets.
    pub(crate) fn of(it: &'a Supervised<'a>) -> io::Result<Self> {
        let signals = Signals::block(&[SIGCHLD])?;
        let brokers = SocketBrokers::of(it.broker.and_then(|line| line.try_clone().ok()));
        Ok(Self { it, signals, brokers, asked: None })
    }

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
            ready.extend(self.brokers.lines().map(|line| PollFd::from_borrowed_fd(line, PollFlags::IN)));
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
                self.brokers.answer(line, || probe(it.launch));
            }
            if child {
                while let Ok(Some(_)) = self.signals.next() {}
                if let Some(ended) = reap(pid, &mut self.brokers) {
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
fn reap(command: Pid, brokers: &mut SocketBrokers) -> Option<Ended> {
    let mut found = None;
    while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
        if pid == command {
            found = ended(status);
        }
        brokers.ended(pid, status.exit_status() == Some(0));
    }
    found
}

/// Starts the command that tells whether the other one is healthy. Nobody hears what else it says.
fn probe(launch: &Launch) -> io::Result<Pid> {
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
