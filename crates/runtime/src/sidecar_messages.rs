//! Waits for the first and the last message of a sidecar.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use egress::{SidecarMessage, Summary};
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::report::Report;

/// How long a sidecar on this machine may take to begin.
const LONGEST_START: Duration = Duration::from_secs(60);
/// How long a sidecar that was told to end may take over its last message.
const LONGEST_END: Duration = Duration::from_secs(5);

/// Waits for the certificate of the run's authority, which the sidecar makes while the sandbox is being made.
pub(crate) fn await_authority(notices: BorrowedFd<'_>) -> io::Result<Vec<u8>> {
    let mut buffer = [0; 8192];
    let mut fds = [PollFd::from_borrowed_fd(notices, PollFlags::IN)];
    rustix::event::poll(&mut fds, Timespec::try_from(LONGEST_START).ok().as_ref())?;
    let (length, _) = rustix::net::recv(notices, &mut buffer[..], rustix::net::RecvFlags::DONTWAIT)?;
    match SidecarMessage::parse(&buffer[..length]) {
        Some(SidecarMessage::Authority(pem)) => Ok(pem.into_bytes()),
        Some(SidecarMessage::Failed { why, .. }) => Err(io::Error::other(format!("it failed to {why}"))),
        _ => Err(io::Error::other("it told something else than its authority")),
    }
}

/// Reports what the sidecar still tells after the command has ended, and returns its summary.
pub(crate) fn await_summary(notices: BorrowedFd<'_>, report: &mut dyn FnMut(Report<'_>)) -> Option<Summary> {
    let mut buffer = [0; 8192];
    let deadline = Instant::now() + LONGEST_END;
    while Instant::now() < deadline {
        let mut fds = [PollFd::from_borrowed_fd(notices, PollFlags::IN)];
        let left = Timespec::try_from(deadline.saturating_duration_since(Instant::now())).ok();
        let _ = rustix::event::poll(&mut fds, left.as_ref());
        match rustix::net::recv(notices, &mut buffer[..], rustix::net::RecvFlags::DONTWAIT) {
            Ok((length @ 1.., _)) => match SidecarMessage::parse(&buffer[..length]) {
                Some(SidecarMessage::Denied(notice)) => report(Report::Denied(&notice)),
                Some(SidecarMessage::Summary(summary)) => return Some(summary),
                Some(SidecarMessage::Failed { why, .. }) => {
                    report(Report::Notice(&format!("the sidecar failed to {why}")));
                }
                Some(SidecarMessage::Authority(_)) | None => {}
            },
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            _ => return None,
        }
    }
    None
}
