//! Prompts for a secret on the terminal, which shows nothing of it. Whatever ends this program meanwhile, the terminal is as it was before.

use std::io::{self, BufRead, IsTerminal, Stdin, Write};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr};
use sandbox::{Signals, let_through, wait_for};

use crate::end_signals::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use crate::streams::is_behind;

/// The longest line of a terminal in octets, its end included.
const LONGEST_LINE: usize = 4096;

/// How long after its first line the rest of what was pasted may come.
const SAME_PASTE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// The signals that end this program once the terminal is restored.
const ENDS: &[i32] = &[SIGHUP, SIGINT, SIGQUIT, SIGTERM];

/// Prompts on the terminal without echo.
pub(crate) fn prompt(what: &str) -> io::Result<Vec<u8>> {
    let stdin = io::stdin();
    if !stdin.is_terminal() {
        return Err(io::Error::other(
            "there is no terminal to ask on; give --stdin, --from-file, --from-env or --from-command",
        ));
    }
    let (line, keys, has_more) = asked(&stdin, what)?;
    if line.last() != Some(&b'\n') {
        // Ctrl-D leaves the cursor behind the question.
        let _ = writeln!(io::stderr());
    }
    if line.last().is_some_and(|last| is_end(*last, &keys)) {
        // Raises the signal that the key would have raised: a shell that waits for this program must see it.
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::INT)?;
        return Err(io::ErrorKind::Interrupted.into());
    }
    // A terminal drops without a word what of a line it has no room for, termios(3).
    if line.len() >= LONGEST_LINE {
        return Err(io::Error::other(format!(
            "a terminal takes no more of one line than {LONGEST_LINE} octets, and may have dropped the rest: give it with --stdin or --from-file"
        )));
    }
    if has_more {
        return Err(io::Error::other(
            "more than one line was pasted, and a terminal gives one: give them all with --stdin or --from-file",
        ));
    }
    match line.iter().any(|octet| octet.is_ascii_control() && !matches!(octet, b'\n' | b'\r' | b'\t')) {
        true => Err(io::Error::other("a control key was typed with it; type it again, without")),
        false => Ok(line),
    }
}

/// Asks, and returns the line that was typed, the keys that end the program, and whether more was typed.
fn asked(stdin: &Stdin, what: &str) -> io::Result<(Vec<u8>, [u8; 2], bool)> {
    let silent = Silent::make(stdin.as_fd())?;
    let keys = silent.keys();
    write!(io::stderr(), "{what}: ").and_then(|()| io::stderr().flush())?;
    let line = typed(stdin.lock(), &keys, || silent.wait())?;
    let has_more = silent.has_more()?;
    Ok((line, keys, has_more))
}

/// A terminal that shows nothing of what is typed. Dropping it restores the terminal; a signal that came meanwhile takes effect then.
struct Silent<'a> {
    terminal: BorrowedFd<'a>,
    before: Termios,
    signals: Signals,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    Terminal,
    Signals,
}

impl<'a> Silent<'a> {
    fn make(terminal: BorrowedFd<'a>) -> io::Result<Self> {
        let before = tcgetattr(terminal)?;
        // In the background this stops the program, which must still heed what ends it.
        tcsetattr(terminal, OptionalActions::Now, &before)?;
        let silent = Self { terminal, before, signals: Signals::block_heeded(ENDS)? };
        let mut modes = silent.before.clone();
        modes.local_modes.remove(LocalModes::ECHO);
        modes.local_modes.insert(LocalModes::ECHONL);
        // No key may end or stop this program while the terminal is silent, for it would stay silent. The keys that would end it are
        // read as line ends.
        modes.local_modes.remove(LocalModes::ISIG);
        let [interrupt, quit] = silent.keys();
        modes.special_codes[SpecialCodeIndex::VEOL] = interrupt;
        modes.special_codes[SpecialCodeIndex::VEOL2] = quit;
        tcsetattr(terminal, OptionalActions::Flush, &modes)?;
        Ok(silent)
    }

    /// Returns the keys that end the program.
    fn keys(&self) -> [u8; 2] {
        [SpecialCodeIndex::VINTR, SpecialCodeIndex::VQUIT].map(|key| self.before.special_codes[key])
    }

