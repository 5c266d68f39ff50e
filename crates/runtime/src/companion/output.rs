//! The output of a companion. The last of it is kept, to be shown if it fails.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::pipe::PipeFlags;

/// How many octets are kept.
const KEPT: usize = 4096;
/// How many reads are done at a time: a companion that writes without end must not block the run.
const READS: usize = 16;

/// The read end of its output, and the last octets.
pub(super) struct Output {
    /// `None` after the end.
    reader: Option<OwnedFd>,
    last: VecDeque<u8>,
}

impl Output {
    /// Makes the pipe, and the standard streams of the companion, whose input is empty.
    pub(super) fn pipe() -> io::Result<(Self, [OwnedFd; 3])> {
        let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        // Only the read end: the companion blocks while nobody has read.
        let flags = rustix::fs::fcntl_getfl(&reader)? | rustix::fs::OFlags::NONBLOCK;
        rustix::fs::fcntl_setfl(&reader, flags)?;
        let null = rustix::fs::open(
            "/dev/null",
            rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC,
            rustix::fs::Mode::empty(),
        )?;
        let second = writer.try_clone()?;
        Ok((Self { reader: Some(reader), last: VecDeque::new() }, [null, writer, second]))
    }

    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.reader.as_ref().map(AsFd::as_fd)
    }

    /// Reads what has arrived.
    pub(super) fn read(&mut self) {
        let mut buffer = [0; 4096];
        for _ in 0..READS {
            let Some(reader) = &self.reader else { return };
            match rustix::io::read(reader, &mut buffer) {
                Ok(length @ 1..) => {
                    self.last.extend(&buffer[..length]);
                    let over = self.last.len().saturating_sub(KEPT);
                    self.last.drain(..over);
                }
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return,
                Ok(0) | Err(_) => self.reader = None,
            }
        }
    }

    /// Returns the last lines, as the end of a message; empty if it has written nothing.
    pub(super) fn told(&self) -> String {
        let (front, back) = self.last.as_slices();
        let text = String::from_utf8_lossy(&[front, back].concat()).into_owned();
        let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        let from = lines.len().saturating_sub(5);
        // Its output is hostile, and must not control the terminal.
        let shown = lines[from..].iter().map(|line| format!("\n  | {}", plain(line)));
        shown.collect()
    }
}

fn plain(line: &str) -> String {
    // Letters and visible ASCII: no characters that change the direction, hide, or have no width.
    let shown = |c: char| c.is_alphanumeric() || c == ' ' || c.is_ascii_graphic();
    line.chars().map(|c| if shown(c) { c } else { '\u{fffd}' }).take(300).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_kept_and_are_only_text() {
        let (mut output, [_, writer, _]) = Output::pipe().unwrap();
        for number in 0..2000 {
            rustix::io::write(&writer, format!("line {number}\n").as_bytes()).unwrap();
            output.read();
        }
        rustix::io::write(&writer, "\u{1b}[2Jb\u{202e}ad\n".as_bytes()).unwrap();
        output.read();
        assert!(output.last.len() <= KEPT);
        let told = output.told();
        assert!(told.ends_with("line 1999\n  | \u{fffd}[2Jb\u{fffd}ad"), "{told}");
        assert_eq!(told.lines().count(), 6);
    }

    #[test]
    fn an_end_is_an_end() {
        let (mut output, streams) = Output::pipe().unwrap();
        drop(streams);
        output.read();
        assert!(output.descriptor().is_none() && output.told().is_empty());
    }
}
