//! The second half of every init: waits for the sidecar, starts the command, supervises it and reports its end.
//!
//! The report goes over a socket that the command does not have. Init ends when the parent or the sidecar is gone.

use std::ffi::CString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::io::Errno;
use sys::descriptor;
use sys::process::Exit;

use crate::event::Event;
use crate::failure::Failure;
use crate::init_loop::{InitLoop, Supervised, WaitEnd};
use crate::need::Need;
use crate::over::Over;
use crate::{handshake, setup};

/// The results of init's first half.
pub(crate) struct Ready {
    pub(crate) notices: Vec<String>,
    /// The workspace as it is shown, if what is protected in it is covered.
    pub(crate) shown: Option<OwnedFd>,
    /// The master side of a terminal, and the path of its slave side.
    pub(crate) terminal: Option<(OwnedFd, CString)>,
    pub(crate) groups: FurtherGroups,
}

/// Whose further groups the command has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FurtherGroups {
    Callers,
    Images,
}

impl FurtherGroups {
    /// Returns what it takes to start in a directory that the kernel refused. No group of the caller's opens one of the root's own.
    fn need_of_directory(self, directory: &Path, errno: Errno) -> Need {
        match (self, errno) {
            (Self::Images, Errno::ACCESS) if !is_of_the_root(directory) => Need::OwnGroups,
            _ => Need::OtherDirectory,
        }
    }
}

/// Whether a directory, or the nearest one above it that can be seen, is on the file system of the root: what is shown is on others.
fn is_of_the_root(directory: &Path) -> bool {
    let device = |path: &Path| rustix::fs::stat(path).ok().map(|stat| stat.st_dev);
    directory.ancestors().find_map(device) == device(Path::new("/"))
}

/// Runs init to its end, and reports how it ended. Its exit status tells nothing.
pub(crate) fn run(it: &Supervised<'_>, prepared: Result<Ready, Failure>) {
    match prepared.map_err(Over::Failed).and_then(|ready| live(it, ready)) {
        Ok(ended) => {
            // Before the end is reported: the parent then removes what held the sandbox.
            it.end_rest();
            // Reported before the sidecar is released: a parent that saw the sidecar end first would take it for lost.
            let _ = Event::Ended(ended).send(it.control);
            let _ = rustix::net::shutdown(it.sidecar, rustix::net::Shutdown::Write);
        }
        Err(Over::Failed(failure)) => drop(Event::Failed(failure).send(it.control)),
        Err(Over::NotExecuted { errno }) => drop(Event::NotExecuted { errno }.send(it.control)),
        Err(Over::Abandoned) => {}
    }
}

/// Waits for the sidecar, runs the set-up commands, and runs the command. Returns how the command ended.
fn live(it: &Supervised<'_>, ready: Ready) -> Result<Exit, Over> {
    let control = it.control;
    let mut init_loop = InitLoop::of(it).map_err(Failure::at("watch for ended processes"))?;
    handshake::await_ready(it.sidecar).map_err(Failure::at("wait for the sidecar"))?;
    let mut terminal = None;
    if let Some((master, name)) = ready.terminal {
        terminal = Some(name);
        Event::Terminal(master).send(control).map_err(Failure::at("hand the terminal over"))?;
    }
    let directory = &it.launch.directory;
    rustix::process::chdir(directory).map_err(|errno| {
        let step = format!("enter the working directory `{}`", directory.display());
        Failure::new(step, errno).needing(ready.groups.need_of_directory(directory, errno))
    })?;
    descriptor::close_on_exec_from_3().map_err(Failure::at("close descriptors"))?;
    let mut started = Some(Event::Started { notices: ready.notices, shown: ready.shown });
    let mut held = None;
    if !it.launch.setup.is_empty() {
        // The run's time begins with the first set-up command.
        let _ = started.take().map(|started| started.send(control));
        let hold = terminal.as_deref().map(setup::hold).transpose();
        held = hold.map_err(Failure::at("keep the terminal open"))?;
        if let Some(ended) = setup::run(&mut init_loop, terminal.as_deref())? {
            return Ok(ended);
        }
    }
    let spawned = it.spawn(it.launch, it.stdio, terminal.as_deref());
    drop(held);
    match spawned {
        Ok(command) => {
            let _ = started.map(|started| started.send(control));
            match init_loop.until(command, None) {
                WaitEnd::Ended(ended) => Ok(ended),
                WaitEnd::Late | WaitEnd::Gone => Err(Over::Abandoned),
            }
        }
        Err(error) => Err(unstarted(&error)),
    }
}

/// Tells a program that cannot be executed from a limit that no program could be started at.
fn unstarted(error: &io::Error) -> Over {
    let errno = error.raw_os_error().unwrap_or(0);
    let limit = match Errno::from_raw_os_error(errno) {
        Errno::AGAIN => "no more processes may be started (by this user, or within the run's `limits.pids`)",
        Errno::NOMEM => "there is no memory for it",
        Errno::MFILE => "no more files may be opened (ulimit -n)",
        Errno::NFILE => "this machine can open no more files (sysctl fs.file-max)",
        _ => return Over::NotExecuted { errno },
    };
    Over::Failed(Failure { need: Need::of_fork(errno), ..Failure::new("start the command", limit) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_no_program_that_cannot_be_executed() {
        for (errno, named, need) in [
            (Errno::AGAIN, "limits.pids", Some(Need::MoreProcesses)),
            (Errno::NOMEM, "memory", None),
            (Errno::MFILE, "ulimit -n", None),
            (Errno::NFILE, "file-max", None),
        ] {
            let Over::Failed(failure) = unstarted(&errno.into()) else { panic!("{errno}") };
            assert!(failure.step == "start the command" && failure.cause.contains(named), "{failure:?}");
            assert_eq!(failure.need, need, "{errno}");
        }
        for errno in [Errno::NOENT, Errno::ACCESS, Errno::NOEXEC] {
            let over = unstarted(&errno.into());
            assert!(
                matches!(over, Over::NotExecuted { errno: told } if told == errno.raw_os_error()),
                "{errno}"
            );
        }
    }

    #[test]
    fn a_directory_that_the_groups_of_an_image_shut_is_told_by_them() {
        let (images, callers) = (FurtherGroups::Images, FurtherGroups::Callers);
        let shown = Path::new("/proc/none/below");
        assert_eq!(images.need_of_directory(shown, Errno::ACCESS), Need::OwnGroups);
        assert_eq!(images.need_of_directory(Path::new("/"), Errno::ACCESS), Need::OtherDirectory);
        assert_eq!(callers.need_of_directory(shown, Errno::ACCESS), Need::OtherDirectory);
        assert_eq!(images.need_of_directory(shown, Errno::NOENT), Need::OtherDirectory);
        assert!(Need::OwnGroups.remedy().contains("app:app"));
    }
}
