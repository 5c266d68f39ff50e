//! The socket broker: a sandbox's init hands out unconnected sockets of the sandbox's network over a Unix socket, the line.
//!
//! The outer end of a line reaches what listens inside. No process inside has it, and a line opens no way out.
//!
//! ```text
//! outside ─ '4' | '6' ─► init: a socket of that family        '4' | '6', with the descriptor
//!         ─ 'a' ───────►       another line like this one     'a', with the descriptor
//!         ─ 'p' ───────►       run the health command         'p' and its result, once it has ended: on a line of its own
//!         ─ 's' ───────►       end the health command
//!         ◄─ 'n' ───────       at an engine: the number of its network, once the network is made
//! ```
//! No descriptor crosses into an engine's container, so there the shim has the inner end. It sends the network's number unasked, and
//! passes health requests on.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use policy::IpFamily;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::{Pid, Signal};
use sys::descriptor;

use crate::run_network::RunNetwork;

/// The most lines that one init serves.
const MOST_LINES: usize = 64;
/// How long a caller waits for init's answer.
const PATIENCE: Duration = Duration::from_secs(10);

const V4: u8 = b'4';
const V6: u8 = b'6';
const ANOTHER: u8 = b'a';
pub(crate) const PROBE: u8 = b'p';
/// The results of the health command, in the octet after `PROBE`.
const UNWELL: u8 = 0;
const WELL: u8 = 1;
const NOT_BEGUN: u8 = 2;
pub(crate) const STOP: u8 = b's';
const NETWORK: u8 = b'n';

/// The outer end of a line to a sandbox's init.
#[derive(Debug)]
pub struct SocketBroker(OwnedFd);

/// The outer end of a line on which nothing but the health command is asked for: its result comes at any time, and would elsewhere be
/// taken for the answer to what was asked last.
#[derive(Debug)]
pub struct HealthLine(OwnedFd);

/// The result of the health command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probed {
    /// It exited with 0.
    Well,
    /// It exited with another code, or a signal ended it.
    Unwell,
    /// It could not be executed.
    NotBegun,
}

impl SocketBroker {
    /// Makes a line. Returns its outer end and its inner end, which is for init.
    ///
    /// # Errors
    /// When `socketpair(2)` fails.
    pub fn pair() -> io::Result<(Self, OwnedFd)> {
        descriptor::message_pair().map(|(outer, inner)| (Self(outer), inner))
    }

    /// Opens another line to the same init, for another process.
    ///
    /// # Errors
    /// When init does not answer in time, or is gone.
    pub fn another(&self) -> io::Result<Self> {
        self.ask(ANOTHER).map(Self)
    }

    /// Opens a line for the health command.
    ///
    /// # Errors
    /// When init does not answer in time, or is gone.
    pub fn health_line(&self) -> io::Result<HealthLine> {
        self.ask(ANOTHER).map(HealthLine)
    }

