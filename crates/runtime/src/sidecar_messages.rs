//! The messages of a sidecar: takes them as they come, and waits for the first and the last.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use egress::{SidecarMessage, Summary};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::RecvFlags;

use crate::error::Error;

/// How long a sidecar on this machine may take to begin.
const LONGEST_START: Duration = Duration::from_secs(60);
/// How long a sidecar that was told to end may take over its last message.
const LONGEST_END: Duration = Duration::from_secs(5);

/// The longest message, in octets.
pub(crate) const LONGEST_MESSAGE: usize = 8192;

/// Returns the next message that has come, or none if there will be no more. What is no message is passed over.
///
/// # Errors
/// `EAGAIN` if none has come.
pub(crate) fn next(socket: impl AsFd) -> rustix::io::Result<Option<SidecarMessage>> {
    let mut buffer = [0; LONGEST_MESSAGE];
    loop {
        let (length, _) = rustix::net::recv(&socket, &mut buffer[..], RecvFlags::DONTWAIT)?;
        if length == 0 {
            return Ok(None);
        }
        if let Some(message) = SidecarMessage::parse(&buffer[..length]) {
            return Ok(Some(message));
        }
    }
}

/// Waits for the first message, which is the certificate of the run's authority or why there is none. The sidecar makes it while the
/// sandbox is being made.
pub(crate) fn await_first(notices: BorrowedFd<'_>) -> io::Result<Option<SidecarMessage>> {
    let mut fds = [PollFd::from_borrowed_fd(notices, PollFlags::IN)];
    rustix::event::poll(&mut fds, Timespec::try_from(LONGEST_START).ok().as_ref())?;
    Ok(next(notices)?)
}

/// Returns why a sidecar that is over failed, if it said so. What it told before that is passed over.
pub(crate) fn told_failure(notices: BorrowedFd<'_>) -> Option<Error> {
    while let Ok(Some(message)) = next(notices) {
        if let SidecarMessage::Failed { why, remedy } = message {
            return Some(Error::SidecarFailed { why, remedy });
        }
    }
    None
}

/// Returns the summary of a sidecar whose sandbox is gone. What it still tells before that goes to `hear`.
pub(crate) fn await_summary(
    notices: BorrowedFd<'_>,
    hear: &mut dyn FnMut(SidecarMessage),
) -> Option<Summary> {
    let deadline = Instant::now() + LONGEST_END;
    while Instant::now() < deadline {
        let mut fds = [PollFd::from_borrowed_fd(notices, PollFlags::IN)];
        let left = Timespec::try_from(deadline.saturating_duration_since(Instant::now())).ok();
        let _ = rustix::event::poll(&mut fds, left.as_ref());
        match next(notices) {
            Ok(Some(SidecarMessage::Summary(summary))) => return Some(summary),
            Ok(Some(message)) => hear(message),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Ok(None) | Err(_) => return None,
        }
    }
    None
}
