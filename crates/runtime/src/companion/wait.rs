//! Waits for the descriptors of companions.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};

/// Waits until one of the descriptors is readable, or for `longest`.
pub(super) fn wait_for<'a>(list: impl IntoIterator<Item = BorrowedFd<'a>>, longest: Duration) {
    let mut fds: Vec<PollFd<'_>> =
        list.into_iter().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
    // Callers look again in any case, so an interruption does not matter.
    let _ = rustix::event::poll(&mut fds, Timespec::try_from(longest).ok().as_ref());
}

pub(super) fn readable(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    matches!(rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(1..))
}
