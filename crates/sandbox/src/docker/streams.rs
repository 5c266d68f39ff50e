//! The threads that feed the shim's mailbox. They block: a file, a pipe and a terminal of somebody else's must not be made
//! non-blocking.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};

use rustix::process::Signal;
use rustix::pty::OpenptFlags;
use rustix::termios::OptionalActions;
use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::mux::{CHUNK, Channel};
use crate::handshake;
use crate::launch::Stdio;

/// The longest certificate of a run's authority.
const LONGEST_CERTIFICATE: usize = 8192;
/// How many events may wait in a mailbox.
const MOST_EVENTS: usize = 16;

/// What a thread reports to the shim.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ShimEvent {
    /// The parent passes a signal on.
    Signal(i32),
    /// The parent is gone, or wants the run to end.
    ParentGone,
    /// The sidecar serves.
    SidecarReady,
    /// The sidecar is gone.
    SidecarGone,
    /// The certificate of the run's authority.
    Authority(String),
    /// A piece of the command's standard input.
    Input(Vec<u8>),
    /// The end of the command's standard input.
    InputEnd,
    /// One writer thread has written everything.
    Written,
    /// Nobody reads the output on this channel any more.
    Closed(Channel),
    /// A request of the socket broker about a companion.
    BrokerRequest(u8),
}

impl ShimEvent {
    /// Whether somebody asks the run to end, by a key or a supervisor, or is gone.
    pub(super) fn asks_to_end(&self) -> bool {
        const ENDS: [Signal; 4] = [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM];
        match self {
            Self::Signal(number) => ENDS.iter().any(|signal| signal.as_raw() == *number),
            Self::ParentGone => true,
            _ => false,
        }
    }
}

/// The shim's queue of events.
pub(super) struct Mailbox {
    pub(super) sender: Sender<ShimEvent>,
    pub(super) receiver: Receiver<ShimEvent>,
}

impl Mailbox {
    pub(super) fn new() -> Self {
        let (sender, receiver) = channel(MOST_EVENTS);
        Self { sender, receiver }
    }
}

/// The shim's ends of the command's streams.
pub(super) struct Streams {
    pub(super) input: File,
    pub(super) output: File,
    pub(super) errors: Option<File>,
    pub(super) terminal: Option<ShimTerminal>,
}

/// A raw terminal between the parent and the shim.
pub(super) struct ShimTerminal {
    /// The parent's side.
    pub(super) master: OwnedFd,
    /// The shim's side, from which the size is read.
    pub(super) ours: OwnedFd,
}

impl Streams {
    /// Takes the caller's descriptors, or opens a raw terminal whose master is the parent's. The terminal the command sees
    /// is in the container; this one only carries octets.
    pub(super) fn open(stdio: Stdio) -> io::Result<Self> {
        match stdio {
            Stdio::Descriptors([input, output, errors]) => Ok(Self {
                input: input.into(),
                output: output.into(),
                errors: Some(errors.into()),
                terminal: None,
            }),
            Stdio::Terminal { .. } => {
                let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
                let master = rustix::pty::openpt(flags)?;
                rustix::pty::unlockpt(&master)?;
                let ours = rustix::pty::ioctl_tiocgptpeer(&master, flags)?;
                let mut raw = rustix::termios::tcgetattr(&ours)?;
                raw.make_raw();
                rustix::termios::tcsetattr(&ours, OptionalActions::Now, &raw)?;
                let again = || ours.try_clone().map(File::from);
                Ok(Self {
                    input: again()?,
                    output: again()?,
                    errors: None,
                    terminal: Some(ShimTerminal { master, ours: ours.try_clone()? }),
                })
            }
        }
    }
}

/// Reads the command's input until it ends or the receiver is gone.
pub(super) fn read_input(mut input: File, events: Sender<ShimEvent>) {
    std::thread::spawn(move || {
        let mut buffer = vec![0; CHUNK];
        loop {
            match input.read(&mut buffer) {
                Ok(0) => break,
                Ok(length) => {
                    if events.blocking_send(ShimEvent::Input(buffer[..length].to_vec())).is_err() {
                        return;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        let _ = events.blocking_send(ShimEvent::InputEnd);
    });
}

/// Writes the pieces it receives. Once the reader is gone it reports that, and drops the rest.
pub(super) fn write_output(
    mut output: File,
    channel: Channel,
    mut pieces: Receiver<Vec<u8>>,
    events: Sender<ShimEvent>,
) {
    std::thread::spawn(move || {
        let mut open = true;
        while let Some(piece) = pieces.blocking_recv() {
            if open && output.write_all(&piece).is_err() {
                open = false;
                let _ = events.blocking_send(ShimEvent::Closed(channel));
            }
        }
        drop(output);
        let _ = events.blocking_send(ShimEvent::Written);
    });
}

/// Reports the parent's signals, and its end.
pub(super) fn watch_parent(control: OwnedFd, events: Sender<ShimEvent>) {
    std::thread::spawn(move || {
        loop {
            let event = match handshake::receive_signal(control.as_fd()) {
                Ok(Some(number)) => ShimEvent::Signal(number),
                _ => ShimEvent::ParentGone,
            };
            let is_last = event == ShimEvent::ParentGone;
            if events.blocking_send(event).is_err() || is_last {
                return;
            }
        }
    });
}

/// Reports the requests of the socket broker until its other end is gone.
pub(super) fn watch_broker(broker: OwnedFd, events: Sender<ShimEvent>) {
    std::thread::spawn(move || {
        let mut buffer = [0; 2];
        while let Ok(([request], _)) = sys::descriptor::receive(&broker, &mut buffer) {
            if events.blocking_send(ShimEvent::BrokerRequest(*request)).is_err() {
                return;
            }
        }
    });
}

/// Reports the certificate of the run's authority once the parent hands it over.
pub(super) fn receive_authority(hand: OwnedFd, events: Sender<ShimEvent>) {
    std::thread::spawn(move || {
        let mut buffer = [0; LONGEST_CERTIFICATE];
        if let Ok((pem, _)) = sys::descriptor::receive(&hand, &mut buffer)
            && !pem.is_empty()
        {
            let _ = events.blocking_send(ShimEvent::Authority(String::from_utf8_lossy(pem).into_owned()));
        }
    });
}

/// Reports that the sidecar serves, and then that it is gone.
pub(super) fn watch_sidecar(stand_in: OwnedFd, events: Sender<ShimEvent>) {
    std::thread::spawn(move || {
        if handshake::await_ready(stand_in.as_fd()).is_ok()
            && events.blocking_send(ShimEvent::SidecarReady).is_ok()
        {
            // It reports readiness once: whatever comes next is its end.
            let _ = handshake::await_ready(stand_in.as_fd());
        }
        let _ = events.blocking_send(ShimEvent::SidecarGone);
    });
}
