//! Set-up commands: init runs them before the command, one at a time, as the same user and under the same restrictions. Init ends what one
//! leaves running before the next begins, so that nothing of it runs beside the command.
//!
//! ```text
//! sidecar serves ─► set-up 1 ─► its rest is ended ─► set-up 2 ─► … ─► the command
//!                      │ failed, and required: nothing else runs
//!                      └ asked to end: the run ends, as it would with the command
//! ```

use std::ffi::CStr;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Instant;

use policy::OnFailure;
use rustix::fs::{Mode, OFlags};
use rustix::process::Signal;
use sys::process::Exit;

use crate::event::{Event, SetUpEnd};
use crate::failure::Failure;
use crate::init_loop::{InitLoop, WaitEnd};
use crate::launch::{Launch, Stdio};
use crate::need::Need;
use crate::over::Over;

/// The signals of a terminal's keys.
const FROM_KEYS: [i32; 2] = [Signal::INT.as_raw(), Signal::QUIT.as_raw()];

/// Runs all set-up commands. Returns the end of the run if somebody asked for an end meanwhile.
///
/// # Errors
/// The required set-up command failed, or the sandbox was abandoned.
pub(crate) fn run(init_loop: &mut InitLoop<'_>, terminal: Option<&CStr>) -> Result<Option<Exit>, Over> {
    let it = init_loop.it;
    for (number, setup) in (0..).zip(&it.launch.setup) {
        let began = Instant::now();
        let stdio = streams(it.stdio).map_err(Failure::at("give a set-up command its streams"))?;
        let launch = Launch { command: setup.command.clone(), ..it.launch.clone() };
        let end = match it.spawn(&launch, &stdio, terminal) {
            Ok(pid) => match init_loop.until(pid, Some(began + setup.patience)) {
                WaitEnd::Ended(ended) => SetUpEnd::Ended(ended),
                WaitEnd::Late => SetUpEnd::TimedOut,
                WaitEnd::Gone => return Err(Over::Abandoned),
            },
            Err(error) => SetUpEnd::NotExecuted(error.raw_os_error().unwrap_or(0)),
        };
        it.end_rest();
        let _ = Event::SetUp { number, end, took: began.elapsed() }.send(it.control);
        if let Some(signal) = init_loop.asked.or(from_keys(end, terminal)) {
            return Ok(Some(Exit::Signal(signal)));
        }
        if !end.succeeded() && setup.on_failure == OnFailure::EndRun {
            return Err(of_required(&setup.name, end).into());
        }
    }
    Ok(None)
}

/// Returns the failure of a run that requires a set-up command.
fn of_required(name: &str, end: SetUpEnd) -> Failure {
    let need = match end {
        SetUpEnd::NotExecuted(errno) => Need::of_fork(errno),
        SetUpEnd::Ended(_) | SetUpEnd::TimedOut => None,
    };
    let cause = format!("`{name}` {end}, and the run requires it");
    Failure { need, ..Failure::new("set the sandbox up", cause) }
}

/// Returns the signal by which a user at the terminal ended a set-up command: it was meant for the run.
fn from_keys(end: SetUpEnd, terminal: Option<&CStr>) -> Option<i32> {
    match end {
        SetUpEnd::Ended(Exit::Signal(signal)) if terminal.is_some() && FROM_KEYS.contains(&signal) => {
            Some(signal)
        }
        _ => None,
    }
}

/// Returns the streams of a set-up command: those of the command at a terminal; else an empty input, and the command's standard error for all
/// output, because standard output is the command's alone.
fn streams(stdio: &Stdio) -> io::Result<Stdio> {
    match stdio {
        Stdio::Terminal { size, errors } => {
            let errors = errors.as_ref().map(OwnedFd::try_clone).transpose()?;
            Ok(Stdio::Terminal { size: *size, errors })
        }
        Stdio::Descriptors([_, _, errors]) => {
            let null = rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
            Ok(Stdio::Descriptors([null, errors.try_clone()?, errors.try_clone()?]))
        }
    }
}

/// Keeps the slave side of a terminal open while no process has it, so that the master's reader does not take it for closed.
pub(crate) fn hold(terminal: &CStr) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(terminal, flags, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn one_process_too_many_is_told_with_what_allows_more() {
        let need = |errno: Errno| of_required("x", SetUpEnd::NotExecuted(errno.raw_os_error())).need;
        assert_eq!(need(Errno::AGAIN), Some(Need::MoreProcesses));
        assert_eq!((need(Errno::NOENT), of_required("x", SetUpEnd::TimedOut).need), (None, None));
    }
}
