//! poll(2) over descriptors that the caller names by an enum, instead of by their place in a list.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

/// A descriptor to wait for: its name, and the events that end the wait. An error or a hang-up always ends it.
pub type Source<'a, K> = (K, BorrowedFd<'a>, PollFlags);

/// Waits until at least one source is ready, and returns the names of the ready ones in the order given. Returns none if
/// `patience` has run out or a signal interrupted the wait. Without `patience` the wait has no limit.
///
/// # Errors
/// When poll(2) fails.
pub fn wait<K: Copy>(sources: &[Source<'_, K>], patience: Option<Duration>) -> io::Result<Vec<K>> {
    let mut polled: Vec<PollFd<'_>> = sources
        .iter()
        .map(|(_, descriptor, events)| PollFd::from_borrowed_fd(*descriptor, *events))
        .collect();
    let patience = patience.map(|it| Timespec {
        tv_sec: it.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: it.subsec_nanos().into(),
    });
    match rustix::event::poll(&mut polled, patience.as_ref()) {
        Ok(_) => {}
        Err(Errno::INTR) => return Ok(Vec::new()),
        Err(errno) => return Err(errno.into()),
    }
    let ready = sources.iter().zip(&polled).filter(|(_, polled)| !polled.revents().is_empty());
    Ok(ready.map(|((name, ..), _)| *name).collect())
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsFd;

    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Name {
        First,
        Second,
    }

    #[test]
    fn what_is_ready_is_named_and_a_hang_up_counts() {
        let (first, first_writer) = io::pipe().unwrap();
        let (second, mut second_writer) = io::pipe().unwrap();
        let sources =
            [(Name::First, first.as_fd(), PollFlags::IN), (Name::Second, second.as_fd(), PollFlags::IN)];
        let at_once = Some(Duration::ZERO);
        assert!(wait(&sources, at_once).unwrap().is_empty());
        second_writer.write_all(b"x").unwrap();
        assert_eq!(wait(&sources, None).unwrap(), [Name::Second]);
        drop(first_writer);
        assert_eq!(wait(&sources, at_once).unwrap(), [Name::First, Name::Second]);
    }
}
