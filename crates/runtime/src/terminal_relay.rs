//! Relays between the person's terminal and the command's: input goes in, output comes out, and the size follows.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::termios::{OptionalActions, Termios};
use sandbox::Signals;

use crate::alternate_screen::Screen;
use crate::end_signals::{SIGHUP, end_asked};
use crate::line_start;
use crate::streams::{PATIENCE, Unwritten, is_behind};

/// How much is read at once.
const CHUNK: usize = 16 * 1024;
/// `PIPE_BUF`: what a pipe that has room takes without blocking.
const PIECE: usize = 4096;

/// The two terminals. Dropping it restores the person's.
pub(crate) struct Relay {
    master: OwnedFd,
    before: Option<Termios>,
    input_open: bool,
    /// Whether the last octet that was read from the person's side ended a line.
    ends_a_line: bool,
    /// Octets read from one side that the other has not taken yet.
    to_master: Vec<u8>,
    to_person: RefCell<Vec<u8>>,
    /// The person's side. It is never waited for: there is more to look after.
    out: OwnedFd,
    /// Why that takes no more, if it does not.
    closed: Cell<Option<Errno>>,
    /// Whether the command goes on without a terminal that was hung up, as who ignores SIGHUP has asked.
    outlives_terminal: bool,
    /// Set while nobody inside has the terminal open: the master is not polled until then, and then tried again.
    shut_until: Cell<Option<Instant>>,
    /// The state of the person's screen.
    screen: RefCell<Screen>,
}

/// How long a terminal that nobody inside has open is not polled: it would always be ready.
const SHUT: Duration = Duration::from_millis(50);

