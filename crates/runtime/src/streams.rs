//! Where the command's standard streams lead: to a terminal of its own where the person has one, otherwise each in its one direction to
//! the caller's own.
//!
//! Whoever holds a descriptor holds what it leads to, in both directions: a pipe can be opened again by its name in `/proc`, a file can be
//! shortened and given other permissions, a socket takes and gives. So nothing of the caller's is handed over but a terminal, opened once
//! more for one direction, and what is nothing. All else is carried, between it and a pipe of the run's own.

mod copier;
mod input;
mod output;
mod wait;

use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use policy::Terminal;
use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::pipe::PipeFlags;
use sandbox::Stdio;

pub(crate) use self::copier::{Copiers, RunningCopiers};
use self::input::Input;
use self::output::Output;
pub(crate) use self::output::Unwritten;

/// `/dev/null`, as the kernel numbers devices.
const NULL: (u32, u32) = (1, 3);

/// The streams of a run, and who carries them once it has begun.
pub(crate) fn stdio(wanted: Terminal, is_at_engine: bool) -> io::Result<(Stdio, Copiers)> {
    let both = io::stdin().is_terminal() && io::stdout().is_terminal();
    let own = match wanted {
        Terminal::Always => true,
        // In the background it would be stopped for changing how the terminal behaves.
        Terminal::Auto => both && !is_behind(io::stdin().as_fd()),
        Terminal::Never => false,
    };
    let mut copiers = Copiers::default();
    if own {
        return Ok((Stdio::Terminal, copiers));
    }
    let (stdin, stdout, stderr) = (io::stdin(), io::stdout(), io::stderr());
    let all = [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()];
    for fd in all {
        if kind(&rustix::fs::fstat(fd)?).is_dir() {
            return Err(io::Error::other("one of them is a directory"));
        }
    }
    // What is at an engine has pipes or a terminal of the engine's, and a process of ours reads ahead for it.
    let input = match is_at_engine {
        true => all[0].try_clone_to_owned()?,
        false => given_in(all[0], &mut copiers)?,
    };
    let [output, errors] = given_outs([all[1], all[2]], &mut copiers)?;
    Ok((Stdio::Descriptors([input, output, errors]), copiers))
}

fn given_in(stdin: BorrowedFd<'_>, copiers: &mut Copiers) -> io::Result<OwnedFd> {
    if let Some(input) = handed_in(stdin)? {
        return Ok(input);
    }
    let (input, theirs) = Input::from(stdin)?;
    copiers.input = Some(input);
    Ok(theirs)
}

fn given_outs([stdout, stderr]: [BorrowedFd<'_>; 2], copiers: &mut Copiers) -> io::Result<[OwnedFd; 2]> {
    let output = given_out(stdout, "standard output", copiers)?;
    // Where both lead to one place they stay in the order in which they were written.
    let is_carried = !copiers.outputs.is_empty();
    let errors = match is_carried && is_same(stdout, stderr)? {
        true => output.try_clone()?,
        false => given_out(stderr, "standard error", copiers)?,
    };
    if let Some(carried) = copiers.outputs.last_mut().filter(|output| output.leads_to(stderr)) {
        carried.is_told_to = true;
    }
    Ok([output, errors])
}

fn given_out(fd: BorrowedFd<'_>, name: &'static str, copiers: &mut Copiers) -> io::Result<OwnedFd> {
    if fd.is_terminal() {
        return one_way(fd, OFlags::WRONLY);
    }
    if is_null(&rustix::fs::fstat(fd)?) {
        return null(OFlags::WRONLY);
    }
    let (output, theirs) = Output::to(fd, name)?;
    copiers.outputs.push(output);
    Ok(theirs)
}

/// What is typed at a terminal is the command's while this run is what the terminal shows, and nobody's where it was put into the
/// background. Nothing where it is to be carried.
fn handed_in(fd: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
    if fd.is_terminal() {
        let shown = rustix::termios::tcgetpgrp(fd).is_ok_and(|group| group == rustix::process::getpgrp());
        return if shown { one_way(fd, OFlags::RDONLY) } else { null(OFlags::RDONLY) }.map(Some);
    }
    is_null(&rustix::fs::fstat(fd)?).then(|| null(OFlags::RDONLY)).transpose()
}

/// Whether a terminal shows somebody else: this run was put into the background.
fn is_behind(terminal: BorrowedFd<'_>) -> bool {
    rustix::termios::tcgetpgrp(terminal).is_ok_and(|group| group != rustix::process::getpgrp())
}

/// A terminal once more, for one direction. That of somebody else, as after su(1), cannot be opened: then it is handed over as it is.
fn one_way(fd: BorrowedFd<'_>, direction: OFlags) -> io::Result<OwnedFd> {
    let flags = direction | OFlags::NOCTTY | OFlags::CLOEXEC;
    match rustix::fs::open(format!("/proc/self/fd/{}", fd.as_raw_fd()), flags, Mode::empty()) {
        Ok(opened) => Ok(opened),
        Err(_) => fd.try_clone_to_owned(),
    }
}

/// A pipe of the run's own: what reads and what writes. The command may open it by its name (`/dev/stdout`), as whoever it runs.
fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    rustix::fs::fchmod(&read, Mode::from_raw_mode(0o666))?;
    Ok((read, write))
}

fn null(direction: OFlags) -> io::Result<OwnedFd> {
    let named = |errno: rustix::io::Errno| {
        let error = io::Error::from(errno);
        io::Error::new(error.kind(), format!("/dev/null: {error}"))
    };
    rustix::fs::open("/dev/null", direction | OFlags::CLOEXEC, Mode::empty()).map_err(named)
}

fn is_null(stat: &Stat) -> bool {
    let device = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
    kind(stat) == FileType::CharacterDevice && device == NULL
}

fn is_same(one: BorrowedFd<'_>, other: BorrowedFd<'_>) -> io::Result<bool> {
    let (one, other) = (rustix::fs::fstat(one)?, rustix::fs::fstat(other)?);
    Ok((one.st_dev, one.st_ino, one.st_rdev) == (other.st_dev, other.st_ino, other.st_rdev))
}

fn kind(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
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
        let written = given_out(terminal.as_fd(), "", &mut Copiers::default()).unwrap();
        assert!(written.is_terminal());
        rustix::io::write(&written, b"x").unwrap();
        rustix::io::write(&master, b"secret\n").unwrap();
        let mut buffer = [0; 16];
        assert!(rustix::io::read(&written, &mut buffer).is_err());
        // It is nobody's that this process could be the foreground of.
        let read = handed_in(terminal.as_fd()).unwrap().unwrap();
        assert!(!read.is_terminal());
        assert_eq!(rustix::io::read(&read, &mut buffer), Ok(0));
        // It was there to be read.
        assert_eq!(rustix::io::read(&terminal, &mut buffer), Ok(7));
    }
}
