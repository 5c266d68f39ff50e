//! The second half of every init: waits for the sidecar, starts the command, supervises it and reports its end.
//!
//! The report goes over a socket that the command does not have. Init ends when the parent or the sidecar is gone.

use std::ffi::CString;
use std::os::fd::OwnedFd;

use sys::descriptor;
use sys::process::Exit;

use crate::event::Event;
use crate::failure::{Failure, Need};
use crate::over::Over;
use crate::watch::{Seen, Supervised, Watch};
use crate::{handshake, setup, spawn};

/// The results of init's first half.
pub(crate) struct Ready {
    pub(crate) notices: Vec<String>,
    /// The master side of a terminal, and the path of its slave side.
    pub(crate) terminal: Option<(OwnedFd, CString)>,
}

/// Runs init to its end. Returns the exit status of its process, which nobody reads.
pub(crate) fn run(it: &Supervised<'_>, prepared: Result<Ready, Failure>) -> i32 {
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
    0
}

/// Waits for the sidecar, runs the set-up commands, and runs the command. Returns how the command ended.
fn live(it: &Supervised<'_>, ready: Ready) -> Result<Exit, Over> {
    let control = it.control;
    let mut watch = Watch::of(it).map_err(Failure::at("watch for ended processes"))?;
    handshake::await_ready(it.sidecar).map_err(Failure::at("wait for the sidecar"))?;
    let mut terminal = None;
    if let Some((master, name)) = ready.terminal {
        terminal = Some(name);
        Event::Terminal(master).send(control).map_err(Failure::at("hand the terminal over"))?;
    }
    let directory = &it.launch.directory;
    rustix::process::chdir(directory)
        .map_err(|e| Failure::new(format!("enter the working directory `{}`", directory.display()), e))
        .map_err(|failure| failure.needing(Need::OtherDirectory))?;
    descriptor::close_on_exec_from_3().map_err(Failure::at("close descriptors"))?;
    let mut started = Some(Event::Started { notices: ready.notices });
    let mut held = None;
    if !it.launch.setup.is_empty() {
        // The run's time begins with the first set-up command.
        let _ = started.take().map(|started| started.send(control));
        let hold = terminal.as_deref().map(setup::hold).transpose();
        held = hold.map_err(Failure::at("keep the terminal open"))?;
        if let Some(ended) = setup::run(&mut watch, terminal.as_deref())? {
            return Ok(ended);
        }
    }
    let spawned = spawn::spawn(it.launch, it.stdio, terminal.as_deref());
    drop(held);
    match spawned {
        Ok(command) => {
            let _ = started.map(|started| started.send(control));
            match watch.until(command, None) {
                Seen::Ended(ended) => Ok(ended),
                Seen::Late | Seen::Gone => Err(Over::Abandoned),
            }
        }
        Err(error) => Err(Over::NotExecuted { errno: error.raw_os_error().unwrap_or(0) }),
    }
}
