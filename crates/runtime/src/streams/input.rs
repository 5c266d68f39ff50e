//! Copies the caller's input to a pipe that the command reads.
//!
//! No more is taken from the caller than the command has read, as if the command had the stream itself: a shell that reads its script,
//! or a `while read` loop, goes on where the command left off. So input is copied without being consumed, which the kernel can do for a
//! pipe (tee(2)), a file (pread(2)) and a socket (`MSG_PEEK`), and what the command has read is consumed afterwards. A pipe does not
//! say when it was emptied unless it has room for one piece only: then it is writable exactly when it is empty.
//!
//! Where another process reads the same pipe or socket meanwhile, what is next in it may not be what the command has read: that is left
//! to whoever reads it, and from then on input is consumed as it is copied, as by two plain readers. No read of a pipe or socket waits:
//! the other reader may be faster.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{FileType, OFlags, SeekFrom};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use rustix::pipe::SpliceFlags;

use super::wait::wait;
use super::{kind, null, pipe};

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
        /// A pipe through which a piece is looked at: its ends for reading and writing.
        glass: (OwnedFd, OwnedFd),
    },
    Socket,
    File {
        /// The offset of the next piece.
        position: u64,
    },
    /// A device: reading consumes.
    Other,
}

impl Source {
    /// Reads what is next without consuming it. Only a pipe and a socket can be looked at.
    fn peek(&self, from: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<usize, Errno> {
        match self {
            Self::Pipe { glass: (out, into), .. } => {
                let length = rustix::pipe::tee(from, into, buffer.len(), SpliceFlags::NONBLOCK)?;
                Self::read_glass(from, out, &mut buffer[..length])
            }
            Self::Socket => {
                let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
                rustix::net::recv(from, buffer, flags).map(|(length, _)| length)
            }
            Self::File { .. } | Self::Other => Err(Errno::INVAL),
        }
    }

    /// Reads what is next, and consumes it. Never waits, except for a device.
    fn take(&self, from: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<usize, Errno> {
        match self {
            Self::Pipe { glass: (out, into), .. } => {
                let length =
                    rustix::pipe::splice(from, None, into, None, buffer.len(), SpliceFlags::NONBLOCK)?;
                Self::read_glass(from, out, &mut buffer[..length])
            }
            Self::Socket => rustix::net::recv(from, buffer, RecvFlags::DONTWAIT).map(|(length, _)| length),
            Self::File { .. } | Self::Other => rustix::io::read(from, buffer),
        }
    }

    /// Reads what was moved out of a pipe. Nothing is its end only where nobody writes any more: another reader may have been faster.
    fn read_glass(from: BorrowedFd<'_>, out: &OwnedFd, buffer: &mut [u8]) -> Result<usize, Errno> {
        if !buffer.is_empty() {
            // One read takes one packet of a pipe in packet mode (`O_DIRECT`, pipe(2)).
            let mut read = 0;
            while read < buffer.len() {
                match rustix::io::read(out, &mut buffer[read..])? {
                    0 => break,
                    length => read += length,
                }
            }
            return Ok(read);
        }
        let mut end = [PollFd::from_borrowed_fd(from, PollFlags::IN)];
        rustix::event::poll(&mut end, Some(&Timespec::default()))?;
        if end[0].revents() == PollFlags::HUP { Ok(0) } else { Err(Errno::AGAIN) }
    }

    /// Consumes this much, which was looked at.
    fn consume(&self, from: BorrowedFd<'_>, mut left: usize, buffer: &mut [u8]) -> Result<(), Errno> {
        while left > 0 {
            let taken = match self {
                Self::Pipe { nothing, .. } => {
                    rustix::pipe::splice(from, None, nothing, None, left, SpliceFlags::NONBLOCK)?
                }
                Self::Socket => {
                    let rest = left.min(buffer.len());
                    rustix::net::recv(from, &mut buffer[..rest], RecvFlags::DONTWAIT)?.0
                }
                Self::File { .. } | Self::Other => 0,
            };
            if taken == 0 {
                return Ok(());
            }
            left -= taken;
        }
        Ok(())
    }
}

/// The caller's input, and the pipe through which the command reads it.
pub(crate) struct Input {
    from: OwnedFd,
    /// `None` after the end of the input, so that the reader sees the end.
    to: Option<OwnedFd>,
    /// A duplicate of the command's end, to see how much it has not read.
    theirs: OwnedFd,
    source: Source,
    /// The piece that the command got last, of a pipe or a socket.
    piece: Vec<u8>,
    /// Whether somebody else reads the caller's stream as well.
    is_shared: bool,
}

impl Input {
    /// Makes the input from a stream, and the end that the command gets.
    pub(super) fn from(stream: BorrowedFd<'_>) -> io::Result<(Self, OwnedFd)> {
        let (theirs, to) = pipe()?;
        rustix::io::ioctl_fionbio(&to, true)?;
        let source = match kind(&rustix::fs::fstat(stream)?) {
            FileType::Fifo => Source::Pipe { nothing: null(OFlags::WRONLY)?, glass: pipe()? },
            FileType::Socket => Source::Socket,
            FileType::RegularFile => {
                Source::File { position: rustix::fs::seek(stream, SeekFrom::Current(0))? }
            }
            _ => Source::Other,
        };
        if !matches!(source, Source::File { .. }) {
            rustix::pipe::fcntl_setpipe_size(&to, PIECE)?;
        }
        let input = Self {
            from: stream.try_clone_to_owned()?,
            to: Some(to),
            theirs: theirs.try_clone()?,
            source,
            piece: Vec::new(),
            is_shared: false,
        };
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
            Source::Pipe { .. } | Source::Socket if !self.is_shared => {
                let length = self.source.peek(self.from.as_fd(), buffer)?;
                let written = rustix::io::write(to, &buffer[..length])?;
                self.piece.clear();
                self.piece.extend_from_slice(&buffer[..written]);
                Ok(written)
            }
            Source::File { position } => {
                let length = rustix::io::pread(&self.from, &mut *buffer, *position)?;
                let written = rustix::io::write(to, &buffer[..length])?;
                *position += written as u64;
                Ok(written)
            }
            source => {
                let length = source.take(self.from.as_fd(), buffer)?;
                rustix::io::write(to, &buffer[..length])
            }
        }
    }

    /// Consumes what the command has read from the caller's stream.
    fn settle(&mut self, left: usize, buffer: &mut [u8]) -> io::Result<()> {
        match &self.source {
            Source::File { .. } => {
                // From its current offset: another process may read it as well.
                rustix::fs::seek(&self.from, SeekFrom::Current(i64::try_from(left).unwrap_or(i64::MAX)))?;
            }
            Source::Other => {}
            Source::Pipe { .. } | Source::Socket if left == 0 || self.is_shared => {}
            Source::Pipe { .. } | Source::Socket => {
                let read = &self.piece[..left.min(self.piece.len())];
                let next = match self.source.peek(self.from.as_fd(), &mut buffer[..read.len()]) {
                    Ok(length) => &buffer[..length],
                    Err(Errno::AGAIN) => &[],
                    Err(errno) => return Err(errno.into()),
                };
                if next == read {
                    self.source.consume(self.from.as_fd(), read.len(), buffer)?;
                } else {
                    self.is_shared = true;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rustix::pipe::PipeFlags;

    use super::*;

    #[test]
    fn packets_of_a_pipe_are_read_as_they_were_counted() {
        let (from, into) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::DIRECT).unwrap();
        let write_all =
            || ["one ", "two ", "three"].map(|packet| rustix::io::write(&into, packet.as_bytes()));
        let source =
            Source::Pipe { nothing: super::super::null(OFlags::WRONLY).unwrap(), glass: pipe().unwrap() };
        let mut buffer = [0; PIECE];
        assert!(write_all().iter().all(Result::is_ok));
        let seen = source.peek(from.as_fd(), &mut buffer).unwrap();
        assert_eq!(&buffer[..seen], b"one two three");
        source.consume(from.as_fd(), "one two".len(), &mut buffer).unwrap();
        let taken = source.take(from.as_fd(), &mut buffer).unwrap();
        assert_eq!(&buffer[..taken], b" three");
    }
}
