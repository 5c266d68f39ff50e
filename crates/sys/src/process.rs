//! Child processes: a plain fork, and a clone into new namespaces. The child runs a closure and exits.
//!
//! Both refuse a process with more than one thread: the child would inherit locks that nobody releases.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};

use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitOptions, waitid};

/// The exit status of a child whose closure panicked.
const PANICKED: i32 = 125;

/// A child process and its pidfd. The kernel does not reuse the pid before the child is waited for.
#[derive(Debug)]
pub struct Child {
    pid: Pid,
    pidfd: OwnedFd,
}

/// How a child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// It exited with this status.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
}

impl Exit {
    /// Returns how a process ended that has this status, or that this signal ended. None if it was only stopped, or goes on.
    #[must_use]
    pub fn of(status: Option<i32>, signal: Option<i32>) -> Option<Self> {
        status.map(Self::Code).or(signal.map(Self::Signal))
    }
}

impl Child {
    /// Returns a child that has not been waited for, so that its pid is still its own. One that cannot be watched is killed: nobody
    /// would know of it.
    pub(crate) fn of(pid: Pid) -> io::Result<Self> {
        match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
            Ok(pidfd) => Ok(Self { pid, pidfd }),
            Err(errno) => {
                let _ = rustix::process::kill_process(pid, Signal::KILL);
                wait_for(pid);
                Err(errno.into())
            }
        }
    }

    /// Returns the child's pid in this process's pid namespace.
    #[must_use]
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Returns the child's pidfd, which is readable once the child has ended.
    #[must_use]
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        use std::os::fd::AsFd;
        self.pidfd.as_fd()
    }

    /// Sends a signal. Does nothing if the child is gone.
    ///
    /// # Errors
    /// When `pidfd_send_signal(2)` fails, except with `ESRCH`.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        match rustix::process::pidfd_send_signal(&self.pidfd, signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Waits for the end of the child and reaps it.
    ///
    /// # Errors
    /// When `waitid(2)` fails.
    pub fn wait(&self) -> io::Result<Exit> {
        loop {
            match self.wait_with(WaitIdOptions::EXITED) {
                Ok(Some(exit)) => return Ok(exit),
                Ok(None) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Reaps the child if it has ended.
    ///
    /// # Errors
    /// When `waitid(2)` fails.
    pub fn try_wait(&self) -> io::Result<Option<Exit>> {
        self.wait_with(WaitIdOptions::EXITED | WaitIdOptions::NOHANG)
    }

    fn wait_with(&self, options: WaitIdOptions) -> io::Result<Option<Exit>> {
        use std::os::fd::AsFd;
        let status = waitid(WaitId::PidFd(self.pidfd.as_fd()), options)?;
        Ok(status.and_then(|status| Exit::of(status.exit_status(), status.terminating_signal())))
    }
}

/// A set of namespaces to make.
#[derive(Clone, Copy, Debug)]
pub struct Namespaces(libc::c_int);

impl Namespaces {
    /// A pid namespace alone.
    pub const PID: Self = Self(libc::CLONE_NEWPID);
    /// A user and a pid namespace, in which a rootless sandbox begins.
    pub const USER_AND_PID: Self = Self(libc::CLONE_NEWUSER | libc::CLONE_NEWPID);
    /// Mounts, network, IPC and host name, which the child unshares itself.
    pub const REST: Self =
        Self(libc::CLONE_NEWNS | libc::CLONE_NEWNET | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS);
    /// Those of [`Self::REST`] that another process can make ahead: all except the mounts.
    pub const AHEAD: Self = Self(libc::CLONE_NEWNET | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS);
    /// Mounts alone: the rest of [`Self::REST`] if [`Self::AHEAD`] was made ahead.
    pub const MOUNTS: Self = Self(libc::CLONE_NEWNS);
    /// Control groups. The group that a process is in when it unshares becomes the root that it sees.
    pub const CGROUP: Self = Self(libc::CLONE_NEWCGROUP);
    /// A user namespace alone.
    pub const USER: Self = Self(libc::CLONE_NEWUSER);
    /// None: a plain fork.
    pub const NONE: Self = Self(0);

    pub(crate) fn bits(self) -> libc::c_int {
        self.0
    }

    /// Whether a network is among them.
    #[must_use]
    pub fn have_a_network(self) -> bool {
        self.0 & libc::CLONE_NEWNET != 0
    }

    #[cfg(test)]
    pub(crate) fn impossible() -> Self {
        Self(libc::CLONE_NEWNET | libc::CLONE_THREAD | libc::CLONE_VM)
    }
}

/// `CLONE_INTO_CGROUP`, linux/sched.h.
const INTO_CGROUP: u64 = 0x2_0000_0000;

/// `struct clone_args` of `clone3(2)`.
#[repr(C)]
#[derive(Default)]
pub(crate) struct CloneArgs {
    pub(crate) flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

impl CloneArgs {
    /// Arguments for a child in new namespaces, and in a cgroup of version 2 if one is given.
    pub(crate) fn new(namespaces: Namespaces, cgroup: Option<BorrowedFd<'_>>) -> Self {
        let mut args = Self { flags: namespaces.0 as u64, ..Self::default() };
        if let Some(cgroup) = cgroup {
            args.flags |= INTO_CGROUP;
            args.cgroup = cgroup.as_raw_fd() as u64;
        }
        args
    }

    /// Whether the child is like its parent in everything: a plain fork.
    fn is_plain(&self) -> bool {
        self.flags == libc::CLONE_PIDFD as u64
    }
}

/// A process that was just forked, before its work has begun. It ends by `_exit`, so that owners among what it inherited are never
/// dropped here: they are its parent's.
#[derive(Debug)]
pub struct Forked(pub(crate) ());

impl Forked {
    /// Closes every descriptor from 3 up except those in `keep`.
    ///
    /// # Errors
    /// When `close_range(2)` fails.
    pub fn close_all_but(self, keep: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut kept: Vec<u32> =
            keep.iter().filter_map(|fd| u32::try_from(fd.as_raw_fd()).ok()).filter(|n| *n > 2).collect();
        kept.sort_unstable();
        let mut from = 3u32;
        for fd in kept.into_iter().chain([u32::MAX]) {
            if fd > from {
                // SAFETY: the owners of these descriptors are the parent's. The work that follows has only what is kept to use.
                let result = unsafe { libc::syscall(libc::SYS_close_range, from, fd - 1, 0) };
                if result != 0 {
                    return Err(io::Error::last_os_error());
                }
            }
            from = fd.saturating_add(1);
        }
        Ok(())
    }
}

/// Starts a child in new namespaces, and in a cgroup of version 2 if one is given. The child runs `child` and exits with its result.
///
/// # Errors
/// When this process has more than one thread, or `clone3(2)` fails.
pub fn clone(
    namespaces: Namespaces,
    cgroup: Option<BorrowedFd<'_>>,
    child: impl FnOnce(Forked) -> i32,
) -> io::Result<Child> {
    refuse_threads()?;
    let mut pidfd: libc::c_int = -1;
    let mut args = CloneArgs::new(namespaces, cgroup);
    args.flags |= libc::CLONE_PIDFD as u64;
    args.pidfd = std::ptr::from_mut(&mut pidfd) as u64;
    args.exit_signal = libc::SIGCHLD as u64;
    // SAFETY: without CLONE_VM the child is a copy with its own memory, so it can use the same stack; there is one thread,
    // so no other one holds a lock of the C library; `pidfd` outlives the call.
    let mut pid = unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of::<CloneArgs>()) };
    // A container's filter looks into the arguments of the older call, and hides the newer one, of which it sees a pointer alone.
    if pid == -1 && args.is_plain() && io::Error::last_os_error().raw_os_error() == Some(libc::ENOSYS) {
        let flags = libc::CLONE_PIDFD | libc::SIGCHLD;
        // SAFETY: as above; without a stack of its own the child uses the same one.
        pid = unsafe { libc::syscall(libc::SYS_clone, flags, 0usize, &raw mut pidfd, 0usize, 0usize) };
    }
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => run_and_exit(|| child(Forked(()))),
        pid => {
            // SAFETY: the kernel has just opened this descriptor for us, close-on-exec, and nobody else owns it.
            let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
            let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidData)?;
            Ok(Child { pid, pidfd })
        }
    }
}

