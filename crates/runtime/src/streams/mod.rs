//! The standard streams of the command: a terminal of its own where the person has one, otherwise a stream for each direction, copied
//! to and from the caller's.
//!
//! A descriptor gives access in both directions to what it leads to: a pipe can be opened again by its name in `/proc`, a file can be
//! shortened and given other permissions, a socket sends and receives. So the command gets none of the caller's descriptors but a
//! terminal, reopened for one direction, and `/dev/null`. Everything else is copied between the caller's stream and a pipe of the run's
//! own.

mod copier;
mod input;
mod output;
mod wait;

use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use policy::Terminal;
use rustix::fs::{FileType, Mode, OFlags, Stat};

use rustix::pipe::PipeFlags;
use sandbox::{Stdio, TerminalSize};

pub(crate) use self::copier::{Copiers, PATIENCE, RunningCopiers};
use self::input::Input;
use self::output::Output;
pub(crate) use self::output::Unwritten;
use crate::locality::Locality;

pub(crate) const NULL_DEVICE: &str = "/dev/null";
/// Its device number, major and minor.
const NULL: (u32, u32) = (1, 3);

/// Returns the streams of a run, and the copiers to start once it has begun.
pub(crate) fn stdio(wanted: Terminal, place: Locality) -> io::Result<(Stdio, Copiers)> {
    // The sidecar has it in place of these, and could tell nobody why it does not.
    if !is_null(&rustix::fs::fstat(null(OFlags::RDWR)?)?) {
        return Err(io::Error::other(BrokenNull::Another));
    }
    let (stdin, stdout, stderr) = (io::stdin(), io::stdout(), io::stderr());
    let all = [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()];
    for fd in all {
        if kind(&rustix::fs::fstat(fd)?).is_dir() {
            return Err(io::Error::other("one of them is a directory"));
        }
    }
    let both = stdin.is_terminal() && stdout.is_terminal();
    let own = match wanted {
        Terminal::Always => true,
        // In the background, this process would be stopped for changing how the terminal behaves.
        Terminal::Auto => both && !is_behind(&stdin),
        Terminal::Never => false,
    };
    let mut copiers = Copiers::default();
    if own {
        let errors = errors_apart(place, &mut copiers)?;
        return Ok((Stdio::Terminal { size: size_of_terminal(), errors }, copiers));
    }
    let input = match place {
        Locality::AtEngine => given_at_engine(all[0], &mut copiers)?,
        Locality::Here => given_in(all[0], &mut copiers)?,
    };
    let [output, errors] = given_outs([all[1], all[2]], &mut copiers)?;
    Ok((Stdio::Descriptors([input, output, errors]), copiers))
}

/// Returns the size of the person's terminal; output that is no terminal has none.
fn size_of_terminal() -> TerminalSize {
    let size = rustix::termios::tcgetwinsize(io::stdout());
    size.map(|it| TerminalSize { rows: it.ws_row, columns: it.ws_col }).unwrap_or_default()
}

fn given_in(stdin: BorrowedFd<'_>, copiers: &mut Copiers) -> io::Result<OwnedFd> {
    if let Some(input) = handed_in(stdin)? {
        copiers.reads_terminal = input.is_terminal();
        return Ok(input);
    }
    let (input, theirs) = Input::from(stdin)?;
    copiers.input = Some(input);
    Ok(theirs)
}

/// At an engine the command has pipes or a terminal of the engine's, and a process of ours reads ahead for it. It is in no job of the
/// caller's shell, and so reads no terminal: it would take what is typed at the shell's prompt.
fn given_at_engine(stdin: BorrowedFd<'_>, copiers: &mut Copiers) -> io::Result<OwnedFd> {
    if !stdin.is_terminal() {
        return stdin.try_clone_to_owned();
    }
    if !is_shown(stdin) {
        return null(OFlags::RDONLY);
    }
    let (input, theirs) = Input::from(stdin)?;
    copiers.input = Some(input);
    copiers.reads_terminal = true;
    Ok(theirs)
}

