//! Ending what descends from a process where no namespace does: by what the kernel gives a subreaper, prctl(2). It touches no process that
//! is not a child of the caller's.

use std::io;

use rustix::process::{Pid, WaitOptions};
use sys::signal;

/// `SIGKILL`, signal(7).
const SIGKILL: i32 = 9;
/// How many rounds of killing there are: each ends one generation.
const ROUNDS: usize = 64;

/// What comes to the parent of a supervisor that was killed: the command has the same user, and can do that. Each of the two sees the
/// other's end, and ends what ran. L02
#[derive(Debug)]
pub(crate) struct Orphans {
    /// Those that were there before the run.
    others: Vec<i32>,
}

impl Orphans {
    /// From now on they come here instead of to the host's init.
    pub(crate) fn adopt() -> io::Result<Self> {
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
        Ok(Self { others: children() })
    }

    /// Ends all of them, once the supervisor is gone. What this process started itself is of its own session, in which no process comes
    /// that left it: setsid(2).
    pub(crate) fn end(&self) {
        let session = |pid: Option<Pid>| rustix::process::getsid(pid).ok();
        let own = session(None);
        end_children(|child| !self.others.contains(&child) && session(Pid::from_raw(child)) != own);
    }
}

/// Kills every process that descends from this one, generation by generation: a killed one's children come here.
pub(crate) fn end_descendants() {
    end_children(|_| true);
}

/// Takes the status of every child that has ended, but of one.
pub(crate) fn bury_all_but(other: Pid) {
    for child in children().into_iter().filter(|child| *child != other.as_raw_nonzero().get()) {
        let _ = rustix::process::waitpid(Pid::from_raw(child), WaitOptions::NOHANG);
    }
}

fn end_children(is_meant: impl Fn(i32) -> bool) {
    for _ in 0..ROUNDS {
        let mut found = children();
        found.retain(|child| is_meant(*child));
        if found.is_empty() {
            return;
        }
        for child in found {
            let _ = signal::send(child, SIGKILL);
            let _ = rustix::process::waitpid(Pid::from_raw(child), WaitOptions::empty());
        }
    }
}

fn children() -> Vec<i32> {
    let own = rustix::process::getpid().as_raw_nonzero();
    let list = std::fs::read_to_string(format!("/proc/self/task/{own}/children")).unwrap_or_default();
    list.split_whitespace().filter_map(|n| n.parse().ok()).collect()
}