    /// Whether more has been typed than was read, or comes at once, as when several lines are pasted. The end of input is no more.
    fn has_more(&self) -> io::Result<bool> {
        let mut terminal = [PollFd::new(&self.terminal, PollFlags::IN)];
        rustix::event::poll(&mut terminal, Some(&SAME_PASTE))?;
        Ok(rustix::io::ioctl_fionread(self.terminal).is_ok_and(|octets| octets > 0))
    }

    /// Waits until there is something to read. A signal that ends this program is an error, and still to take effect.
    fn wait(&self) -> io::Result<()> {
        let sources = [
            (Source::Terminal, self.terminal, PollFlags::IN),
            (Source::Signals, self.signals.as_fd(), PollFlags::IN),
        ];
        loop {
            let ready = wait_for(&sources, None)?;
            if ready.contains(&Source::Signals) {
                return Err(io::ErrorKind::Interrupted.into());
            }
            if !ready.is_empty() {
                return Ok(());
            }
        }
    }
}

impl Drop for Silent<'_> {
    fn drop(&mut self) {
        // In the background it is the shell's, which set it for itself, and changing it would stop this program before its end.
        if !is_behind(self.terminal) {
            let _ = tcsetattr(self.terminal, OptionalActions::Flush, &self.before);
        }
        let _ = let_through(ENDS);
    }
}

/// Reads a line, with its end or the key that ends the program.
fn typed(mut from: impl BufRead, ends: &[u8], wait: impl Fn() -> io::Result<()>) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    loop {
        wait()?;
        let piece = match from.fill_buf() {
            Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => {
                continue;
            }
            piece => piece?,
        };
        let end = piece.iter().position(|octet| *octet == b'\n' || is_end(*octet, ends));
        let length = end.map_or(piece.len(), |at| at + 1);
        line.extend_from_slice(&piece[..length]);
        from.consume(length);
        if length == 0 || end.is_some() || line.len() >= LONGEST_LINE {
            return Ok(line);
        }
    }
}

/// Whether an octet is a key that ends the program; 0 means a disabled key (termios(3)).
fn is_end(octet: u8, ends: &[u8]) -> bool {
    octet != 0 && ends.contains(&octet)
}

#[cfg(test)]
mod tests {
    use rustix::pty::OpenptFlags;

    use super::*;

    #[test]
    fn a_terminal_is_silent_while_it_is_asked_and_hears_a_signal() {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = rustix::pty::openpt(flags).unwrap();
        rustix::pty::unlockpt(&master).unwrap();
        let terminal = rustix::pty::ioctl_tiocgptpeer(&master, flags).unwrap();
        let modes = || tcgetattr(&terminal).unwrap().local_modes;
        let before = modes();
        assert!(before.contains(LocalModes::ECHO | LocalModes::ISIG));
        let silent = Silent::make(terminal.as_fd()).unwrap();
        assert!(!modes().intersects(LocalModes::ECHO | LocalModes::ISIG));
        rustix::io::write(&master, b"secret\n").unwrap();
        let mut from = io::BufReader::new(std::fs::File::from(terminal.try_clone().unwrap()));
        assert_eq!(typed(&mut from, &silent.keys(), || silent.wait()).unwrap(), b"secret\n");
        assert!(!silent.has_more().unwrap());
        rustix::io::write(&master, b"one\rtwo\r").unwrap();
        assert_eq!(typed(&mut from, &silent.keys(), || silent.wait()).unwrap(), b"one\n");
        assert!(silent.has_more().unwrap());
        assert_eq!(typed(&mut from, &silent.keys(), || silent.wait()).unwrap(), b"two\n");
        rustix::io::write(&master, b"three\n\x04").unwrap();
        assert_eq!(typed(&mut from, &silent.keys(), || silent.wait()).unwrap(), b"three\n");
        assert!(!silent.has_more().unwrap());
        assert_eq!(typed(&mut from, &silent.keys(), || silent.wait()).unwrap(), b"");
        // Nothing more is typed: a signal ends the wait, and what it does comes after the terminal is restored.
        let heard = typed(&mut from, &silent.keys(), || Err(io::ErrorKind::Interrupted.into()));
        assert_eq!(heard.unwrap_err().kind(), io::ErrorKind::Interrupted);
        drop(silent);
        assert_eq!(modes(), before);
    }
}
