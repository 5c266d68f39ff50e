//! Traces which functions a start enters: ptrace(2).
//!
//! A breakpoint is put at the first instruction of each function, before the program's first one, and taken away where it is met: a
//! function stops each process once. A process that is forked has the breakpoints that are left, and is traced from its first
//! instruction, however it is forked. The command inside is detached as soon as it is executed.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
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

/// How long a trace may take. A start enters some two thousand functions in each of three processes: less than a second.
const LIMIT: Duration = Duration::from_secs(60);
/// `int3`: the processor stops behind it.
const BREAKPOINT: u8 = 0xcc;

/// A start of the program that is followed.
pub(super) struct Start {
    pub(super) args: Vec<String>,
    /// The only authorities that it trusts as an upstream's, if not the machine's.
    pub(super) authorities: Option<PathBuf>,
}

/// Returns which of the functions at `entries` were entered by `start` of `program`, each once, in the order they were first entered.
pub(super) fn follow(
    program: &Path,
    start: &Start,
    home: &Path,
    folder: &Path,
    entries: &[u64],
) -> Result<Vec<u64>> {
    let mut command = Command::new("sh");
    // The shell stops until it is attached, and then becomes the program.
    command.args(["-c", "kill -STOP $$; exec \"$@\"", "sh"]).arg(program).args(&start.args);
    VARIABLES.iter().for_each(|name| {
        command.env_remove(name);
    });
    if let Some(authorities) = &start.authorities {
        command.env("SSL_CERT_FILE", authorities);
    }
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
    let addresses = taken_hold_of(first).and_then(|()| entered(first, entries));
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

/// Runs `first` and every process it forks until all have ended, with a breakpoint at each of the entries.
fn entered(first: Pid, entries: &[u64]) -> Result<Vec<u64>> {
    let breakpoints = Breakpoints::set(first, entries)?;
    let (mut forked, mut ended) = (HashSet::from([first]), HashSet::new());
    let mut seen = HashSet::new();
    let mut order = Vec::new();
    let mut status = None;
    ptrace::cont(first, None)?;
    // This process may have other children, as a server that the start asks.
    while !forked.is_subset(&ended) {
        let (pid, signal) = match waitpid(None, Some(WaitPidFlag::__WALL))? {
            WaitStatus::Exited(pid, code) => {
                ended.insert(pid);
                status = if pid == first { Some(code) } else { status };
                continue;
            }
            WaitStatus::Signaled(pid, ..) => {
                ended.insert(pid);
                continue;
            }
            WaitStatus::PtraceEvent(pid, _, libc::PTRACE_EVENT_EXEC) => {
                ended.insert(pid);
                gone_meanwhile(ptrace::detach(pid, None))?;
                continue;
            }
            WaitStatus::Stopped(pid, Signal::SIGTRAP) => {
                if let Some(entry) = gone_meanwhile(breakpoints.passed(pid))?.flatten()
                    && seen.insert(entry)
                {
                    order.push(entry);
                }
                (pid, None)
            }
            // A fork. The new process may have ended before this is reported.
            WaitStatus::PtraceEvent(pid, _, _) => {
                if let Some(new) = gone_meanwhile(ptrace::getevent(pid))? {
                    forked.insert(Pid::from_raw(i32::try_from(new)?));
                }
                (pid, None)
            }
            // The stop with which a forked process begins.
            WaitStatus::Stopped(pid, Signal::SIGSTOP) => (pid, None),
            WaitStatus::Stopped(pid, signal) => (pid, Some(signal)),
            _ => continue,
        };
        gone_meanwhile(ptrace::cont(pid, signal))?;
    }
    ensure!(status == Some(0), "the start that was followed did not succeed: {status:?}");
    Ok(order)
}

/// The octets that breakpoints stand for, by address.
struct Breakpoints(HashMap<u64, u8>);

impl Breakpoints {
    /// Puts a breakpoint at each of the entries, in the memory of a process that is stopped.
    fn set(pid: Pid, entries: &[u64]) -> Result<Self> {
        let set = entries.iter().map(|entry| Ok((*entry, exchange(pid, *entry, BREAKPOINT)?)));
        set.collect::<nix::Result<_>>().map(Self).context("failed to set a breakpoint")
    }

    /// If the process met a breakpoint, takes it away, has the process go on with what was there, and returns the address.
    fn passed(&self, pid: Pid) -> nix::Result<Option<u64>> {
        let mut registers = ptrace::getregs(pid)?;
        let at = registers.rip.wrapping_sub(1);
        let Some(octet) = self.0.get(&at) else {
            return Ok(None);
        };
        exchange(pid, at, *octet)?;
        registers.rip = at;
        ptrace::setregs(pid, registers)?;
        Ok(Some(at))
    }
}

/// Writes an octet into the memory of a process, and returns the one that was there.
fn exchange(pid: Pid, address: u64, octet: u8) -> nix::Result<u8> {
    // A whole word is read and written, and an aligned one never reaches into a page that is not there.
    let word = address & !7;
    let at = usize::try_from(address - word).map_err(|_| Errno::EFAULT)?;
    let mut octets = ptrace::read(pid, word as ptrace::AddressType)?.to_ne_bytes();
    let before = std::mem::replace(&mut octets[at], octet);
    ptrace::write(pid, word as ptrace::AddressType, libc::c_long::from_ne_bytes(octets))?;
    Ok(before)
}

/// Accepts that a stopped process was killed meanwhile, and returns nothing; `waitpid` reports its end.
fn gone_meanwhile<T>(done: nix::Result<T>) -> Result<Option<T>> {
    match done {
        Err(Errno::ESRCH) => Ok(None),
        other => Ok(Some(other?)),
    }
}
