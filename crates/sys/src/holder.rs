//! Namespaces held by a child process until somebody uses them: opens them, as for an id-mapped mount, or enters them from a
//! process that is made later.
//!
//! The child shares this process's memory, because copying it would cost more than everything else here. The child writes only to
//! a stack of its own and one word, and never to the heap, `errno` or anything that is locked.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};
use rustix::thread::{UnshareFlags, futex};
use rustix::time::Timespec;

use crate::netlink::Messages;
use crate::placement;
use crate::privilege::{self, IdMap};
use crate::process::Namespaces;

/// How long a holder lives at most, and how long the parent waits for its namespaces.
const LONGEST_LIFE: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };
const PATIENCE: Duration = Duration::from_secs(5);
/// How often the parent checks that a silent holder still exists.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
/// The stack of a holder, in words of the alignment that it needs: 32 KiB, for a few system calls and one netlink answer.
const STACK: usize = 2048;

/// The values of a holder's state word: not ready, ready, or any other value, which is `errno` plus one.
const MAKING: u32 = 0;
const MADE: u32 = 1;

/// The memory that a holder shares with its parent.
struct Shared {
    parent: Option<Pid>,
    also: UnshareFlags,
    /// The messages to send in the new network namespace.
    wiring: Vec<Messages>,
    state: AtomicU32,
}

/// A user namespace and others made in it, held by a child. Dropping this kills the child and waits for it.
pub struct Holder {
    pid: libc::pid_t,
    pidfd: OwnedFd,
    /// The child uses this and the stack until it is gone.
    shared: Box<Shared>,
    _stack: Box<[MaybeUninit<u128>]>,
}

impl Holder {
    /// Starts a child that makes a user namespace and others in it, and sends `wiring` in its network namespace. Does not wait for
    /// the child: see [`Self::made`].
    ///
    /// # Errors
    /// When `clone(2)` fails, or a filter or an old kernel refuses `close_range(2)`, without which the child would keep this process's
    /// descriptors.
    pub fn begin(also: Namespaces, wiring: Vec<Messages>) -> io::Result<Self> {
        close_range(libc::c_uint::MAX)?; // The child must not be the first to try: see `hold`.
        let also = UnshareFlags::from_bits_retain(also.bits().cast_unsigned());
        let parent = Some(rustix::process::getpid());
        let shared = Box::new(Shared { parent, also, wiring, state: AtomicU32::new(MAKING) });
        let mut stack = Box::new_uninit_slice(STACK);
        let top = stack.as_mut_ptr_range().end.cast();
        let flags = libc::CLONE_NEWUSER | libc::CLONE_VM | libc::CLONE_PIDFD | libc::SIGCHLD;
        let mut pidfd: libc::c_int = -1;
        // SAFETY: the stack and the shared word live until `Holder` has seen the child's end; the child writes to no other
        // memory; `pidfd` outlives the call.
        let pid =
            unsafe { libc::clone(hold, top, flags, (&raw const *shared).cast_mut().cast(), &raw mut pidfd) };
        if pid == -1 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just opened this descriptor for us, close-on-exec, and nobody else owns it.
        let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
        placement::elsewhere(pid);
        Ok(Self { pid, pidfd, shared, _stack: stack })
    }

    /// Waits until all namespaces are made. Most often they are already.
    ///
    /// # Errors
    /// When `unshare(2)` or a message failed in the child, or the child is gone.
    pub fn made(&self) -> io::Result<()> {
        let state = &self.shared.state;
        if state.load(Ordering::Acquire) == MAKING {
            placement::anywhere(self.pid);
        }
        let until = Instant::now() + PATIENCE;
        loop {
            match state.load(Ordering::Acquire) {
                MADE => return Ok(()),
                MAKING => match futex::wait(state, futex::Flags::PRIVATE, MAKING, Some(&LOOK)) {
                    Ok(()) | Err(Errno::AGAIN | Errno::INTR) => {}
                    Err(Errno::TIMEDOUT) if self.is_there() && Instant::now() < until => {}
                    Err(errno) => return Err(errno.into()),
                },
                error => {
                    let errno = i32::try_from(error - MADE).map_err(|_| io::ErrorKind::InvalidData)?;
                    return Err(io::Error::from_raw_os_error(errno));
                }
            }
        }
    }

    /// Whether the child has not ended.
    fn is_there(&self) -> bool {
        let looked = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        matches!(rustix::process::waitid(WaitId::PidFd(self.pidfd.as_fd()), looked), Ok(None))
    }

    /// Returns the child's pidfd, through which setns(2) enters its namespaces.
    pub(crate) fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Writes the id maps of the user namespace from outside, opens it and kills the child, which nobody needs any more. Does not
    /// wait for the child's end, which would cost a millisecond.
    ///
    /// # Errors
    /// When the maps cannot be written or the namespace cannot be opened.
    pub fn open_user(&self, uids: &[IdMap], gids: &[IdMap]) -> io::Result<OwnedFd> {
        let directory = format!("/proc/{}", self.pid);
        privilege::write_foreign_id_maps(&directory, uids, gids)?;
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let opened = rustix::fs::open(format!("{directory}/ns/user"), flags, Mode::empty())?;
        self.let_go();
        Ok(opened)
    }