/// Forks this process. The child runs `child` and exits with its result.
///
/// # Errors
/// When this process has more than one thread, or the fork fails.
pub fn fork(child: impl FnOnce(Forked) -> i32) -> io::Result<Child> {
    refuse_threads()?;
    // SAFETY: there is one thread, so the C library's state is consistent in the copy, and its own fork keeps it so.
    let pid = unsafe { libc::fork() };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => run_and_exit(|| child(Forked(()))),
        pid => Child::of(Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidData)?),
    }
}

pub(crate) fn wait_for(child: Pid) {
    while let Err(rustix::io::Errno::INTR) = rustix::process::waitpid(Some(child), WaitOptions::empty()) {}
}

pub(crate) fn run_and_exit(child: impl FnOnce() -> i32) -> ! {
    let status = catch_unwind(AssertUnwindSafe(child)).unwrap_or(PANICKED);
    // SAFETY: ends the process at once, without the exit handlers and buffers that it inherited from the parent.
    unsafe { libc::_exit(status) }
}

/// Refuses a process with more than one thread. `/proc/self/task` has one link for itself, one for its parent and one for each thread.
pub(crate) fn refuse_threads() -> io::Result<()> {
    const THREADS: &str = "/proc/self/task";
    let stat = rustix::fs::stat(THREADS).map_err(io::Error::from);
    let links = stat.map_err(|error| io::Error::new(error.kind(), format!("{THREADS}: {error}")))?.st_nlink;
    if links > 3 {
        return Err(io::Error::other("this process has several threads"));
    }
    Ok(())
}