fn given_outs([stdout, stderr]: [BorrowedFd<'_>; 2], copiers: &mut Copiers) -> io::Result<[OwnedFd; 2]> {
    let output = given_out(stdout, "standard output", copiers)?;
    // Streams that lead to one place stay in the order in which they were written.
    let is_carried = !copiers.outputs.is_empty();
    let errors = match is_carried && is_same(stdout, stderr)? {
        true => output.try_clone()?,
        false => given_out(stderr, "standard error", copiers)?,
    };
    tell_to(stderr, copiers);
    Ok([output, errors])
}

/// Returns the standard error of a command with a terminal of its own, if the person led it elsewhere than that. At an engine the terminal
/// carries all.
fn errors_apart(place: Locality, copiers: &mut Copiers) -> io::Result<Option<OwnedFd>> {
    let (stdout, stderr) = (io::stdout(), io::stderr());
    let (stdout, stderr) = (stdout.as_fd(), stderr.as_fd());
    // Streams that lead to one place stay in the order in which they were written.
    if matches!(place, Locality::AtEngine) || stderr.is_terminal() || is_same(stdout, stderr)? {
        return Ok(None);
    }
    let errors = given_out(stderr, "standard error", copiers)?;
    tell_to(stderr, copiers);
    Ok(Some(errors))
}

/// Has what this process tells wait for what the command has written, if that goes the same way.
fn tell_to(stderr: BorrowedFd<'_>, copiers: &mut Copiers) {
    if let Some(carried) = copiers.outputs.last_mut().filter(|output| output.leads_to(stderr)) {
        carried.is_told_to = true;
    }
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

/// Returns the input that the command gets directly: a terminal while this run is in its foreground, and nothing in the background.
/// `None` where the input is to be copied.
fn handed_in(fd: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
    if fd.is_terminal() {
        return if is_shown(fd) { one_way(fd, OFlags::RDONLY) } else { null(OFlags::RDONLY) }.map(Some);
    }
    is_null(&rustix::fs::fstat(fd)?).then(|| null(OFlags::RDONLY)).transpose()
}

/// Whether this process is in the foreground of its terminal.
fn is_shown(terminal: BorrowedFd<'_>) -> bool {
    rustix::termios::tcgetpgrp(terminal).is_ok_and(|group| Some(group) == sandbox::own_group())
}

/// Whether another process group is in the foreground of the terminal.
pub(crate) fn is_behind(terminal: impl AsFd) -> bool {
    rustix::termios::tcgetpgrp(terminal).is_ok_and(|group| Some(group) != sandbox::own_group())
}

/// Reopens a terminal for one direction. Another user's, as after su(1), cannot be reopened and is duplicated as it is.
fn one_way(fd: BorrowedFd<'_>, direction: OFlags) -> io::Result<OwnedFd> {
    let flags = direction | OFlags::NOCTTY | OFlags::CLOEXEC;
    match rustix::fs::open(format!("/proc/self/fd/{}", fd.as_raw_fd()), flags, Mode::empty()) {
        Ok(opened) => Ok(opened),
        Err(_) => fd.try_clone_to_owned(),
    }
}

/// Makes a pipe of the run's own, and returns its read and write ends. The command may open it by name (`/dev/stdout`), as whatever
/// user it runs.
fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    rustix::fs::fchmod(&read, Mode::from_raw_mode(0o666))?;
    Ok((read, write))
}

/// What is wrong with `/dev/null`.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BrokenNull {
    /// It cannot be opened.
    #[error("{NULL_DEVICE}: {0}")]
    Unopened(#[source] io::Error),
    /// Something else has its name.
    #[error("{NULL_DEVICE}: it is no null device")]
    Another,
}

impl BrokenNull {
    /// Whether an error tells of it.
    pub(crate) fn is_cause_of(error: &io::Error) -> bool {
        error.get_ref().is_some_and(<dyn std::error::Error + Send + Sync>::is::<Self>)
    }
}

fn null(direction: OFlags) -> io::Result<OwnedFd> {
    let named = |errno: rustix::io::Errno| io::Error::new(errno.kind(), BrokenNull::Unopened(errno.into()));
    rustix::fs::open(NULL_DEVICE, direction | OFlags::CLOEXEC, Mode::empty()).map_err(named)
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
        // This process cannot be in the foreground of a terminal that is nobody's.
        let mut copiers = Copiers::default();
        let at_engine = given_at_engine(terminal.as_fd(), &mut copiers).unwrap();
        for read in [handed_in(terminal.as_fd()).unwrap().unwrap(), at_engine] {
            assert!(!read.is_terminal());
            assert_eq!(rustix::io::read(&read, &mut buffer), Ok(0));
        }
        assert!(copiers.input.is_none() && !copiers.reads_terminal);
        // The input was there to be read.
        assert_eq!(rustix::io::read(&terminal, &mut buffer), Ok(7));
    }
}