    /// Kills the child without waiting for its end. Dropping this waits.
    pub fn let_go(&self) {
        match rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL) {
            Ok(()) | Err(Errno::SRCH) => {}
            // A filter may forbid it. Nobody waits for the child before this is dropped, so its pid is still its own.
            Err(_) => {
                let _ = Pid::from_raw(self.pid).map(|pid| rustix::process::kill_process(pid, Signal::KILL));
            }
        }
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.let_go();
        while let Err(Errno::INTR) =
            rustix::process::waitid(WaitId::PidFd(self.pidfd.as_fd()), WaitIdOptions::EXITED)
        {}
    }
}

/// The child's main function: closes all descriptors, makes the namespaces, and sleeps until it is killed. The kernel also kills it
/// when its parent ends.
extern "C" fn hold(shared: *mut libc::c_void) -> libc::c_int {
    // SAFETY: `Holder` keeps it alive until this process is gone, and nobody writes to it except to the word, which is atomic.
    let shared = unsafe { &*shared.cast::<Shared>() };
    // It does not fail, and so does not write `errno`, which is the parent's: the parent has made the same call.
    let _ = close_range(0);
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    if rustix::process::getppid() != shared.parent {
        return 0;
    }
    let made = if shared.also.is_empty() {
        Ok(())
    } else {
        // SAFETY: the flags name namespaces only.
        unsafe { rustix::thread::unshare_unsafe(shared.also) }.map_err(io::Error::from)
    };
    let wired = made.and_then(|()| shared.wiring.iter().try_for_each(Messages::send));
    let state = wired.map_or_else(failed, |()| MADE);
    shared.state.store(state, Ordering::Release);
    let _ = futex::wake(&shared.state, futex::Flags::PRIVATE, 1);
    let _ = rustix::thread::nanosleep(&LONGEST_LIFE);
    0
}

/// Closes all descriptors from this one up. None is as high as the highest number.
fn close_range(from: libc::c_uint) -> io::Result<()> {
    // SAFETY: the call takes numbers only. The child, which has a table of descriptors of its own, uses none of them.
    match unsafe { libc::syscall(libc::SYS_close_range, from, libc::c_uint::MAX, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Encodes a failure as a state word.
fn failed(error: io::Error) -> u32 {
    MADE + error.raw_os_error().unwrap_or(libc::EIO).unsigned_abs()
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;
    use crate::seccomp::refusing;

    #[test]
    fn a_namespace_outlives_the_child_that_held_it() {
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let holder = Holder::begin(Namespaces::NONE, Vec::new()).unwrap();
        holder.made().unwrap();
        match holder.open_user(&[IdMap::one(0, uid)], &[IdMap::one(0, gid)]) {
            Ok(namespace) => {
                let pidfd = holder.pidfd.try_clone().unwrap();
                drop(holder);
                let gone = rustix::process::pidfd_send_signal(&pidfd, Signal::KILL);
                assert_eq!(gone, Err(rustix::io::Errno::SRCH), "its holder is gone");
                let link = std::fs::read_link(format!("/proc/self/fd/{}", namespace.as_raw_fd())).unwrap();
                assert!(link.to_string_lossy().starts_with("user:["), "{}", link.display());
            }
            // Without root a group cannot be mapped from outside: `setgroups` was not given up.
            Err(error) => {
                assert_ne!(uid, 0, "{error}");
                assert_eq!(error.raw_os_error(), Some(libc::EPERM), "{error}");
            }
        }
    }

    #[test]
    fn a_holder_goes_where_a_filter_forbids_the_newer_signal() {
        let begun = Instant::now();
        for errno in [libc::EPERM, libc::ENOSYS] {
            let dropped = refusing(libc::SYS_pidfd_send_signal, errno, || {
                Holder::begin(Namespaces::NONE, Vec::new()).map(drop).map(|()| true)
            });
            assert_eq!(dropped, Ok(true));
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    }

    #[test]
    fn no_holder_begins_that_would_keep_descriptors_and_write_its_parents_errno() {
        for errno in [libc::EPERM, libc::ENOSYS] {
            let begun = refusing(libc::SYS_close_range, errno, || {
                Holder::begin(Namespaces::NONE, Vec::new()).map(|_| true)
            });
            assert_eq!(begun, Err(errno));
        }
    }

    #[test]
    fn what_could_not_be_made_is_told() {
        // `CLONE_THREAD` and `CLONE_VM` are no flags of a namespace.
        let holder = Holder::begin(Namespaces::impossible(), Vec::new()).unwrap();
        let error = holder.made().unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
    }
}
