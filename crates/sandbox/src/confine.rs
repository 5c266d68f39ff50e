//! Starts and confines the sidecar, the only process with a way out.
//!
//! The sidecar is a fork of its parent, made before the parent has threads; ARCHITECTURE.md says why it is not an exec. It has a private
//! identity if root started it, no capabilities, no new privileges, no core dumps, no files beyond those it has opened, and a short list
//! of system calls.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::Signal;
use sys::landlock::{self, Enforced, Right};
use sys::privilege;
use sys::process::{self, Child, Exit};

use crate::error::Error;
use crate::plan::ids::Identity;
use crate::{descent, null_streams, orphans, seccomp};

/// The most descriptors of a sidecar: two per connection and a pipe for the busy ones.
const DESCRIPTORS: u64 = 8192;

fn limit_descriptors() -> io::Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let most = getrlimit(Resource::Nofile).maximum.map_or(DESCRIPTORS, |most| most.min(DESCRIPTORS));
    Ok(setrlimit(Resource::Nofile, Rlimit { current: Some(most), maximum: Some(most) })?)
}

/// Takes as much processor time as this user may have: a soft limit of the caller's is for the command, and the kernel ends who reaches it.
fn take_processor_time() -> io::Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Cpu);
    Ok(setrlimit(Resource::Cpu, Rlimit { current: limit.maximum, ..limit })?)
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

    /// Whether the sidecar is stopped, by a signal or a tracer, as far as this machine tells.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        descent::is_held_up(self.0.pid())
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

/// What a sidecar takes over from the process that starts it.
pub trait KeepsOpen {
    /// Returns the descriptors that stay open.
    fn descriptors(&self) -> Vec<BorrowedFd<'_>>;

    /// Tells, in the sidecar's process, why it ends before it serves.
    fn tell_failure(&self, _: io::Error) {}
}

impl<T: KeepsOpen> KeepsOpen for &T {
    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        T::descriptors(self)
    }

    fn tell_failure(&self, error: io::Error) {
        T::tell_failure(self, error);
    }
}

/// Starts a sidecar: a fork of this process that keeps only the descriptors of what it inherits, and runs `serve` with that. Of the
/// caller's streams it keeps none: they may be files, which one that was taken over could overwrite.
///
/// # Errors
/// When the fork fails.
pub fn start_sidecar<T: KeepsOpen>(inherited: T, serve: impl FnOnce(T) -> i32) -> Result<Sidecar, Error> {
    let child = process::fork(|forked| {
        let tied = process::die_with_parent()
            .and_then(|()| forked.close_all_but(&inherited.descriptors()))
            .and_then(|()| null_streams::take());
        // A process group of its own, so that a terminal's signals do not reach it. A session would cost a scheduler group.
        let _ = rustix::process::setpgid(None, None);
        match tied {
            Ok(()) => serve(inherited),
            Err(error) => {
                inherited.tell_failure(error);
                1
            }
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
    take_processor_time()?;
    privilege::drop_capabilities()?;
    privilege::no_new_privileges()?;
    privilege::undumpable()?;
    restrict_files(&[]).map_err(io::Error::other)?;
    sys::seccomp::install(&seccomp::SIDECAR)
}

/// Restricts this process to the given trees by Landlock, where the kernel has it.
///
/// # Errors
/// When the kernel has it and refuses, or enforces nothing.
pub(crate) fn restrict_files(trees: &[(BorrowedFd<'_>, Right)]) -> Result<(), String> {
    let enforced = landlock::restrict(trees).map_err(|error| error.to_string())?;
    refuse_unenforced(enforced, landlock::version().ok()).map_err(str::to_owned)
}

fn refuse_unenforced(enforced: Enforced, version: Option<u32>) -> Result<(), &'static str> {
    match (enforced, version) {
        (Enforced::Not, Some(_)) => Err("the kernel has Landlock, and enforces nothing of it"),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};

    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socketpair};

    use super::*;

    /// Returns what `attempts` returns in a thread that has the sidecar's filter. A filter is a thread's own, seccomp(2).
    fn under_the_filter<T: Send>(attempts: impl Fn() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let thread = scope.spawn(move || {
                privilege::no_new_privileges().unwrap();
                sys::seccomp::install(&seccomp::SIDECAR).unwrap();
                attempts()
            });
            thread.join().unwrap()
        })
    }

    #[test]
    fn no_unix_socket_of_the_machine_is_reached() {
        let folder = tempfile::tempdir().unwrap();
        let [bus, log] = ["bus", "log"].map(|name| folder.path().join(name));
        let _listens = (UnixListener::bind(&bus).unwrap(), UnixDatagram::bind(&log).unwrap());
        let attempts = || {
            let pair = |kind| socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).map(drop);
            [
                UnixStream::connect(&bus).map(drop),
                UnixDatagram::unbound().and_then(|socket| socket.connect(&log)),
                pair(SocketType::DGRAM).map_err(io::Error::from),
            ]
            .map(|attempt| attempt.map_err(|error| error.kind()))
        };
        assert_eq!(attempts(), [Ok(()); 3]);
        assert_eq!(under_the_filter(attempts), [Err(io::ErrorKind::PermissionDenied); 3]);
        let reconnected = under_the_filter(|| {
            let (ours, theirs) = UnixStream::pair().unwrap();
            drop(theirs);
            connect(&ours, &SocketAddrUnix::new(&bus).unwrap())
        });
        assert!(reconnected.is_err());
    }

    #[test]
    fn a_soft_limit_of_processor_time_is_the_commands_alone() {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let before = getrlimit(Resource::Cpu);
        let soft = before.maximum.map_or(3600, |most| most.min(3600));
        setrlimit(Resource::Cpu, Rlimit { current: Some(soft), ..before }).unwrap();
        take_processor_time().unwrap();
        assert_eq!(getrlimit(Resource::Cpu), Rlimit { current: before.maximum, ..before });
        setrlimit(Resource::Cpu, before).unwrap();
    }

    #[test]
    fn a_file_for_appending_stays_one() {
        use rustix::fs::{OFlags, fcntl_setfl, ftruncate};
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit");
        let file = std::fs::OpenOptions::new().append(true).create(true).open(path).unwrap();
        let attempts = || [fcntl_setfl(&file, OFlags::empty()), ftruncate(&file, 0)];
        assert_eq!(attempts(), [Ok(()); 2]);
        let confined = under_the_filter(attempts);
        assert_eq!(confined, [Err(rustix::io::Errno::PERM); 2]);
    }

    #[test]
    fn a_kernel_that_has_landlock_must_enforce_it() {
        assert!(refuse_unenforced(Enforced::Not, Some(1)).is_err());
        for (enforced, version) in
            [(Enforced::Not, None), (Enforced::Partly, Some(1)), (Enforced::Fully, Some(6))]
        {
            assert_eq!(refuse_unenforced(enforced, version), Ok(()), "{enforced:?}");
        }
    }
}