impl Relay {
    /// Connects the terminals: the person's becomes raw, and both get the same size.
    pub(crate) fn tie(master: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&master, true)?;
        let out = output()?;
        let before = rustix::termios::tcgetattr(std::io::stdin()).ok();
        if let Some(before) = &before {
            make_raw(before)?;
        }
        let relay = Self::between(master, before, out);
        relay.follow_size();
        Ok(relay)
    }

    fn between(master: OwnedFd, before: Option<Termios>, out: OwnedFd) -> Self {
        Self {
            master,
            before,
            input_open: true,
            ends_a_line: true,
            to_master: Vec::new(),
            to_person: RefCell::default(),
            out,
            closed: Cell::default(),
            outlives_terminal: sandbox::is_ignored(SIGHUP),
            shut_until: Cell::default(),
            screen: RefCell::default(),
        }
    }

    /// Makes the person's terminal raw again after this process was stopped and continued: the shell has made it its own meanwhile.
    pub(crate) fn take_back(&self) {
        if let Some(before) = self.before.as_ref().filter(|_| !is_behind(std::io::stdin())) {
            let _ = make_raw(before);
            self.follow_size();
        }
    }

    /// Gives the command's terminal the size of the person's.
    pub(crate) fn follow_size(&self) {
        if let Ok(size) = rustix::termios::tcgetwinsize(std::io::stdout()) {
            let _ = rustix::termios::tcsetwinsize(&self.master, size);
        }
    }

    pub(crate) fn master(&self) -> BorrowedFd<'_> {
        self.master.as_fd()
    }

    pub(crate) fn out(&self) -> BorrowedFd<'_> {
        self.out.as_fd()
    }

    /// Whether output waits to be written; no more is read meanwhile.
    pub(crate) fn has_output(&self) -> bool {
        !self.to_person.borrow().is_empty()
    }

    /// Whether the person's side takes no more.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.get().is_some()
    }

    /// Returns the output that could not be written. A reader that has gone misses none, and so does a terminal that was hung up.
    pub(crate) fn unwritten(&self) -> Option<Unwritten> {
        let gone = if is_device(&self.out) { Errno::IO } else { Errno::PIPE };
        let errno = self.closed.get().filter(|errno| *errno != gone)?;
        Some(Unwritten { name: "standard output", source: errno.into() })
    }

    /// Returns until when the master is not polled, if that is still to come.
    pub(crate) fn shut_until(&self) -> Option<Instant> {
        self.shut_until.get().filter(|until| *until > Instant::now())
    }

    /// Whether the command has the whole screen on which this program would write.
    pub(crate) fn is_full_screen(&self) -> bool {
        self.screen.borrow().is_full() && rustix::termios::isatty(std::io::stderr())
    }

    /// Whether there is room for more input.
    pub(crate) fn wants_input(&self) -> bool {
        self.input_open && self.to_master.is_empty()
    }

    /// Whether input waits to be written.
    pub(crate) fn has_input(&self) -> bool {
        !self.to_master.is_empty()
    }

    /// Reads what was typed, and passes it on.
    pub(crate) fn take_input(&mut self) {
        let mut buffer = [0; CHUNK];
        let read = rustix::io::read(std::io::stdin(), &mut buffer);
        self.pass_in(read.map(|length| &buffer[..length]));
    }

    fn pass_in(&mut self, read: Result<&[u8], Errno>) {
        match read {
            Ok(octets @ [.., last]) => {
                self.ends_a_line = *last == b'\n';
                self.to_master.extend(octets);
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            // Input that cannot be read has ended as well.
            Ok(_) | Err(_) => {
                self.input_open = false;
                // As Ctrl-D, which ends a line that was begun, and the input where none was.
                self.to_master.extend(if self.ends_a_line { &[4][..] } else { &[4, 4] });
            }
        }
        self.give_input();
    }

    /// Writes waiting input, as much as is taken.
    pub(crate) fn give_input(&mut self) {
        if let Ok(written) = rustix::io::write(&self.master, &self.to_master) {
            self.to_master.drain(..written);
        }
    }

    /// Passes on what the command shows, as much as is taken. Returns whether there was any, and all of it was taken.
    pub(crate) fn show_output(&self) -> bool {
        if !self.give_output() {
            return false;
        }
        let mut buffer = [0; CHUNK];
        match rustix::io::read(&self.master, &mut buffer) {
            Ok(read) if read > 0 => {
                self.screen.borrow_mut().see(&buffer[..read]);
                self.to_person.borrow_mut().extend(&buffer[..read]);
                self.give_output()
            }
            Err(Errno::IO) => {
                self.shut_until.set(Some(Instant::now() + SHUT)); // the command's side is closed
                false
            }
            _ => false,
        }
    }

    /// Writes waiting output. Returns whether all of it was taken; it is dropped where the person's side takes no more.
    fn give_output(&self) -> bool {
        if self.is_closed() {
            return false;
        }
        let mut waiting = self.to_person.borrow_mut();
        while !waiting.is_empty() {
            let mut room = [PollFd::from_borrowed_fd(self.out(), PollFlags::OUT)];
            if !matches!(rustix::event::poll(&mut room, Some(&Timespec::default())), Ok(1..)) {
                return false;
            }
            let piece = waiting.len().min(PIECE);
            match rustix::io::write(&self.out, &waiting[..piece]) {
                Ok(written) => {
                    if rustix::termios::isatty(std::io::stderr()) {
                        line_start::carried(&waiting[..written]);
                    }
                    waiting.drain(..written);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return false,
                Err(Errno::IO) if self.outlives_terminal && is_device(&self.out) => waiting.clear(),
                Err(errno) => {
                    waiting.clear();
                    self.closed.set(Some(errno));
                    return false;
                }
            }
        }
        true
    }

    /// Passes on the last output of the command: without a time limit, unless `signals` ask for an end; for a moment at most where no
    /// signals are given. Returns whether that was all.
    pub(crate) fn show_rest(&self, signals: Option<&Signals>) -> bool {
        let end = signals.is_none().then(|| Instant::now() + PATIENCE);
        loop {
            while self.show_output() {}
            if !self.has_output() {
                return true;
            }
            let mut ready = vec![PollFd::from_borrowed_fd(self.out(), PollFlags::OUT)];
            ready.extend(signals.map(|signals| PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN)));
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            let left = left.and_then(|left| Timespec::try_from(left).ok());
            match rustix::event::poll(&mut ready, left.as_ref()) {
                Ok(0) | Err(_) if end.is_some_and(|end| Instant::now() >= end) => return false,
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return false,
            }
            let has_signal = ready.get(1).is_some_and(|signals| !signals.revents().is_empty());
            if has_signal && signals.is_some_and(|signals| end_asked(signals).is_some()) {
                return false;
            }
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        let undo = self.screen.borrow().undo();
        if !undo.is_empty() && rustix::termios::isatty(&self.out) {
            let _ = rustix::io::write(&self.out, undo.as_bytes());
        }
        if let Some(before) = &self.before {
            // The terminal's answer to a last query of the command's was not typed by the person.
            let _ = rustix::termios::tcsetattr(std::io::stdin(), OptionalActions::Flush, before);
        }
    }
}

/// Makes the person's terminal raw, which was as `before`.
fn make_raw(before: &Termios) -> io::Result<()> {
    let mut raw = before.clone();
    raw.make_raw();
    Ok(rustix::termios::tcsetattr(std::io::stdin(), OptionalActions::Now, &raw)?)
}

fn is_device(out: &OwnedFd) -> bool {
    let stat = rustix::fs::fstat(out);
    stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice)
}

