//! Where the command's standard streams lead: to a terminal of its own where the person has one, otherwise to the caller's own, each in
//! its one direction.
//!
//! A terminal is mostly open for both. A command that has the caller's as its output is in no session of that terminal's, so nothing
//! would keep it from reading what the person types there into something else.

use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use policy::Terminal;
use rustix::fs::{FileType, Mode, OFlags};
use sandbox::Stdio;

/// The streams of a run.
pub(crate) fn stdio(wanted: Terminal) -> io::Result<Stdio> {
    let both = io::stdin().is_terminal() && io::stdout().is_terminal();
    let own = match wanted {
        Terminal::Always => true,
        // In the background it would be stopped for changing how the terminal behaves.
        Terminal::Auto => both && !is_behind(io::stdin().as_fd()),
        Terminal::Never => false,
    };
    if own {
        return Ok(Stdio::Terminal);
    }
    Ok(Stdio::Descriptors([
        input(io::stdin().as_fd())?,
        output(io::stdout().as_fd())?,
        output(io::stderr().as_fd())?,
    ]))
}

/// Whether a terminal shows somebody else: this run was put into the background.
fn is_behind(terminal: BorrowedFd<'_>) -> bool {
    rustix::termios::tcgetpgrp(terminal).is_ok_and(|group| group != rustix::process::getpgrp())
}

/// What is typed at a terminal is the command's while this run is what the terminal shows, and nobody's where it was put into the
/// background.
fn input(fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    if !fd.is_terminal() {
        return copy(fd);
    }
    let shown = rustix::termios::tcgetpgrp(fd).is_ok_and(|group| group == rustix::process::getpgrp());
    if shown { one_way(fd, OFlags::RDONLY) } else { null() }
}

fn output(fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    if fd.is_terminal() { one_way(fd, OFlags::WRONLY) } else { copy(fd) }
}

/// A terminal once more, for one direction. That of somebody else, as after su(1), cannot be opened: then it is handed over as it is.
fn one_way(fd: BorrowedFd<'_>, direction: OFlags) -> io::Result<OwnedFd> {
    let flags = direction | OFlags::NOCTTY | OFlags::CLOEXEC;
    match rustix::fs::open(format!("/proc/self/fd/{}", fd.as_raw_fd()), flags, Mode::empty()) {
        Ok(opened) => Ok(opened),
        Err(_) => copy(fd),
    }
}

fn null() -> io::Result<OwnedFd> {
    Ok(rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}

fn copy(fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // A directory would be a way to the host's files.
    match FileType::from_raw_mode(rustix::fs::fstat(fd)?.st_mode).is_dir() {
        true => Err(io::Error::other("one of them is a directory")),
        false => fd.try_clone_to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use rustix::pty::OpenptFlags;

    use super::*;

    #[test]
    fn a_terminal_goes_one_way_and_is_not_read_in_the_background() {
        let master = rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        rustix::pty::unlockpt(&master).unwrap();
        let name = rustix::pty::ptsname(&master, Vec::new()).unwrap();
        let terminal =
            rustix::fs::open(&*name, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let written = output(terminal.as_fd()).unwrap();
        assert!(written.is_terminal());
        rustix::io::write(&written, b"x").unwrap();
        rustix::io::write(&master, b"secret\n").unwrap();
        let mut buffer = [0; 16];
        assert!(rustix::io::read(&written, &mut buffer).is_err());
        // It is nobody's that this process could be the foreground of.
        let read = input(terminal.as_fd()).unwrap();
        assert!(!read.is_terminal());
        assert_eq!(rustix::io::read(&read, &mut buffer), Ok(0));
        // It was there to be read.
        assert_eq!(rustix::io::read(&terminal, &mut buffer), Ok(7));
    }
}
