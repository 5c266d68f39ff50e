//! The shim's side of the command's streams: threads that wait, because a file, a pipe and a terminal of somebody else's must
//! not be made to return at once.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};

use rustix::pty::OpenptFlags;
use rustix::termios::OptionalActions;
use tokio::sync::mpsc::{Receiver, Sender};

use super::mux::{CHUNK, Channel};
use crate::handshake;
use crate::launch::Stdio;

/// The longest certificate of an authority of ours.
const LONGEST_CERTIFICATE: usize = 8192;

/// What the threads tell.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// The parent passes a signal on.
    Signal(i32),
    /// The parent is gone, or wants this to end.
    ParentGone,
    /// The sidecar serves.
    SidecarReady,
    /// The sidecar is gone.
    SidecarGone,
    /// The certificate of the run's authority.
    Authority(String),
    /// Something for the command to read.
    Input(Vec<u8>),
    /// There is nothing more.
    InputEnd,
    /// Everything that was to be written is.
    Written,
    /// Nobody reads what is written there any more.
    Closed(Channel),
    /// Something is asked of a companion.
    Asked(u8),
}

/// Where the command's octets come from and go to.
pub(super) struct Streams {
    pub(super) input: File,
    pub(super) output: File,
    pub(super) errors: Option<File>,
    /// The parent's side of a terminal, and ours once more, to see its size by.
    pub(super) terminal: Option<(OwnedFd, OwnedFd)>,
}

impl Streams {
    /// The caller's own, or those of a terminal whose other side is the parent's. The terminal that counts is in the
    /// container; this one only carries.
    pub(super) fn open(stdio: Stdio) -> io::Result<Self> {
        match stdio {
            Stdio::Descriptors([input, output, errors]) => Ok(Self {
                input: input.into(),
                output: output.into(),
                errors: Some(errors.into()),
                terminal: None,
            }),
            Stdio::Terminal => {
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
                    terminal: Some((master, ours.try_clone()?)),
                })
            }
        }
    }
}

/// Reads until there is nothing more, or nobody wants it.
pub(super) fn read_in(mut input: File, words: Sender<Word>) {
    std::thread::spawn(move || {
        let mut buffer = vec![0; CHUNK];
        loop {
            match input.read(&mut buffer) {
                Ok(0) => break,
                Ok(length) => {
                    if words.blocking_send(Word::Input(buffer[..length].to_vec())).is_err() {
                        return;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        let _ = words.blocking_send(Word::InputEnd);
    });
}

/// Writes whatever comes. Where nobody reads any more, that is told, and the rest is dropped.
pub(super) fn write_out(
    mut output: File,
    channel: Channel,
    mut pieces: Receiver<Vec<u8>>,
    words: Sender<Word>,
) {
    std::thread::spawn(move || {
        let mut open = true;
        while let Some(piece) = pieces.blocking_recv() {
            if open && output.write_all(&piece).is_err() {
                open = false;
                let _ = words.blocking_send(Word::Closed(channel));
            }
        }
        drop(output);
        let _ = words.blocking_send(Word::Written);
    });
}

/// Tells what the parent says.
pub(super) fn hear_parent(control: OwnedFd, words: Sender<Word>) {
    std::thread::spawn(move || {
        loop {
            let word = match handshake::receive_signal(control.as_fd()) {
                Ok(Some(number)) => Word::Signal(number),
                _ => Word::ParentGone,
            };
            let last = word == Word::ParentGone;
            if words.blocking_send(word).is_err() || last {
                return;
            }
        }
    });
}

/// Tells what is asked of a companion.
pub(super) fn serve_broker(broker: OwnedFd, words: Sender<Word>) {
    std::thread::spawn(move || {
        let mut buffer = [0; 2];
        // With its other end gone, nothing more is asked.
        while let Ok(([wish], _)) = sys::descriptor::receive(&broker, &mut buffer) {
            if words.blocking_send(Word::Asked(*wish)).is_err() {
                return;
            }
        }
    });
}

/// Tells the certificate of the run's authority, once the parent hands it over.
pub(super) fn hear_authority(hand: OwnedFd, words: Sender<Word>) {
    std::thread::spawn(move || {
        let mut buffer = [0; LONGEST_CERTIFICATE];
        if let Ok((pem, _)) = sys::descriptor::receive(&hand, &mut buffer)
            && !pem.is_empty()
        {
            let _ = words.blocking_send(Word::Authority(String::from_utf8_lossy(pem).into_owned()));
        }
    });
}

/// Tells that the sidecar serves, and when it is gone.
pub(super) fn hear_sidecar(link: OwnedFd, words: Sender<Word>) {
    std::thread::spawn(move || {
        if handshake::await_ready(link.as_fd()).is_ok() && words.blocking_send(Word::SidecarReady).is_ok() {
            // It says nothing more: what comes is its end.
            let _ = handshake::await_ready(link.as_fd());
        }
        let _ = words.blocking_send(Word::SidecarGone);
    });
}