    /// Returns an engine's only line as that for the health command, once the network has come on it: nothing else is asked there.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub fn health_line_at_engine(&self) -> io::Result<HealthLine> {
        self.0.try_clone().map(HealthLine)
    }

    /// Returns an unconnected, non-blocking TCP socket of the sandbox's network.
    ///
    /// # Errors
    /// When init does not answer in time, or is gone.
    pub fn socket(&self, family: IpFamily) -> io::Result<OwnedFd> {
        self.ask(request(family))
    }

    /// Returns the network that the engine made for the run. The shim sends it once, before any answer.
    ///
    /// # Errors
    /// When the shim does not send it in time, or is gone.
    pub fn network(&self) -> io::Result<RunNetwork> {
        self.await_answer()?;
        let mut buffer = [0; 4];
        match descriptor::receive(&self.0, &mut buffer)?.0 {
            [NETWORK, low, high] => Ok(RunNetwork::numbered(u16::from_le_bytes([*low, *high]).into())),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Returns the line itself, for a process that uses [`ask_for_socket`] and [`take_socket`].
    #[must_use]
    pub fn into_line(self) -> OwnedFd {
        self.0
    }

    fn ask(&self, request: u8) -> io::Result<OwnedFd> {
        descriptor::send(&self.0, &[request], &[])?;
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

impl HealthLine {
    /// Starts the health command.
    ///
    /// # Errors
    /// When init is gone.
    pub fn begin_probe(&self) -> io::Result<()> {
        descriptor::send(&self.0, &[PROBE], &[])
    }

    /// Returns the result of the health command. The line is readable when there is one.
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

    /// Ends the health command.
    ///
    /// # Errors
    /// When init is gone.
    pub fn end_probe(&self) -> io::Result<()> {
        descriptor::send(&self.0, &[STOP], &[])
    }
}

impl AsFd for HealthLine {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Asks for a socket on a line. The line is readable when init has answered.
///
/// # Errors
/// When init is gone.
pub fn ask_for_socket(line: BorrowedFd<'_>, family: IpFamily) -> io::Result<()> {
    descriptor::send(line, &[request(family)], &[])
}

fn request(family: IpFamily) -> u8 {
    match family {
        IpFamily::V4 => V4,
        IpFamily::V6 => V6,
    }
}

/// Receives the socket that was asked for.
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

/// Sends the number of an engine's network to the outer end of a line. An outer end that is gone does not need it.
pub(crate) fn tell_network(line: &OwnedFd, network: RunNetwork) {
    let [low, high] = network.number().to_le_bytes();
    let _ = descriptor::send(line, &[NETWORK, low, high], &[]);
}

/// The inner ends of the lines, as init serves them.
#[derive(Debug, Default)]
pub(crate) struct SocketBrokers {
    lines: Vec<OwnedFd>,
    /// The running health command, and the line whose peer asked for it.
    probe: Option<(Pid, usize)>,
}

impl SocketBrokers {
    pub(crate) fn of(first: Option<OwnedFd>) -> Self {
        Self { lines: first.into_iter().collect(), probe: None }
    }

    /// Returns the lines. One is readable when its peer asks for something.
    pub(crate) fn lines(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.lines.iter().map(AsFd::as_fd)
    }

    /// Answers a request on a line. Drops the line if its peer is gone or the request is not understood.
    pub(crate) fn answer(&mut self, line: usize, start_probe: impl FnOnce() -> io::Result<Pid>) {
        let mut buffer = [0; 2];
        let asked = match descriptor::receive(&self.lines[line], &mut buffer) {
            Ok(([asked], _)) => *asked,
            _ => 0,
        };
        let done = match asked {
            V4 | V6 => {
                let family = if asked == V4 { AddressFamily::INET } else { AddressFamily::INET6 };
                let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
                let made = rustix::net::socket_with(family, SocketType::STREAM, flags, None);
                self.give(line, asked, made.ok())
            }
            ANOTHER => {
                let pair = (self.lines.len() < MOST_LINES).then(descriptor::message_pair);
                let (outer, inner) = pair.and_then(Result::ok).unzip();
                self.lines.extend(inner);
                self.give(line, asked, outer)
            }
            // One at a time: no peer could end a second one.
            PROBE if self.probe.is_some() => descriptor::send(&self.lines[line], &[PROBE, UNWELL], &[]),
            PROBE => match start_probe() {
                Ok(pid) => {
                    self.probe = Some((pid, line));
                    Ok(())
                }
                Err(_) => descriptor::send(&self.lines[line], &[PROBE, NOT_BEGUN], &[]),
            },
            STOP => {
                if let Some((pid, _)) = &self.probe {
                    let _ = rustix::process::kill_process_group(*pid, Signal::KILL);
                }
                Ok(())
            }
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        };
        if done.is_err() {
            self.forget(line);
        }
    }

    /// Reports the end of a process to the line that asked for it, if it was the health command.
    pub(crate) fn ended(&mut self, pid: Pid, healthy: bool) {
        if let Some((_, line)) = self.probe.take_if(|(probe, _)| *probe == pid)
            && let Some(line) = self.lines.get(line)
        {
            let _ = descriptor::send(line, &[PROBE, if healthy { WELL } else { UNWELL }], &[]);
        }
    }

    fn give(&self, line: usize, asked: u8, descriptor: Option<OwnedFd>) -> io::Result<()> {
        let given: Vec<BorrowedFd<'_>> = descriptor.iter().map(AsFd::as_fd).collect();
        descriptor::send(&self.lines[line], &[asked], &given)
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
        for (family, expected) in [(IpFamily::V4, AddressFamily::INET), (IpFamily::V6, AddressFamily::INET6)]
        {
            ask_for_socket(outer.as_fd(), family).unwrap();
            brokers.answer(0, no_probe);
            let socket = take_socket(outer.as_fd()).unwrap();
            let domain = rustix::net::sockopt::socket_domain(&socket).unwrap();
            assert_eq!(domain, expected);
        }
        descriptor::send(&outer.0, &[ANOTHER], &[]).unwrap();
        brokers.answer(0, no_probe);
        let second = SocketBroker(take_socket(outer.as_fd()).unwrap());
        assert_eq!(brokers.lines().count(), 2);
        ask_for_socket(second.as_fd(), IpFamily::V4).unwrap();
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
        let (outer, inner) = descriptor::message_pair().unwrap();
        let (outer, mut brokers) = (HealthLine(outer), SocketBrokers::of(Some(inner)));
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
    #[test]
    fn a_result_that_nobody_has_read_yet_is_no_answer_to_another_request() {
        let (outer, inner) = SocketBroker::pair().unwrap();
        let mut brokers = SocketBrokers::of(Some(inner));
        let asked = std::thread::spawn(move || (outer.health_line().unwrap(), outer));
        brokers.await_request(0);
        brokers.answer(0, no_probe);
        let (health, outer) = asked.join().unwrap();
        let pid = rustix::process::getpid();
        health.begin_probe().unwrap();
        brokers.answer(1, || Ok(pid));
        brokers.ended(pid, true);
        let asked =
            std::thread::spawn(move || (outer.another().unwrap(), outer.socket(IpFamily::V4).unwrap()));
        for _ in 0..2 {
            brokers.await_request(0);
            brokers.answer(0, no_probe);
        }
        let (another, socket) = asked.join().unwrap();
        assert_eq!(rustix::net::sockopt::socket_domain(&another).unwrap(), AddressFamily::UNIX);
        assert_eq!(rustix::net::sockopt::socket_domain(&socket).unwrap(), AddressFamily::INET);
        assert_eq!(health.probed().unwrap(), Probed::Well);
        drop(health);
        brokers.answer(1, no_probe);
        assert_eq!(brokers.lines().count(), 2, "its line goes with whoever asked");
    }

    impl SocketBrokers {
        /// Waits until the peer of a line asks for something.
        fn await_request(&self, line: usize) {
            let mut ready = [PollFd::new(&self.lines[line], PollFlags::IN)];
            let patience = Timespec::try_from(PATIENCE).ok();
            assert_eq!(rustix::event::poll(&mut ready, patience.as_ref()), Ok(1));
        }
    }
}
