//! The second half of every init: wait for the sidecar, start the command, reap, pass signals on, report the end.
//!
//! The report goes over a socket the command does not have. When the parent or the sidecar is gone, init goes too.

use std::ffi::CString;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec};
use sys::descriptor;

use crate::event::{Ended, Event};
use crate::failure::{Failure, Need};
use crate::watch::{Seen, Supervised, Watch};
use crate::{handshake, setup, spawn};

/// What the preparation left for the start of the command.
pub(crate) struct Ready {
    pub(crate) notices: Vec<String>,
    /// The master side of a terminal, and the name of its other side.
    pub(crate) terminal: Option<(OwnedFd, CString)>,
}

/// Runs init to its end; the answer is the exit status of its process, which nobody reads.
pub(crate) fn run(it: &Supervised<'_>, prepared: Result<Ready, Failure>) -> i32 {
    match prepared.map_err(Some).and_then(|ready| live(it, ready)) {
        Ok(ended) => {
            // Before the end is told, so that whoever hears of it may take away what held the sandbox.
            it.end_rest();
            // Told before the sidecar is let go: a parent that saw the sidecar go first would take it for lost.
            let _ = Event::Ended(ended).send(it.control);
            let _ = rustix::net::shutdown(it.sidecar, rustix::net::Shutdown::Write);
            await_last_word(it.sidecar);
        }
        Err(Some(failure)) => {
            let _ = Event::Failed(failure).send(it.control);
        }
        Err(None) => {}
    }
    0
}

/// How long the sidecar may take over its last record before nobody waits for it.
const LAST_WORD: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

/// Leaves the processor to the sidecar, which is told to end, until it has: the kernel lets nobody between while it takes a
/// sandbox apart, and the parent waits for the sidecar's last word.
fn await_last_word(sidecar: BorrowedFd<'_>) {
    let mut gone = [PollFd::from_borrowed_fd(sidecar, PollFlags::IN)];
    let _ = rustix::event::poll(&mut gone, Some(&LAST_WORD));
}

/// Waits for the sidecar, has the sandbox set up, and starts the command: how it ended. Where it cannot be executed that is told, and
/// where somebody is gone nobody is left to tell: neither is a failure with a name.
fn live(it: &Supervised<'_>, ready: Ready) -> Result<Ended, Option<Failure>> {
    let control = it.control;
    let fail = |step: &str, error: std::io::Error| Some(Failure::new(step, error));
    let mut watch = Watch::of(it).map_err(|e| fail("watch for ended processes", e))?;
    handshake::await_ready(it.sidecar).map_err(|e| fail("wait for the sidecar", e))?;
    let mut terminal = None;
    if let Some((master, name)) = ready.terminal {
        terminal = Some(name);
        Event::Terminal(master).send(control).map_err(|e| fail("hand the terminal over", e))?;
    }
    let directory = &it.launch.directory;
    rustix::process::chdir(directory)
        .map_err(|e| Failure::new(format!("enter the working directory `{}`", directory.display()), e))
        .map_err(|failure| Some(failure.needing(Need::OtherDirectory)))?;
    descriptor::close_on_exec_from_3().map_err(|e| fail("close descriptors", e))?;
    let mut started = Some(Event::Started { notices: ready.notices });
    let mut held = None;
    if !it.launch.setup.is_empty() {
        // The time of the run begins with the first of them.
        let _ = started.take().map(|started| started.send(control));
        let hold = terminal.as_deref().map(setup::hold).transpose();
        held = hold.map_err(|e| fail("keep the terminal open", e))?;
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
                Seen::Late | Seen::Gone => Err(None),
            }
        }
        Err(error) => {
            let errno = error.raw_os_error().unwrap_or(0);
            let _ = Event::NotExecuted { errno }.send(control);
            Err(None)
        }
    }
}
