//! The broker: a line on which a sandbox's init hands out sockets of the sandbox's own network, unconnected. Whoever has its other
//! end can reach what listens inside; nobody inside has it, and nothing leads out by it.
//!
//! ```text
//! outside ─ '4' | '6' ─► init: a socket of that family        '4' | '6', with the descriptor
//!         ─ 'a' ───────►       another line like this one     'a', with the descriptor
//!         ─ 'p' ───────►       the command that tells health  'p' and 1 where it exited with 0, once it has
//!         ─ 's' ───────►       ends that command
//!         ◄─ 'n' ───────       at an engine: the number of its network, once it is made
//! ```
//! At an engine no descriptor can be handed out, so the shim has the inner end: it tells the network, before it is asked anything,
//! and answers what is asked about health by passing it on.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::Pid;
use sys::{descriptor, signal};

use crate::run_network::RunNetwork;

/// How many lines one init serves.
const MOST_LINES: usize = 64;
/// How long init may take over a socket.
const PATIENCE: Duration = Duration::from_secs(10);
const SIGKILL: i32 = 9;

const V4: u8 = b'4';
const V6: u8 = b'6';
const ANOTHER: u8 = b'a';
pub(crate) const PROBE: u8 = b'p';
/// What follows in the answer to it.
const UNWELL: u8 = 0;
const WELL: u8 = 1;
const NOT_BEGUN: u8 = 2;
pub(crate) const STOP: u8 = b's';
const NETWORK: u8 = b'n';

/// The outer end of a line.
#[derive(Debug)]
pub struct SocketBroker(OwnedFd);

/// What the command that tells health came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probed {
    /// It ended with 0.
    Well,
    /// It ended in another way.
    Unwell,
    /// It could not be executed.
    NotBegun,
}

impl SocketBroker {
    /// Makes a line: its outer end, and the one for init.
    ///
    /// # Errors
    /// Whatever `socketpair(2)` gives.
    pub fn pair() -> io::Result<(Self, OwnedFd)> {
        descriptor::message_pair().map(|(outer, inner)| (Self(outer), inner))
    }

    /// Another line to the same init, for another process.
    ///
    /// # Errors
    /// When init does not answer in time, or is gone.
    pub fn another(&self) -> io::Result<Self> {
        self.ask(ANOTHER).map(Self)
    }

    /// A socket of the sandbox's network, not connected, which does not block.
    ///
    /// # Errors
    /// When init does not answer in time, or is gone.
    pub fn socket(&self, v6: bool) -> io::Result<OwnedFd> {
        self.ask(if v6 { V6 } else { V4 })
    }

