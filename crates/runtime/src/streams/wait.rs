//! Waiting until one of several descriptors is ready, however long that takes.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;

/// Waits until one of them is ready: what each is ready for.
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
