//! From a pipe that the command writes to, to one of the caller's streams.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::PollFlags;
use rustix::io::Errno;

use super::wait::wait;
use super::{is_same, pipe};
use crate::line_start;

/// How much is moved at once: what a pipe holds.
const CHUNK: usize = 64 * 1024;

/// One of the caller's streams, and what the command writes for it.
pub(crate) struct Output {
    from: OwnedFd,
    to: OwnedFd,
    name: &'static str,
    /// Whether the person is told things there as well.
    pub(super) is_told_to: bool,
}

/// What could not be written.
#[derive(Debug)]
pub(crate) struct Unwritten {
    /// Where to.
    pub(crate) name: &'static str,
    /// Why.
    pub(crate) source: io::Error,
}

impl Output {
    /// One that leads to a stream, and what the command is given for it.
    pub(super) fn to(stream: BorrowedFd<'_>, name: &'static str) -> io::Result<(Self, OwnedFd)> {
        let (from, theirs) = pipe()?;
        Ok((Self { from, to: stream.try_clone_to_owned()?, name, is_told_to: false }, theirs))
    }

    /// Whether it leads to this stream.
    pub(super) fn leads_to(&self, stream: BorrowedFd<'_>) -> bool {
        is_same(self.to.as_fd(), stream).is_ok_and(|same| same)
    }

    /// Carries what is written until nobody can write any more, or what was in the pipe once it was `over`: whoever is left of the command,
    /// as without isolation somebody may be, keeps nobody waiting. The command hears of a reader that is
    /// gone as it would from the reader's own pipe, and so does one whose words are not taken for another reason.
    pub(super) fn carry(self, over: BorrowedFd<'_>) -> Result<(), Unwritten> {
        let mut buffer = vec![0; CHUNK];
        let mut left = None;
        let carried = loop {
            match self.take(over, &mut left, &mut buffer) {
                Ok(0) => break Ok(()),
                Ok(length) => {
                    if let Err(error) = write_all(self.to.as_fd(), &buffer[..length]) {
                        break Err(error);
                    }
                    if self.is_told_to {
                        line_start::carried(&buffer[..length]);
                    }
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

    /// What is there next; nothing at the end. Once it is over, how much is left is known.
    fn take(&self, over: BorrowedFd<'_>, left: &mut Option<u64>, buffer: &mut [u8]) -> io::Result<usize> {
        let [written, is_over] = wait([(self.from.as_fd(), PollFlags::IN), (over, PollFlags::IN)])?;
        if left.is_none() && !is_over.is_empty() {
            *left = Some(rustix::io::ioctl_fionread(&self.from)?);
        }
        if written.is_empty() || *left == Some(0) {
            return Ok(0);
        }
        let most = left.and_then(|left| usize::try_from(left).ok()).unwrap_or(usize::MAX).min(buffer.len());
        let read = rustix::io::retry_on_intr(|| rustix::io::read(&self.from, &mut buffer[..most]))?;
        *left = left.map(|left| left.saturating_sub(read as u64));
        Ok(read)
    }
}

/// Writes all of it. The stream may be one that does not wait, for whoever shares it wanted that.
fn write_all(stream: BorrowedFd<'_>, mut rest: &[u8]) -> io::Result<()> {
    while !rest.is_empty() {
        match rustix::io::write(stream, rest) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => rest = &rest[written..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => drop(wait([(stream, PollFlags::OUT)])?),
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}
