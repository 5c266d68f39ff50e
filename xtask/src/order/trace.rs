//! Traces a start instruction by instruction: ptrace(2).
//!
//! Every process of the start is traced from its first instruction, however it is forked. The command inside is detached as soon as
//! it is executed.

use std::collections::HashSet;
use std::ops::Range;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nix::errno::Errno;
use nix::libc;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::VARIABLES;

/// How long a trace may take. A start has about 1.6 million instructions, each some forty microseconds when traced: a minute.
const LIMIT: Duration = Duration::from_secs(15 * 60);

/// Returns the addresses within `text` that `program` with `args` ran, each once, in the order they were first run.
pub(super) fn follow(
    program: &Path,
    args: &[&str],
    home: &Path,
    folder: &Path,
    text: &Range<u64>,
) -> Result<Vec<u64>> {
    let mut command = Command::new("sh");
    // The shell stops until it is attached, and then becomes the program.
    command.args(["-c", "kill -STOP $$; exec \"$@\"", "sh"]).arg(program).args(args);
    VARIABLES.iter().for_each(|name| {
        command.env_remove(name);
    });
    let mut child = command
        .env("HOME", home)
        .current_dir(folder)
        .stdin(Stdio::null())
        .spawn()
        .context("failed to start `sh`")?;
    let first = Pid::from_raw(i32::try_from(child.id())?);
    let (ended, end) = mpsc::channel::<()>();
    let watch = thread::spawn(move || {
        if end.recv_timeout(LIMIT) == Err(mpsc::RecvTimeoutError::Timeout) {
            // The others die with this one: the kernel kills tracees with their tracer, and a sandbox's processes with its init.
            let _ = kill(first, Signal::SIGKILL);
        }
    });
    let addresses = taken_hold_of(first).and_then(|()| stepped(first, text));
    if addresses.is_err() {
        let _ = child.kill();
        let _ = child.wait();
    }
    drop(ended);
    let _ = watch.join();
    addresses
}

/// Attaches to `first`, lets it become the program, and stops it before the program's first instruction.
fn taken_hold_of(first: Pid) -> Result<()> {
    let stopped = waitpid(first, Some(WaitPidFlag::WUNTRACED))?;
    ensure!(matches!(stopped, WaitStatus::Stopped(..)), "sh did not wait: {stopped:?}");
    ptrace::attach(first).context("this machine allows nobody to be followed (ptrace)")?;
    waitpid(first, Some(WaitPidFlag::__WALL))?;
    let forks = Options::PTRACE_O_TRACEFORK | Options::PTRACE_O_TRACEVFORK | Options::PTRACE_O_TRACECLONE;
    ptrace::setoptions(first, forks | Options::PTRACE_O_TRACEEXEC | Options::PTRACE_O_EXITKILL)?;
    kill(first, Signal::SIGCONT)?;
    ptrace::cont(first, None)?;
    loop {
        match waitpid(first, Some(WaitPidFlag::__WALL))? {
            WaitStatus::PtraceEvent(_, _, libc::PTRACE_EVENT_EXEC) => return Ok(()),
            WaitStatus::Stopped(_, _) => ptrace::cont(first, None)?,
            other => bail!("sh did not become the program: {other:?}"),
        }
    }
}

/// Single-steps `first` and every process it forks, until all have ended.
fn stepped(first: Pid, text: &Range<u64>) -> Result<Vec<u64>> {
    let mut seen = HashSet::new();
    let mut addresses = Vec::new();
    let mut status = None;
    ptrace::step(first, None)?;
    loop {
        let stop = match waitpid(None, Some(WaitPidFlag::__WALL)) {
            Err(Errno::ECHILD) => break,
            other => other?,
        };
        let (pid, signal) = match stop {
            WaitStatus::Exited(pid, code) if pid == first => {
                status = Some(code);
                continue;
            }
            WaitStatus::PtraceEvent(pid, _, libc::PTRACE_EVENT_EXEC) => {
                gone_meanwhile(ptrace::detach(pid, None))?;
                continue;
            }
            WaitStatus::PtraceEvent(pid, _, _) => (pid, None),
            // The end of a step, or the stop with which a forked process begins.
            WaitStatus::Stopped(pid, Signal::SIGTRAP | Signal::SIGSTOP) => (pid, None),
            WaitStatus::Stopped(pid, signal) => (pid, Some(signal)),
            _ => continue,
        };
        if let Ok(registers) = ptrace::getregs(pid)
            && text.contains(&registers.rip)
            && seen.insert(registers.rip)
        {
            addresses.push(registers.rip);
        }
        gone_meanwhile(ptrace::step(pid, signal))?;
    }
    ensure!(status == Some(0), "the start that was followed did not succeed: {status:?}");
    Ok(addresses)
}

/// Accepts that a stopped process was killed meanwhile; `waitpid` reports its end.
fn gone_meanwhile(done: nix::Result<()>) -> Result<()> {
    match done {
        Err(Errno::ESRCH) => Ok(()),
        other => Ok(other?),
    }
}