/// Returns the standard output, reopened where possible, so that it becomes non-blocking for nobody who shares it.
fn output() -> io::Result<OwnedFd> {
    let out = std::io::stdout();
    let kind = FileType::from_raw_mode(rustix::fs::fstat(&out)?.st_mode);
    if matches!(kind, FileType::Fifo | FileType::CharacterDevice) {
        let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        if let Ok(opened) = rustix::fs::open("/proc/self/fd/1", flags, Mode::empty()) {
            return Ok(opened);
        }
    }
    out.as_fd().try_clone_to_owned()
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use rustix::pty::OpenptFlags;

    use super::*;

    /// Returns a relay to this output, and the command's terminal.
    fn relay_to(out: impl Into<OwnedFd>) -> (Relay, OwnedFd) {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = rustix::pty::openpt(flags).unwrap();
        rustix::pty::unlockpt(&master).unwrap();
        let theirs = rustix::pty::ioctl_tiocgptpeer(&master, flags).unwrap();
        rustix::io::ioctl_fionbio(&master, true).unwrap();
        (Relay::between(master, None, out.into()), theirs)
    }

    #[test]
    fn output_that_cannot_be_written_is_remembered_and_a_reader_that_has_gone_misses_none() {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let read_only = File::open("/proc/self/exe").unwrap();
        let (reader, unread) = std::io::pipe().unwrap();
        drop(reader);
        let outs: [(OwnedFd, _); 3] =
            [(full.into(), Some(Errno::NOSPC)), (read_only.into(), Some(Errno::BADF)), (unread.into(), None)];
        for (out, expected) in outs {
            let (relay, theirs) = relay_to(out);
            assert!(!relay.is_closed());
            rustix::io::write(&theirs, b"x").unwrap();
            assert!(!relay.show_output() && relay.is_closed() && !relay.has_output());
            let lost = relay.unwritten().map(|lost| lost.source.raw_os_error());
            assert_eq!(lost, expected.map(|errno| Some(errno.raw_os_error())));
            assert!(relay.show_rest(None), "what nobody takes holds nothing up");
        }
    }

    #[test]
    fn a_terminal_that_was_hung_up_is_missed_by_none_and_outlived_where_that_is_ignored() {
        for outlives_terminal in [false, true] {
            let (of_person, out) = relay_to(File::open("/dev/null").unwrap());
            drop(of_person);
            let (mut relay, theirs) = relay_to(out);
            relay.outlives_terminal = outlives_terminal;
            for _ in 0..2 {
                rustix::io::write(&theirs, b"x").unwrap();
                assert_eq!(relay.show_output(), outlives_terminal);
                assert!(relay.is_closed() != outlives_terminal && !relay.has_output());
            }
            assert!(relay.show_rest(None) && relay.unwritten().is_none());
        }
    }

    #[test]
    fn input_that_cannot_be_read_has_ended() {
        let (mut relay, theirs) = relay_to(File::open("/dev/null").unwrap());
        relay.pass_in(Ok(b"line\nhalf"));
        relay.pass_in(Err(Errno::AGAIN));
        assert!(relay.input_open);
        relay.pass_in(Err(Errno::CONNRESET));
        assert!(!relay.wants_input());
        let mut buffer = [0; 16];
        let mut read = || rustix::io::read(&theirs, &mut buffer).map(|length| buffer[..length].to_vec());
        assert_eq!([read(), read(), read()], [Ok(b"line\n".to_vec()), Ok(b"half".to_vec()), Ok(Vec::new())]);
    }
}
