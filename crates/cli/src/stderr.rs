//! Writes to standard error whose wait has an end: a pipe or terminal that nobody reads must not hold up a run.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{FileType, Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use rustix::net::SendFlags;

/// How long a line waits for room while a run goes on.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);
/// How much is written at once. A pipe that polls as writable has room for that much, pipe(7).
const PIECE: usize = 4096;
/// Whether the last line found no room in time. Until one does, none waits again, however much there is to tell.
static STUCK: AtomicBool = AtomicBool::new(false);

/// Writes a line, or drops what is left of it once `patience` has run out. Returns whether all of it was taken; a reader that has gone
/// misses nothing.
pub(crate) fn write(line: &[u8], patience: Duration) -> bool {
    let stderr = std::io::stderr();
    let patience = if STUCK.load(Ordering::Relaxed) { Duration::ZERO } else { patience };
    let written = write_to(stderr.as_fd(), line, patience);
    STUCK.store(written == Err(Errno::AGAIN), Ordering::Relaxed);
    matches!(written, Ok(()) | Err(Errno::PIPE))
}

/// Has the next line wait as if none had been dropped.
pub(crate) fn forget_stuck() {
    STUCK.store(false, Ordering::Relaxed);
}

/// Moves to the end of a file, which is shared with the command: that may have moved anywhere in it.
pub(crate) fn seek_to_end() {
    // What is no file has no end to move to.
    let stderr = std::io::stderr();
    if kind(stderr.as_fd()).is_ok_and(FileType::is_file) {
        let _ = rustix::fs::seek(&stderr, SeekFrom::End(0));
    }
}

fn kind(stderr: BorrowedFd<'_>) -> Result<FileType, Errno> {
    Ok(FileType::from_raw_mode(rustix::fs::fstat(stderr)?.st_mode))
}

fn write_to(stderr: BorrowedFd<'_>, line: &[u8], patience: Duration) -> Result<(), Errno> {
    let sink = Sink::of(stderr)?;
    let deadline = Instant::now() + patience;
    let mut rest = line;
    while !rest.is_empty() {
        if sink.may_wait() {
            wait(stderr, deadline)?;
        }
        match sink.write(&rest[..rest.len().min(PIECE)]) {
            Ok(written) => rest = &rest[written..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if Instant::now() >= deadline => return Err(Errno::AGAIN),
            Err(Errno::AGAIN) => wait(stderr, deadline)?,
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Waits until there is room; `AGAIN` once the deadline has passed.
fn wait(stderr: BorrowedFd<'_>, deadline: Instant) -> Result<(), Errno> {
    let left = deadline.saturating_duration_since(Instant::now());
    let left = Timespec {
        tv_sec: left.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: left.subsec_nanos().into(),
    };
    match rustix::event::poll(&mut [PollFd::from_borrowed_fd(stderr, PollFlags::OUT)], Some(&left)) {
        Ok(0) => Err(Errno::AGAIN),
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// A way to write to standard error without waiting. `O_NONBLOCK` belongs to the open file description, which is shared with the
/// caller and the command, so it is set on none of theirs.
enum Sink<'a> {
    /// A regular file.
    File(BorrowedFd<'a>),
    /// What cannot be opened once more, as another user's terminal after su(1). A write to it may wait in spite of a poll before it.
    Shared(BorrowedFd<'a>),
    /// A pipe or terminal, by an open file description of our own.
    Reopened(OwnedFd),
    /// A socket.
    Socket(BorrowedFd<'a>),
}

impl<'a> Sink<'a> {
    fn of(stderr: BorrowedFd<'a>) -> Result<Self, Errno> {
        use std::os::fd::AsRawFd;
        match kind(stderr)? {
            FileType::Fifo | FileType::CharacterDevice => {
                let path = format!("/proc/self/fd/{}", stderr.as_raw_fd());
                let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
                Ok(rustix::fs::open(path, flags, Mode::empty()).map_or(Self::Shared(stderr), Self::Reopened))
            }
            FileType::Socket => Ok(Self::Socket(stderr)),
            FileType::RegularFile => Ok(Self::File(stderr)),
            _ => Ok(Self::Shared(stderr)),
        }
    }

    /// Whether a write waits where there is no room.
    fn may_wait(&self) -> bool {
        matches!(self, Self::Shared(_))
    }

    fn write(&self, piece: &[u8]) -> Result<usize, Errno> {
        match self {
            Self::File(stderr) | Self::Shared(stderr) => rustix::io::write(stderr, piece),
            Self::Reopened(stderr) => rustix::io::write(stderr, piece),
            Self::Socket(stderr) => {
                rustix::net::send(stderr, piece, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn nobody_who_does_not_read_is_waited_for() {
        let patience = Duration::from_millis(50);
        let (mut reader, writer) = std::io::pipe().unwrap();
        let (mut end, socket) = UnixStream::pair().unwrap();
        for (stderr, reader) in [(writer.as_fd(), &mut reader as &mut dyn Read), (socket.as_fd(), &mut end)] {
            assert_eq!(write_to(stderr, b"first\n", patience), Ok(()));
            let much = vec![b'x'; 1 << 20];
            let begun = Instant::now();
            assert_eq!(write_to(stderr, &much, patience), Err(Errno::AGAIN));
            assert!(begun.elapsed() < Duration::from_secs(10));
            let mut read = [0; 6];
            reader.read_exact(&mut read).unwrap();
            assert_eq!(&read, b"first\n");
            // Neither the caller's descriptor nor the command's waits less than before.
            assert!(!rustix::fs::fcntl_getfl(stderr).unwrap().contains(OFlags::NONBLOCK));
        }
    }

    #[test]
    fn a_file_takes_all_of_it() {
        let mut file = tempfile::tempfile().unwrap();
        assert_eq!(write_to(file.as_fd(), &vec![b'x'; 100_000], Duration::ZERO), Ok(()));
        file.write_all(b"more").unwrap();
        assert_eq!(file.metadata().unwrap().len(), 100_004);
    }
}
