//! Copies from a pipe that the command writes to, to one of the caller's streams.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use super::wait::wait;
use super::{is_same, kind, pipe};
use crate::line_start;

/// How much is copied at once: the capacity of a pipe.
const CHUNK: usize = 64 * 1024;

/// One of the caller's streams, and the pipe through which the command writes to it.
pub(crate) struct Output {
    from: Arc<OwnedFd>,
    to: OwnedFd,
    name: &'static str,
    /// Whether this program writes its messages there as well.
    pub(super) is_told_to: bool,
    /// Whether a piece was read, or is about to be, that is not written yet.
    is_passing: Arc<AtomicBool>,
}

/// A look at an output on which this program tells its messages.
pub(super) struct Told {
    /// Held by the output alone: the command sees a closed pipe once that is gone.
    from: Weak<OwnedFd>,
    is_passing: Arc<AtomicBool>,
}

/// The longest wait until what the command has written is passed on. Who reads it may have stopped.
pub(super) const A_MOMENT: Duration = Duration::from_millis(20);

/// An output that could not be written.
#[derive(Debug)]
pub(crate) struct Unwritten {
    /// The stream's name.
    pub(crate) name: &'static str,
    /// Why.
    pub(crate) source: io::Error,
}

impl Unwritten {
    /// Returns the rest of an output that nobody took before the run had to end.
    pub(crate) fn given_up(name: &'static str) -> Self {
        Self { name, source: not_read() }
    }

    /// Whether nobody took it before the run had to end.
    pub(crate) fn is_given_up(&self) -> bool {
        self.source.kind() == io::ErrorKind::TimedOut
    }
}

fn not_read() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "nobody read the rest of it before the run was made to end")
}

impl Output {
    /// Makes the output to a stream, and the end that the command gets.
    pub(super) fn to(stream: BorrowedFd<'_>, name: &'static str) -> io::Result<(Self, OwnedFd)> {
        let (from, theirs) = pipe()?;
        let (to, is_passing) = (without_blocking(stream)?, Arc::default());
        Ok((Self { from: Arc::new(from), to, name, is_told_to: false, is_passing }, theirs))
    }

    /// Returns a look at it, if this program tells its messages there.
    pub(super) fn told(&self) -> Option<Told> {
        let (from, is_passing) = (Arc::downgrade(&self.from), Arc::clone(&self.is_passing));
        self.is_told_to.then_some(Told { from, is_passing })
    }

    /// Whether the output leads to this stream.
    pub(super) fn leads_to(&self, stream: BorrowedFd<'_>) -> bool {
        is_same(self.to.as_fd(), stream).is_ok_and(|same| same)
    }

    /// Copies until nobody can write any more. Once the run is `over`, it copies what is in the pipe and ends: a process of the command
    /// that is left, as there may be without isolation, holds nothing up. If the reader is gone, or its stream takes no more for
    /// another reason, the command sees a closed pipe. What a reader has not taken when it is `given_up` is lost, and that is an error.
    pub(super) fn carry(self, over: BorrowedFd<'_>, given_up: BorrowedFd<'_>) -> Result<(), Unwritten> {
        let mut buffer = vec![0; CHUNK];
        let mut left = None;
        let carried = loop {
            match self.take(over, &mut left, &mut buffer) {
                Ok(0) => break Ok(()),
                Ok(length) => {
                    if let Err(error) = write_all(self.to.as_fd(), &buffer[..length], given_up) {
                        break Err(error);
                    }
                    if self.is_told_to {
                        line_start::carried(&buffer[..length]);
                    }
                    self.is_passing.store(false, Ordering::Release);
                }
                Err(error) => break Err(error),
            }
        };
        match carried {
            Err(source) if source.kind() != io::ErrorKind::BrokenPipe => {
                Err(Unwritten { name: self.name, source })
            }
            _ => Ok(()),
        }
    }

    /// Reads the next piece: empty at the end. Once the run is over, only what is left in the pipe is read.
    fn take(&self, over: BorrowedFd<'_>, left: &mut Option<u64>, buffer: &mut [u8]) -> io::Result<usize> {
        let [written, is_over] = wait([(self.from.as_fd(), PollFlags::IN), (over, PollFlags::IN)])?;
        if left.is_none() && !is_over.is_empty() {
            *left = Some(rustix::io::ioctl_fionread(&*self.from)?);
        }
        if written.is_empty() || *left == Some(0) {
            return Ok(0);
        }
        let most = left.and_then(|left| usize::try_from(left).ok()).unwrap_or(usize::MAX).min(buffer.len());
        self.is_passing.store(true, Ordering::Release);
        let read = rustix::io::retry_on_intr(|| rustix::io::read(&*self.from, &mut buffer[..most]))?;
        *left = left.map(|left| left.saturating_sub(read as u64));
        Ok(read)
    }
}

impl Told {
    /// Waits, for a moment at most, until what the command has written is passed on: what is told now comes after it. Returns whether it
    /// is.
    pub(super) fn settle(&self, moment: Duration) -> bool {
        let end = Instant::now() + moment;
        while self.is_behind() {
            if Instant::now() >= end {
                return false;
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        true
    }

    /// Whether something is not passed on yet. In this order: a piece is marked before it is read.
    fn is_behind(&self) -> bool {
        let Some(from) = self.from.upgrade() else { return false };
        rustix::io::ioctl_fionread(&*from).is_ok_and(|unread| unread > 0)
            || self.is_passing.load(Ordering::Acquire)
    }
}

/// Returns a stream so that writing to it does not block, where it is a pipe: reopened, because those who share it may want to be blocked.
fn without_blocking(stream: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    if kind(&rustix::fs::fstat(stream)?) == FileType::Fifo
        && let Ok(reopened) =
            rustix::fs::open(format!("/proc/self/fd/{}", stream.as_raw_fd()), flags, Mode::empty())
    {
        return Ok(reopened);
    }
    stream.try_clone_to_owned()
}

/// Writes all that is left, unless the reader is given up first. The stream may be non-blocking because another process that shares it
/// wanted that.
fn write_all(stream: BorrowedFd<'_>, mut rest: &[u8], given_up: BorrowedFd<'_>) -> io::Result<()> {
    while !rest.is_empty() {
        match rustix::io::write(stream, rest) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => rest = &rest[written..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                let [_, is_given_up] = wait([(stream, PollFlags::OUT), (given_up, PollFlags::IN)])?;
                if !is_given_up.is_empty() {
                    return Err(not_read());
                }
            }
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}
