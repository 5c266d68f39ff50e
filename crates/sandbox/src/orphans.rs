//! Ends the descendants of a process without a pid namespace: as a subreaper, prctl(2), it inherits orphans as children. It touches no
//! process that is not a child of the caller.

use std::io;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, getpid};
use sys::process::session_of;

use crate::descent::children;

/// The longest killing. Each round ends one generation, and a chain of processes may be as deep as there are process ids.
const LONGEST: Duration = Duration::from_secs(10);

/// The processes that the parent inherits if the supervisor is killed, which the command can do, as the same user. Parent and supervisor
/// see each other's end, and each ends what ran. L02
#[derive(Debug)]
pub(crate) struct Orphans {
    /// The children from before the run.
    others: Vec<Pid>,
}

impl Orphans {
    /// Makes this process a subreaper, so that orphans become its children and not those of the host's init.
    pub(crate) fn adopt() -> io::Result<Self> {
        rustix::process::set_child_subreaper(Some(getpid()))?;
        Ok(Self { others: children(getpid()) })
    }

    /// Ends all of them, once the supervisor is gone. Children that this process started itself are in its own session, which a process
    /// cannot join again after leaving it: setsid(2).
    pub(crate) fn end(&self) {
        let session = |pid: Option<Pid>| session_of(pid).ok();
        let own = session(None);
        end_children(|child| !self.others.contains(&child) && session(Some(child)) != own);
    }
}

/// Kills every descendant of this process, generation by generation: the children of a killed process become its own.
pub(crate) fn end_descendants() {
    end_children(|_| true);
}

/// Reaps every child that has ended, except `other`.
pub(crate) fn bury_all_but(other: Pid) {
    for child in children(getpid()).into_iter().filter(|child| *child != other) {
        let _ = rustix::process::waitpid(Some(child), WaitOptions::NOHANG);
    }
}

fn end_children(is_meant: impl Fn(Pid) -> bool) {
    let end = Instant::now() + LONGEST;
    while Instant::now() < end {
        let mut found = children(getpid());
        found.retain(|child| is_meant(*child));
        if found.is_empty() {
            return;
        }
        for child in found {
            let _ = rustix::process::kill_process(child, Signal::KILL);
            let _ = rustix::process::waitpid(Some(child), WaitOptions::empty());
        }
    }
}
