//! Reads from and writes to a standard stream that may be non-blocking because another process that shares it wanted that: it is waited
//! for all the same. Nothing is buffered here, so nothing that was written halfway is forgotten.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;

/// A stream that is waited for, whether or not it is non-blocking.
#[derive(Debug)]
pub struct Patient<S>(S);

impl<S: AsFd> Patient<S> {
    /// Waits for this stream from now on.
    pub fn of(stream: S) -> Self {
        Self(stream)
    }

    /// Tries until the stream is ready, and no signal interrupts.
    fn retry<T>(&self, flags: PollFlags, mut attempt: impl FnMut(&S) -> Result<T, Errno>) -> io::Result<T> {
        loop {
            match attempt(&self.0) {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => match rustix::event::poll(&mut [PollFd::new(&self.0, flags)], None) {
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(errno) => return Err(errno.into()),
                },
                done => return Ok(done?),
            }
        }
    }
}

impl<S: AsFd> Read for Patient<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.retry(PollFlags::IN, |stream| rustix::io::read(stream, &mut *buffer))
    }
}

impl<S: AsFd> Write for Patient<S> {
    fn write(&mut self, octets: &[u8]) -> io::Result<usize> {
        self.retry(PollFlags::OUT, |stream| rustix::io::write(stream, octets))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_that_does_not_block_is_waited_for() {
        let (reader, writer) = io::pipe().unwrap();
        for end in [reader.as_fd(), writer.as_fd()] {
            rustix::io::ioctl_fionbio(end, true).unwrap();
        }
        // More than any pipe has room for.
        let much: Vec<u8> = (0..3_000_000_u32).map(|number| number as u8).collect();
        let sent = much.clone();
        let sending = std::thread::spawn(move || Patient::of(writer).write_all(&sent).unwrap());
        let mut read = Vec::new();
        Patient::of(reader).read_to_end(&mut read).unwrap();
        sending.join().unwrap();
        assert!(read == much, "{} of {} octets", read.len(), much.len());
    }
}
