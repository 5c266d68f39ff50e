//! The person's terminal and the command's, tied together: what is typed goes in, what is shown comes out, and the
//! size follows.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::termios::{OptionalActions, Termios};

use crate::screen::Screen;

/// How much is moved at once.
const CHUNK: usize = 16 * 1024;

/// Both terminals. Dropping it gives the person's back as it was.
pub(crate) struct Relay {
    master: OwnedFd,
    before: Option<Termios>,
    input_open: bool,
    /// What was read from one side and not yet taken by the other.
    to_master: Vec<u8>,
    /// Nobody inside has the terminal open until then, as far as it is known; it may be opened by its name again.
    shut_until: Cell<Option<Instant>>,
    /// What the command has made of the person's screen.
    screen: RefCell<Screen>,
}

/// How long a terminal is let be that nobody inside has open: it would be ready all the time.
const SHUT: Duration = Duration::from_millis(50);

impl Relay {
    /// Ties them: raw on the person's side, and the same size on both.
    pub(crate) fn tie(master: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&master, true)?;
        let before = rustix::termios::tcgetattr(std::io::stdin()).ok();
        if let Some(before) = &before {
            let mut raw = before.clone();
            raw.make_raw();
            rustix::termios::tcsetattr(std::io::stdin(), OptionalActions::Now, &raw)?;
        }
        let (shut_until, screen) = (Cell::default(), RefCell::default());
        let relay = Self { master, before, input_open: true, to_master: Vec::new(), shut_until, screen };
        relay.follow_size();
        Ok(relay)
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

    /// Until when it is let be, if it is.
    pub(crate) fn shut_until(&self) -> Option<Instant> {
        self.shut_until.get().filter(|until| *until > Instant::now())
    }

    /// Whether the command has the whole of the screen on which the person is told things.
    pub(crate) fn is_full_screen(&self) -> bool {
        self.screen.borrow().is_full() && rustix::termios::isatty(std::io::stderr())
    }

    /// Whether there is room for more input.
    pub(crate) fn wants_input(&self) -> bool {
        self.input_open && self.to_master.is_empty()
    }

    /// Whether input waits to be taken.
    pub(crate) fn has_input(&self) -> bool {
        !self.to_master.is_empty()
    }

    /// Moves what was typed.
    pub(crate) fn take_input(&mut self) {
        let mut buffer = [0; CHUNK];
        match rustix::io::read(std::io::stdin(), &mut buffer) {
            Ok(0) => {
                self.input_open = false;
                self.to_master.push(4); // end of transmission, as Ctrl-D
            }
            Ok(read) => self.to_master.extend(&buffer[..read]),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => self.input_open = false,
        }
        self.give_input();
    }

    /// Hands waiting input over, as much as is taken.
    pub(crate) fn give_input(&mut self) {
        if let Ok(written) = rustix::io::write(&self.master, &self.to_master) {
            self.to_master.drain(..written);
        }
    }

    /// Moves what the command shows; whether there was anything.
    pub(crate) fn show_output(&self) -> bool {
        let mut buffer = [0; CHUNK];
        match rustix::io::read(&self.master, &mut buffer) {
            Ok(read) if read > 0 => {
                self.screen.borrow_mut().see(&buffer[..read]);
                write_all(std::io::stdout().as_fd(), &buffer[..read]).is_ok()
            }
            Err(Errno::IO) => {
                self.shut_until.set(Some(Instant::now() + SHUT)); // the command's side is closed
                false
            }
            _ => false,
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            let _ = rustix::termios::tcsetattr(std::io::stdin(), OptionalActions::Now, before);
        }
    }
}

fn write_all(fd: BorrowedFd<'_>, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::write(fd, bytes) {
            Ok(written) => bytes = &bytes[written..],
            Err(Errno::INTR) => {}
            // Whoever shares the stream has made it so that nobody waits.
            Err(Errno::AGAIN) => {
                let mut room = [PollFd::from_borrowed_fd(fd, PollFlags::OUT)];
                match rustix::event::poll(&mut room, None) {
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(errno) => return Err(errno.into()),
                }
            }
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}