/// Returns the id of a process's session: 0 if its leader is in none of the PID namespaces that can be seen, for which `rustix` has no
/// value.
///
/// # Errors
/// When `getsid(2)` fails.
pub fn session_of(pid: Option<Pid>) -> io::Result<i32> {
    // SAFETY: the call reads and writes no memory.
    match unsafe { libc::getsid(Pid::as_raw(pid)) } {
        -1 => Err(io::Error::last_os_error()),
        session => Ok(session),
    }
}

/// Returns the calling process's group. `None` if its leader is in none of the PID namespaces that can be seen.
#[must_use]
pub fn own_group() -> Option<Pid> {
    // SAFETY: the call reads and writes no memory, and cannot fail.
    Pid::from_raw(unsafe { libc::getpgrp() })
}

/// Moves the calling process into new namespaces.
///
/// # Errors
/// When `unshare(2)` fails.
pub fn unshare(namespaces: Namespaces) -> io::Result<()> {
    // SAFETY: the flags name namespaces only, so memory and descriptor tables stay as they are.
    match unsafe { libc::unshare(namespaces.0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Has the kernel kill this process when the parent thread ends.
///
/// # Errors
/// When `prctl(2)` fails.
pub fn die_with_parent() -> io::Result<()> {
    Ok(rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seccomp::refusing;

    #[test]
    fn a_plain_child_is_made_where_a_filter_hides_clone3() {
        let made = |namespaces| {
            refusing(libc::SYS_clone3, libc::ENOSYS, || {
                clone(namespaces, None, |_| 7)
                    .and_then(|child| child.wait())
                    .map(|exit| exit == Exit::Code(7))
            })
        };
        assert_eq!(made(Namespaces::NONE), Ok(true));
        assert_eq!(made(Namespaces::USER_AND_PID), Err(libc::ENOSYS), "the older call is refused it as well");
    }

    #[test]
    fn no_child_is_left_that_nobody_knows_of() {
        let left = refusing(libc::SYS_pidfd_open, libc::EMFILE, || {
            let forked = fork(|_| {
                std::thread::sleep(std::time::Duration::from_secs(30));
                0
            });
            let told = forked.is_err_and(|error| error.raw_os_error() == Some(libc::EMFILE));
            let any = rustix::process::wait(WaitOptions::NOHANG);
            Ok(told && any.is_err_and(|errno| errno == rustix::io::Errno::CHILD))
        });
        assert_eq!(left, Ok(true));
    }

    #[test]
    fn a_threaded_process_is_refused() {
        // The test harness runs this in a thread beside its main one.
        let error = fork(|_| 0).unwrap_err();
        assert!(error.to_string().contains("several threads"));
    }
}
