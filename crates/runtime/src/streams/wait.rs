//! Waits until one of several descriptors is ready, without a time limit.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;

/// Waits until one of the descriptors is ready, and returns the events of each.
pub(super) fn wait<const N: usize>(fds: [(BorrowedFd<'_>, PollFlags); N]) -> io::Result<[PollFlags; N]> {
    let mut fds = fds.map(|(fd, flags)| PollFd::from_borrowed_fd(fd, flags));
    loop {
        match rustix::event::poll(&mut fds, None) {
            Ok(_) => return Ok(fds.map(|fd| fd.revents())),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}
