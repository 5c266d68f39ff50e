//! Waiting: the process outside waits for the world and passes signals in, the first process inside waits for the command and reaps its
//! orphans. If either dies, everything inside dies with it: the inner one is signalled when its parent dies, and the kernel ends a PID
//! namespace with its first process (pid_namespaces(7)).

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, kill_process, kill_process_group, wait, waitpid,
};

use crate::error::Error;
use crate::process::{block, end_all_others, next_signal};

/// The signals passed on: to the command alone, as `kill` sends them, or to its group, as a terminal does.
const TO_COMMAND: [Signal; 2] = [Signal::TERM, Signal::HUP];
const TO_GROUP: [Signal; 2] = [Signal::INT, Signal::QUIT];
/// Sent by the kernel when the process outside is gone.
pub(crate) const PARENT_DIED: Signal = Signal::USR1;

fn watched() -> Vec<libc::c_int> {
    let all = [Signal::CHILD, PARENT_DIED].into_iter().chain(TO_COMMAND).chain(TO_GROUP);
    all.map(Signal::as_raw).collect()
}

/// Outside: waits for the world to end, and returns the status to exit with.
pub(crate) fn outside(world: Pid) -> Result<u8, Error> {
    let watched = watched();
    block(&watched);
    loop {
        if let Some(status) = reap(world, None)? {
            return Ok(status);
        }
        let signal = next_signal(&watched);
        if let Some(signal) =
            TO_COMMAND.into_iter().chain(TO_GROUP).find(|candidate| candidate.as_raw() == signal)
        {
            pass(|| kill_process(world, signal));
        }
    }
}

/// Inside: waits for the command, which is a process group, and returns the status to exit with.
pub(crate) fn inside(command: Pid, servers: Pid, directory: &Path) -> Result<u8, Error> {
    let watched = watched();
    loop {
        if let Some(status) = reap(command, Some(servers))? {
            return Ok(status);
        }
        let number = next_signal(&watched);
        if number == PARENT_DIED.as_raw() {
            // Nobody else cleans up, and nothing may write to the folder meanwhile.
            end_all_others();
            let _ = std::fs::remove_dir_all(directory);
            return Ok(128 + 9);
        }
        if let Some(signal) = TO_COMMAND.into_iter().find(|candidate| candidate.as_raw() == number) {
            pass(|| kill_process(command, signal));
        } else if let Some(signal) = TO_GROUP.into_iter().find(|candidate| candidate.as_raw() == number) {
            pass(|| kill_process_group(command, signal));
        }
    }
}

/// Waits a moment for the servers to record the rest.
pub(crate) fn servers_end(servers: Pid) {
    let deadline = Instant::now() + Duration::from_secs(2);
    while Instant::now() < deadline && matches!(waitpid(Some(servers), WaitOptions::NOHANG), Ok(None)) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Blocks the signals that this process will wait for.
pub(crate) fn hold_signals() {
    block(&watched());
}

/// Sends a signal. A process that has just ended needs none.
fn pass(send: impl FnOnce() -> rustix::io::Result<()>) {
    let _ = send();
}

/// Reaps everything that has ended, and returns the status of the awaited process.
fn reap(awaited: Pid, servers: Option<Pid>) -> Result<Option<u8>, Error> {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) if pid == awaited => return Ok(Some(status_of(status))),
            Ok(Some((pid, _))) if Some(pid) == servers => return Err(Error::Servers),
            Ok(Some(_)) => {}
            Ok(None) => return Ok(None),
            Err(source) => return Err(Error::Wait { source: source.into() }),
        }
    }
}

/// Returns the status in a shell's form: the status itself, or 128 plus the signal.
fn status_of(status: WaitStatus) -> u8 {
    let code = status.exit_status().or_else(|| status.terminating_signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX)
}
