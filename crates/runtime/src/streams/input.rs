//! From the caller's input to a pipe that the command reads.
//!
//! No more is taken from the caller than the command has read, as if it had been handed the stream: a shell that reads its script, or a
//! `while read` loop, goes on where the command left off. So it is handed over without being taken, which the kernel can do with a pipe
//! (tee(2)), a file (pread(2)) and a socket (`MSG_PEEK`), and what was read of it is taken afterwards. A pipe cannot say when it was
//! emptied, unless it has room for one piece: then it can be written to when nothing is in it.

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

/// What a pipe of one piece takes at once.
const PIECE: usize = 4096;
/// What is read of a file at once.
const CHUNK: usize = 64 * 1024;

/// How often the pipe is looked at where it cannot say that it was emptied.
const GLANCE: Duration = Duration::from_millis(1);

/// How the caller's input is looked at without being taken.
enum Source {
    Pipe {
        nothing: OwnedFd,
    },
    Socket,
    File {
        /// Where the next piece of it is.
        position: u64,
    },
    /// A device: what was read of it is gone.
    Other,
}

/// The caller's input, and what the command reads of it.
pub(crate) struct Input {
    from: OwnedFd,
    /// Gone once there is no more: whoever reads then hears of the end.
    to: Option<OwnedFd>,
    /// The command's end once more, to see by what was not read.
    theirs: OwnedFd,
    source: Source,
}

impl Input {
    /// One that comes from a stream, and what the command is given for it.
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

    /// Carries what is read until there is no more, or the run is `over`. What fails is the end of it.
    pub(super) fn carry(mut self, over: BorrowedFd<'_>) {
        let mut buffer = vec![0; if matches!(self.source, Source::File { .. }) { CHUNK } else { PIECE }];
        let mut handed_over = 0;
        let _ = self.until_end(over, &mut buffer, &mut handed_over);
        self.to = None;
        let _ = wait([(over, PollFlags::IN)]);
        // Of what is still in the pipe the command has read nothing.
        let _ = self.settle(handed_over.saturating_sub(self.unread()), &mut buffer);
    }

    /// How much is in the pipe.
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
            // Until the command has read what was handed over; of a file, until there is room for more.
            let Some(to) = &self.to else { return Ok(()) };
            let [_, is_over] = wait([(to.as_fd(), PollFlags::OUT), (over, PollFlags::IN)])?;
            if !is_over.is_empty() {
                return Ok(());
            }
            if !matches!(self.source, Source::File { .. }) {
                if self.unread() > 0 {
                    // The command gave its end room for more, so that room says nothing any more.
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

    /// Hands the next piece over, and takes nothing yet: how long it is. Nothing at the end.
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

    /// Takes from the caller what the command has read.
    fn settle(&self, mut left: usize, buffer: &mut [u8]) -> io::Result<()> {
        match &self.source {
            Source::File { .. } => {
                // From where it is by now: somebody else may read it as well.
                rustix::fs::seek(&self.from, SeekFrom::Current(i64::try_from(left).unwrap_or(i64::MAX)))?;
            }
            Source::Other => {}
            Source::Pipe { nothing } => {
                while left > 0 {
                    let flags = SpliceFlags::NONBLOCK;
                    match rustix::pipe::splice(&self.from, None, nothing, None, left, flags) {
                        // Somebody else reads it as well, and was faster.
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