    /// The network it is on, where an engine made it: told once, and the first that is.
    ///
    /// # Errors
    /// When the shim does not tell it in time, or is gone.
    pub fn network(&self) -> io::Result<RunNetwork> {
        self.await_answer()?;
        let mut buffer = [0; 4];
        match descriptor::receive(&self.0, &mut buffer)?.0 {
            [NETWORK, low, high] => Ok(RunNetwork::numbered(u16::from_le_bytes([*low, *high]).into())),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Begins the command that tells whether what runs inside is healthy.
    ///
    /// # Errors
    /// When init is gone.
    pub fn begin_probe(&self) -> io::Result<()> {
        descriptor::send(&self.0, &[PROBE], &[])
    }

    /// What it says, once it has ended.
    ///
    /// # Errors
    /// When init is gone.
    pub fn probed(&self) -> io::Result<Probed> {
        let mut buffer = [0; 2];
        match descriptor::receive(&self.0, &mut buffer)?.0 {
            [PROBE, WELL] => Ok(Probed::Well),
            [PROBE, NOT_BEGUN] => Ok(Probed::NotBegun),
            [PROBE, _] => Ok(Probed::Unwell),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Ends that command.
    ///
    /// # Errors
    /// When init is gone.
    pub fn end_probe(&self) -> io::Result<()> {
        descriptor::send(&self.0, &[STOP], &[])
    }

    /// The line itself, for a process that asks by [`ask_for_socket`] and [`take_socket`].
    #[must_use]
    pub fn into_line(self) -> OwnedFd {
        self.0
    }

    fn ask(&self, wish: u8) -> io::Result<OwnedFd> {
        descriptor::send(&self.0, &[wish], &[])?;
        self.await_answer()?;
        take_socket(self.0.as_fd())
    }

    fn await_answer(&self) -> io::Result<()> {
        let mut ready = [PollFd::new(&self.0, PollFlags::IN)];
        if rustix::event::poll(&mut ready, Timespec::try_from(PATIENCE).ok().as_ref())? == 0 {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(())
    }
}

impl AsFd for SocketBroker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Asks for a socket on a line; the line is readable when it is there.
///
/// # Errors
/// When init is gone.
pub fn ask_for_socket(line: BorrowedFd<'_>, v6: bool) -> io::Result<()> {
    descriptor::send(line, &[if v6 { V6 } else { V4 }], &[])
}

/// Takes what was asked for.
///
/// # Errors
/// When init is gone, or had none to give.
pub fn take_socket(line: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut buffer = [0; 2];
    let (message, mut descriptors) = descriptor::receive(line, &mut buffer)?;
    match (message, descriptors.pop()) {
        ([], _) => Err(io::ErrorKind::UnexpectedEof.into()),
        (_, Some(socket)) => Ok(socket),
        (_, None) => Err(io::Error::other("there is no socket left inside")),
    }
}

/// Tells the network on a line's inner end, for whoever is to reach it. One that is gone needs none.
pub(crate) fn tell_network(line: &OwnedFd, network: RunNetwork) {
    let [low, high] = network.number().to_le_bytes();
    let _ = descriptor::send(line, &[NETWORK, low, high], &[]);
}

/// The inner ends of the lines, as init serves them.
#[derive(Debug, Default)]
pub(crate) struct SocketBrokers {
    lines: Vec<OwnedFd>,
    /// The command that tells health, and the line it was asked for on.
    probe: Option<(Pid, usize)>,
}

impl SocketBrokers {
    pub(crate) fn of(first: Option<OwnedFd>) -> Self {
        Self { lines: first.into_iter().collect(), probe: None }
    }

    /// What becomes readable when something is asked for.
    pub(crate) fn lines(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.lines.iter().map(AsFd::as_fd)
    }

    /// Answers what was asked for on a line. One whose other end is gone is let go of: nobody asks on it again.
    pub(crate) fn answer(&mut self, line: usize, start_probe: impl FnOnce() -> io::Result<Pid>) {
        let mut buffer = [0; 2];
        let wish = match descriptor::receive(&self.lines[line], &mut buffer) {
            Ok(([wish], _)) => *wish,
            _ => 0,
        };
        let done = match wish {
            V4 | V6 => {
                let family = if wish == V4 { AddressFamily::INET } else { AddressFamily::INET6 };
                let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
                let made = rustix::net::socket_with(family, SocketType::STREAM, flags, None);
                self.give(line, wish, made.ok())
            }
            ANOTHER => {
                let pair = (self.lines.len() < MOST_LINES).then(descriptor::message_pair);
                let (outer, inner) = pair.and_then(Result::ok).unzip();
                self.lines.extend(inner);
                self.give(line, wish, outer)
            }
            // One at a time: a second one would be nobody's to end.
            PROBE if self.probe.is_some() => descriptor::send(&self.lines[line], &[PROBE, UNWELL], &[]),
            PROBE => match start_probe() {
                Ok(pid) => {
                    self.probe = Some((pid, line));
                    Ok(())
                }
                Err(_) => descriptor::send(&self.lines[line], &[PROBE, NOT_BEGUN], &[]),
            },
            STOP => {
                if let Some((pid, _)) = self.probe {
                    let _ = signal::send(-pid.as_raw_nonzero().get(), SIGKILL);
                }
                Ok(())
            }
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        };
        if done.is_err() {
            self.forget(line);
        }
    }

    /// A process has ended: if it was the one that tells health, what it told is passed on.
    pub(crate) fn ended(&mut self, pid: Pid, healthy: bool) {
        if let Some((_, line)) = self.probe.take_if(|(probe, _)| *probe == pid)
            && let Some(line) = self.lines.get(line)
        {
            let _ = descriptor::send(line, &[PROBE, if healthy { WELL } else { UNWELL }], &[]);
        }
    }

    fn give(&self, line: usize, wish: u8, descriptor: Option<OwnedFd>) -> io::Result<()> {
        let given: Vec<BorrowedFd<'_>> = descriptor.iter().map(AsFd::as_fd).collect();
        descriptor::send(&self.lines[line], &[wish], &given)
    }

    fn forget(&mut self, line: usize) {
        self.lines.remove(line);
        self.probe = match self.probe {
            Some((_, asked)) if asked == line => None,
            Some((pid, asked)) if asked > line => Some((pid, asked - 1)),
            other => other,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn no_probe() -> io::Result<Pid> {
        Err(io::ErrorKind::NotFound.into())
    }

    #[test]
    fn sockets_and_lines_are_handed_out() {
        let (outer, inner) = SocketBroker::pair().unwrap();
        let mut brokers = SocketBrokers::of(Some(inner));
        for v6 in [false, true] {
            ask_for_socket(outer.as_fd(), v6).unwrap();
            brokers.answer(0, no_probe);
            let socket = take_socket(outer.as_fd()).unwrap();
            let domain = rustix::net::sockopt::socket_domain(&socket).unwrap();
            assert_eq!(domain, if v6 { AddressFamily::INET6 } else { AddressFamily::INET });
        }
        descriptor::send(&outer.0, &[ANOTHER], &[]).unwrap();
        brokers.answer(0, no_probe);
        let second = SocketBroker(take_socket(outer.as_fd()).unwrap());
        assert_eq!(brokers.lines().count(), 2);
        ask_for_socket(second.as_fd(), false).unwrap();
        brokers.answer(1, no_probe);
        assert!(take_socket(second.as_fd()).is_ok());
    }

    #[test]
    fn lines_are_bounded_and_what_is_not_understood_ends_one() {
        let (outer, inner) = SocketBroker::pair().unwrap();
        let mut brokers = SocketBrokers::of(Some(inner));
        let mut kept = Vec::new();
        for _ in 1..MOST_LINES {
            descriptor::send(&outer.0, &[ANOTHER], &[]).unwrap();
            brokers.answer(0, no_probe);
            kept.push(take_socket(outer.as_fd()).unwrap());
        }
        descriptor::send(&outer.0, &[ANOTHER], &[]).unwrap();
        brokers.answer(0, no_probe);
        assert!(take_socket(outer.as_fd()).is_err());
        descriptor::send(&outer.0, b"x", &[]).unwrap();
        brokers.answer(0, no_probe);
        assert_eq!(brokers.lines().count(), MOST_LINES - 1);
        assert_eq!(take_socket(outer.as_fd()).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn health_is_told_on_the_line_it_was_asked_for_on() {
        let (outer, inner) = SocketBroker::pair().unwrap();
        let mut brokers = SocketBrokers::of(Some(inner));
        outer.begin_probe().unwrap();
        brokers.answer(0, no_probe);
        assert_eq!(outer.probed().unwrap(), Probed::NotBegun, "one that cannot be started is not healthy");
        let pid = rustix::process::getpid();
        for healthy in [true, false] {
            outer.begin_probe().unwrap();
            brokers.answer(0, || Ok(pid));
            outer.begin_probe().unwrap();
            brokers.answer(0, || unreachable!("one is under way"));
            assert_eq!(outer.probed().unwrap(), Probed::Unwell);
            brokers.ended(Pid::from_raw(1).unwrap(), !healthy);
            brokers.ended(pid, healthy);
            assert_eq!(outer.probed().unwrap() == Probed::Well, healthy);
        }
    }
}
