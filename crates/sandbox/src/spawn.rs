//! Starts a command: finds its program along `PATH`, and sets its arguments, environment and streams.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::Access;
use rustix::process::Pid;
use rustix::pty::OpenptFlags;
use sys::spawn::{Command, Streams};

use crate::launch::{Launch, Stdio, TerminalSize};

/// Starts a command, on a terminal if one was opened.
pub(crate) fn spawn(launch: &Launch, stdio: &Stdio, terminal: Option<&CStr>) -> io::Result<Pid> {
    let program = find(launch)?;
    let program = CString::new(program.into_os_string().into_vec())?;
    let arguments =
        launch.command.iter().map(|a| CString::new(a.as_bytes())).collect::<Result<Vec<_>, _>>()?;
    let environment = launch
        .environment
        .iter()
        .map(|(n, v)| CString::new(format!("{n}={v}")))
        .collect::<Result<Vec<_>, _>>()?;
    let streams = match (stdio, terminal) {
        (Stdio::Descriptors([input, output, error]), _) => {
            Streams::Descriptors([input.as_fd(), output.as_fd(), error.as_fd()])
        }
        (Stdio::Terminal { errors, .. }, Some(path)) => {
            Streams::Terminal { path, errors: errors.as_ref().map(AsFd::as_fd) }
        }
        (Stdio::Terminal { .. }, None) => return Err(io::ErrorKind::NotFound.into()),
    };
    Command { program: &program, arguments: &arguments, environment: &environment, streams }.start()
}

/// Finds the program: the command itself if it contains a slash, else the first of its name along `PATH`.
fn find(launch: &Launch) -> io::Result<PathBuf> {
    let name = launch.command.first().ok_or(io::ErrorKind::InvalidInput)?;
    if name.as_bytes().contains(&b'/') {
        return Ok(launch.directory.join(name));
    }
    let search = launch.environment.iter().find(|(n, _)| n == "PATH").map_or("", |(_, v)| v.as_str());
    let mut refused = None;
    for directory in search.split(':').filter(|d| !d.is_empty()) {
        let file = Path::new(directory).join(name);
        match is_program(&file) {
            Some(true) => return Ok(file),
            Some(false) => refused = Some(io::Error::from(rustix::io::Errno::ACCESS)),
            None => {}
        }
    }
    Err(refused.unwrap_or_else(|| rustix::io::Errno::NOENT.into()))
}

/// Whether a regular file may be executed. `None` for anything else, such as a folder, which a shell does not take for a program either.
fn is_program(file: &Path) -> Option<bool> {
    let is_file = std::fs::metadata(file).is_ok_and(|about| about.is_file());
    is_file.then(|| rustix::fs::access(file, Access::EXEC_OK).is_ok())
}

/// Opens a terminal of this size. Returns its master side, and the path of its slave side.
pub(crate) fn open_terminal(size: TerminalSize) -> io::Result<(OwnedFd, CString)> {
    let master = rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    rustix::pty::unlockpt(&master)?;
    size.set(&master)?;
    let name = rustix::pty::ptsname(&master, Vec::new())?;
    Ok((master, name))
}
