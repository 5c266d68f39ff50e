//! Waits for the descriptors of companions.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::event::PollFlags;

/// Waits until one of the descriptors is readable, or for `longest`.
pub(super) fn wait_for<'a>(list: impl IntoIterator<Item = BorrowedFd<'a>>, longest: Duration) {
    let sources: Vec<_> = list.into_iter().map(|fd| ((), fd, PollFlags::IN)).collect();
    // Callers look again in any case, so a failure does not matter.
    let _ = sandbox::wait_for(&sources, Some(longest));
}

pub(super) fn readable(fd: BorrowedFd<'_>) -> bool {
    sandbox::wait_for(&[((), fd, PollFlags::IN)], Some(Duration::ZERO)).is_ok_and(|ready| !ready.is_empty())
}
