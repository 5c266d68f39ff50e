//! The sidecar's own walls: a process that holds the way out is itself shut in.
//!
//! It is a fork of its parent, made before the parent does anything with threads; see ARCHITECTURE.md for why not an
//! exec. It has an identity of its own when root started it, no capabilities, no new privileges, no core dumps, no
//! files it has not already opened, and a short list of system calls.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::Signal;
use sys::process::{self, Child, Exit};
use sys::{descriptor, landlock, privilege};

use crate::error::Error;
use crate::orphans;
use crate::plan::ids::Identity;
use crate::seccomp;

/// How many descriptors it may have: two a connection and a pipe for the busy ones.
const DESCRIPTORS: u64 = 8192;

fn limit_descriptors() -> io::Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let most = getrlimit(Resource::Nofile).maximum.map_or(DESCRIPTORS, |most| most.min(DESCRIPTORS));
    Ok(setrlimit(Resource::Nofile, Rlimit { current: Some(most), maximum: Some(most) })?)
}

/// How long a sidecar that is to end may take over it.
const LONGEST_END: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };

/// A running sidecar.
#[derive(Debug)]
pub struct Sidecar(Child);

impl Sidecar {
    /// A descriptor that becomes readable when the sidecar is gone.
    #[must_use]
    pub fn gone(&self) -> BorrowedFd<'_> {
        self.0.pidfd()
    }

    /// Takes what has ended of those that came here because this process is the first of its namespace, pid_namespaces(7): not of the
    /// sidecar, whose status is asked for by who started it.
    pub fn bury_others(&self) {
        orphans::bury_all_but(self.0.pid());
    }

    /// Waits for its end, and ends it where it takes too long.
    pub fn end(&self) {
        let mut gone = [PollFd::from_borrowed_fd(self.gone(), PollFlags::IN)];
        let _ = rustix::event::poll(&mut gone, Some(&LONGEST_END));
        let _ = self.0.signal(Signal::KILL);
        self.wait();
    }

    /// Waits for its end; whether it ended well.
    pub fn wait(&self) -> bool {
        matches!(self.0.wait(), Ok(Exit::Code(0)))
    }
}

/// Starts a sidecar as a copy of this process that keeps only the named descriptors and runs `serve`.
///
/// # Errors
/// When the fork fails.
pub fn start_sidecar(keep: &[BorrowedFd<'_>], serve: impl FnOnce() -> i32) -> Result<Sidecar, Error> {
    let child = process::fork(|| {
        let tied = process::die_with_parent().and_then(|()| descriptor::close_all_but(keep));
        // What a terminal sends goes past it; a session of its own would cost a group of the scheduler's.
        let _ = rustix::process::setpgid(None, None);
        match tied {
            Ok(()) => serve(),
            Err(_) => 1,
        }
    });
    child.map(Sidecar).map_err(|source| Error::Start { what: "the sidecar", source })
}

/// Shuts the calling process in, once everything it needs is open. An identity is taken only where there is one of the run's
/// own, because root started it.
///
/// # Errors
/// The first wall that could not be put up: then the sidecar must not serve.
pub fn confine_sidecar(identity: Option<Identity>) -> io::Result<()> {
    if let Some(identity) = identity.filter(Identity::is_private) {
        // One beside the run's own, so that neither can touch the other.
        let (uid, gid) = identity.sidecar_ids();
        privilege::become_user(uid, gid)?;
        process::die_with_parent()?; // a change of identity clears it
    }
    limit_descriptors()?;
    privilege::drop_capabilities()?;
    privilege::no_new_privileges()?;
    privilege::undumpable()?;
    landlock::restrict(&[]).map_err(io::Error::other)?;
    sys::seccomp::install(&seccomp::SIDECAR)
}
