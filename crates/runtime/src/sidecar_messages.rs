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
pub(crate) const LONGEST_START: Duration = Duration::from_secs(60);
/// How long a sidecar that was told to end may take over its last message.
pub(crate) const LONGEST_END: Duration = Duration::from_secs(5);
/// The same where a run that ended well would fail without that message: its audit may be on a slow disk.
pub(crate) const LONGEST_GOOD_END: Duration = Duration::from_secs(60);
/// How long one is waited for that is stopped, or whose end a person asks for.
const LONGEST_STOP: Duration = Duration::from_secs(2);
/// How often it is looked whether it is stopped.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 500_000_000 };

/// The longest message, in octets.
pub(crate) const LONGEST_MESSAGE: usize = 8192;

/// Returns what a person is told of a panic of the sidecar. The connection it was at is cut, and the others go on.
pub(crate) fn panicked(what: &str) -> String {
    format!("a fault of the sidecar's own cut a connection; please report it: {what}")
}

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
/// sandbox is being made. One that has told nothing by then has failed.
pub(crate) fn await_first(notices: BorrowedFd<'_>, longest: Duration) -> io::Result<Option<SidecarMessage>> {
    let mut fds = [PollFd::from_borrowed_fd(notices, PollFlags::IN)];
    match rustix::event::poll(&mut fds, Timespec::try_from(longest).ok().as_ref())? {
        0 => Ok(Some(SidecarMessage::Failed {
            why: format!("start the sidecar: it did not begin within {} s", longest.as_secs()),
            remedy: Some("start it again, when this machine has less to do; something may also stop processes (SIGSTOP)".into()),
        })),
        _ => Ok(next(notices)?),
    }
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

/// Returns the summary of a sidecar whose sandbox is gone. What it still tells before that goes to `hear`. Its end closes its socket.
/// `is_given_up` is asked every half second, with how long it has been waited for.
pub(crate) fn await_summary(
    notices: BorrowedFd<'_>,
    is_given_up: impl Fn(Duration) -> bool,
    hear: &mut dyn FnMut(SidecarMessage),
) -> Option<Summary> {
    let begin = Instant::now();
    while !is_given_up(begin.elapsed()) {
        let mut fds = [PollFd::from_borrowed_fd(notices, PollFlags::IN)];
        let _ = rustix::event::poll(&mut fds, Some(&LOOK));
        match next(notices) {
            Ok(Some(SidecarMessage::Summary(summary))) => return Some(summary),
            Ok(Some(message)) => hear(message),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Ok(None) | Err(_) => return None,
        }
    }
    None
}

/// Whether a sidecar has been waited for too long. `is_in_vain` tells that it is stopped, or that the person wants the end.
pub(crate) fn is_too_late(waited: Duration, longest: Duration, is_in_vain: impl FnOnce() -> bool) -> bool {
    waited >= longest || (waited >= LONGEST_STOP && is_in_vain())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_sidecar_that_does_not_begin_is_told_of_with_what_helps() {
        let (ours, theirs) = sandbox::message_pair().unwrap();
        let Ok(Some(SidecarMessage::Failed { why, remedy })) =
            await_first(ours.as_fd(), Duration::from_millis(10))
        else {
            panic!("it is late");
        };
        assert!(why.contains("did not begin") && remedy.is_some(), "{why}");
        drop(theirs);
        assert!(matches!(await_first(ours.as_fd(), Duration::from_millis(10)), Ok(None)));
    }

    #[test]
    fn a_sidecar_that_is_late_is_waited_for_and_none_that_is_stopped_or_gone() {
        let waited = |is_stopped: bool, late: Option<Duration>| {
            let (ours, theirs) = sandbox::message_pair().unwrap();
            let sidecar = std::thread::spawn(move || {
                std::thread::sleep(late.unwrap_or_default());
                late.is_none().then_some(theirs)
            });
            let begin = Instant::now();
            let is_given_up = |waited| is_too_late(waited, LONGEST_END, || is_stopped);
            assert!(await_summary(ours.as_fd(), is_given_up, &mut |_| {}).is_none());
            let waited = begin.elapsed();
            drop(sidecar.join().unwrap());
            waited
        };
        let late = LONGEST_STOP + Duration::from_millis(500);
        assert!((late..LONGEST_END).contains(&waited(false, Some(late))));
        assert!((LONGEST_STOP..LONGEST_END).contains(&waited(true, None)));
        assert!(waited(false, Some(Duration::ZERO)) < LONGEST_STOP);
    }
}
