//! Starts and confines the sidecar, the only process with a way out.
//!
//! The sidecar is a fork of its parent, made before the parent has threads; ARCHITECTURE.md says why it is not an exec. It has a private
//! identity if root started it, no capabilities, no new privileges, no core dumps, no files beyond those it has opened, and a short list
//! of system calls.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::Signal;
use sys::process::{self, Child, Exit};
use sys::{landlock, privilege};

use crate::error::Error;
use crate::orphans;
use crate::plan::ids::Identity;
use crate::seccomp;

/// The most descriptors of a sidecar: two per connection and a pipe for the busy ones.
const DESCRIPTORS: u64 = 8192;

fn limit_descriptors() -> io::Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let most = getrlimit(Resource::Nofile).maximum.map_or(DESCRIPTORS, |most| most.min(DESCRIPTORS));
    Ok(setrlimit(Resource::Nofile, Rlimit { current: Some(most), maximum: Some(most) })?)
}

/// The longest wait for a sidecar that is to end.
const LONGEST_END: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };

/// A running sidecar.
#[derive(Debug)]
pub struct Sidecar(Child);

impl Sidecar {
    /// Returns a descriptor that becomes readable when the sidecar is gone.
    #[must_use]
    pub fn gone(&self) -> BorrowedFd<'_> {
        self.0.pidfd()
    }

    /// Reaps the orphans that this process inherited as the first of its namespace, pid_namespaces(7). Not the sidecar, whose status its
    /// starter waits for.
    pub fn bury_others(&self) {
        orphans::bury_all_but(self.0.pid());
    }

    /// Waits for the sidecar's end, and kills it if it takes too long. One that not even that ends, as while a file system hangs, is left
    /// alone.
    pub fn end(&self) {
        let wait = || {
            let mut gone = [PollFd::from_borrowed_fd(self.gone(), PollFlags::IN)];
            rustix::event::poll(&mut gone, Some(&LONGEST_END))
        };
        if wait() != Ok(1) {
            let _ = self.0.signal(Signal::KILL);
            let _ = wait();
        }
        let _ = self.0.try_wait();
    }

    /// Waits for the sidecar's end. Returns whether it exited with 0.
    pub fn wait(&self) -> bool {
        matches!(self.0.wait(), Ok(Exit::Code(0)))
    }
}

/// Starts a sidecar: a fork of this process that keeps only the given descriptors and runs `serve`.
///
/// # Errors
/// When the fork fails.
pub fn start_sidecar(keep: &[BorrowedFd<'_>], serve: impl FnOnce() -> i32) -> Result<Sidecar, Error> {
    let child = process::fork(|forked| {
        let tied = process::die_with_parent().and_then(|()| forked.close_all_but(keep));
        // A process group of its own, so that a terminal's signals do not reach it. A session would cost a scheduler group.
        let _ = rustix::process::setpgid(None, None);
        match tied {
            Ok(()) => serve(),
            Err(_) => 1,
        }
    });
    child.map(Sidecar).map_err(|source| Error::Start { what: "the sidecar", source })
}

/// Confines the calling process, once everything it needs is open. Changes the identity only if the run has private ids, because root
/// started it.
///
/// # Errors
/// When a restriction cannot be applied. The sidecar must not serve then.
pub fn confine_sidecar(identity: Option<Identity>) -> io::Result<()> {
    if let Some(identity) = identity.filter(Identity::is_private) {
        // Different from the run's, so that neither can signal or trace the other.
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
