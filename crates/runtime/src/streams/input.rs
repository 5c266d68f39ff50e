//! Copies the caller's input to a pipe that the command reads.
//!
//! No more is taken from the caller than the command has read, as if the command had the stream itself: a shell that reads its script,
//! or a `while read` loop, goes on where the command left off. So input is copied without being consumed, which the kernel can do for a
//! pipe (tee(2)), a file (pread(2)) and a socket (`MSG_PEEK`), and what the command has read is consumed afterwards. A pipe does not
//! say when it was emptied unless it has room for one piece only: then it is writable exactly when it is empty.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::fs::{FileType, Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use rustix::pipe::SpliceFlags;

use super::wait::wait;
use super::{kind, pipe};

/// The capacity of a pipe of one piece.
const PIECE: usize = 4096;
/// How much of a file is read at once.
const CHUNK: usize = 64 * 1024;

/// How often the pipe is polled where it cannot say that it was emptied.
const GLANCE: Duration = Duration::from_millis(1);

/// How the caller's input is read without being consumed.
enum Source {
    Pipe {
        nothing: OwnedFd,
    },
    Socket,
    File {
        /// The offset of the next piece.
        position: u64,
    },
    /// A device: reading consumes.
    Other,
}

/// The caller's input, and the pipe through which the command reads it.
pub(crate) struct Input {
    from: OwnedFd,
    /// `None` after the end of the input, so that the reader sees the end.
    to: Option<OwnedFd>,
    /// A duplicate of the command's end, to see how much it has not read.
    theirs: OwnedFd,
    source: Source,
}

impl Input {
    /// Makes the input from a stream, and the end that the command gets.
    pub(super) fn from(stream: BorrowedFd<'_>) -> io::Result<(Self, OwnedFd)> {
        let (theirs, to) = pipe()?;
        rustix::io::ioctl_fionbio(&to, true)?;
        let source = match kind(&rustix::fs::fstat(stream)?) {
            FileType::Fifo => {
                let flags = OFlags::WRONLY | OFlags::CLOEXEC;
                Source::Pipe { nothing: rustix::fs::open("/dev/null", flags, Mode::empty())? }
            }
            FileType::Socket => Source::Socket,
            FileType::RegularFile => {
                Source::File { position: rustix::fs::seek(stream, SeekFrom::Current(0))? }
            }
            _ => Source::Other,
        };
        if !matches!(source, Source::File { .. }) {
            rustix::pipe::fcntl_setpipe_size(&to, PIECE)?;
        }
        let input =
            Self { from: stream.try_clone_to_owned()?, to: Some(to), theirs: theirs.try_clone()?, source };
        Ok((input, theirs))
    }

    /// Copies until the input ends, an error occurs, or the run is `over`.
    pub(super) fn carry(mut self, over: BorrowedFd<'_>) {
        let mut buffer = vec![0; if matches!(self.source, Source::File { .. }) { CHUNK } else { PIECE }];
        let mut handed_over = 0;
        let _ = self.until_end(over, &mut buffer, &mut handed_over);
        self.to = None;
        let _ = wait([(over, PollFlags::IN)]);
        // The command has read nothing of what is still in the pipe.
        let _ = self.settle(handed_over.saturating_sub(self.unread()), &mut buffer);
    }

    /// Returns how much is in the pipe.
    fn unread(&self) -> usize {
        let unread = rustix::io::ioctl_fionread(&self.theirs).unwrap_or(0);
        usize::try_from(unread).unwrap_or(usize::MAX)
    }

    fn until_end(
        &mut self,
        over: BorrowedFd<'_>,
        buffer: &mut [u8],
        handed_over: &mut usize,
    ) -> io::Result<()> {
        loop {
            // Waits until the command has read the last piece; for a file, until there is room for more.
            let Some(to) = &self.to else { return Ok(()) };
            let [_, is_over] = wait([(to.as_fd(), PollFlags::OUT), (over, PollFlags::IN)])?;
            if !is_over.is_empty() {
                return Ok(());
            }
            if !matches!(self.source, Source::File { .. }) {
                if self.unread() > 0 {
                    // The command enlarged the pipe, so room no longer means that it is empty.
                    std::thread::sleep(GLANCE);
                    continue;
                }
                self.settle(std::mem::take(handed_over), buffer)?;
            }
            let [_, is_over] = wait([(self.from.as_fd(), PollFlags::IN), (over, PollFlags::IN)])?;
            if !is_over.is_empty() {
                return Ok(());
            }
            match self.hand_over(buffer) {
                Ok(0) => return Ok(()),
                Ok(length) => *handed_over += length,
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Copies the next piece without consuming it, and returns its length: 0 at the end.
    fn hand_over(&mut self, buffer: &mut [u8]) -> Result<usize, Errno> {
        let Some(to) = &self.to else { return Ok(0) };
        match &mut self.source {
            Source::Pipe { .. } => rustix::pipe::tee(&self.from, to, PIECE, SpliceFlags::NONBLOCK),
            Source::Socket => {
                let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
                let (length, _) = rustix::net::recv(&self.from, &mut *buffer, flags)?;
                rustix::io::write(to, &buffer[..length])
            }
            Source::File { position } => {
                let length = rustix::io::pread(&self.from, &mut *buffer, *position)?;
                let written = rustix::io::write(to, &buffer[..length])?;
                *position += written as u64;
                Ok(written)
            }
            Source::Other => {
                let length = rustix::io::read(&self.from, &mut *buffer)?;
                rustix::io::write(to, &buffer[..length])
            }
        }
    }

    /// Consumes what the command has read from the caller's stream.
    fn settle(&self, mut left: usize, buffer: &mut [u8]) -> io::Result<()> {
        match &self.source {
            Source::File { .. } => {
                // From its current offset: another process may read it as well.
                rustix::fs::seek(&self.from, SeekFrom::Current(i64::try_from(left).unwrap_or(i64::MAX)))?;
            }
            Source::Other => {}
            Source::Pipe { nothing } => {
                while left > 0 {
                    let flags = SpliceFlags::NONBLOCK;
                    match rustix::pipe::splice(&self.from, None, nothing, None, left, flags) {
                        // Another process reads it as well, and was faster.
                        Ok(0) | Err(Errno::AGAIN) => break,
                        Ok(taken) => left -= taken,
                        Err(errno) => return Err(errno.into()),
                    }
                }
            }
            Source::Socket => {
                while left > 0 {
                    let rest = left.min(buffer.len());
                    match rustix::net::recv(&self.from, &mut buffer[..rest], RecvFlags::DONTWAIT) {
                        Ok((0, _)) | Err(Errno::AGAIN) => break,
                        Ok((taken, _)) => left -= taken,
                        Err(errno) => return Err(errno.into()),
                    }
                }
            }
        }
        Ok(())
    }
}
