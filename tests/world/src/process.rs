//! The only unsafe lines of this crate: fork, unshare, signal masks and the steps between fork and exec. Verbs only; their use is decided
//! elsewhere. Nothing here may be called once a second thread exists.
#![expect(
    unsafe_code,
    reason = "fork, unshare and signal masks have no safe form; each block says why it is sound"
)]

use std::io;
use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr;

use rustix::process::Pid;

/// The two sides of a fork.
pub(crate) enum Forked {
    Child,
    Parent(Pid),
}

/// Copies this process, which must have a single thread.
pub(crate) fn fork() -> io::Result<Forked> {
    // SAFETY: the program starts no thread before its last fork (the async runtime is built in the servers' process,
    // which forks no more by this function), so the child inherits no lock held by a thread that is gone.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        pid => Ok(Pid::from_raw(pid).map_or(Forked::Child, Forked::Parent)),
    }
}

/// Moves this process (`flags`: `CLONE_NEW*`) into new namespaces.
pub(crate) fn unshare(flags: libc::c_int) -> io::Result<()> {
    // SAFETY: only `CLONE_NEW*` flags are passed, none of which changes memory or descriptors of this process.
    match unsafe { libc::unshare(flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Kills everything else in the PID namespace whose first process this is; anywhere else it does nothing.
pub(crate) fn end_all_others() {
    if std::process::id() == 1 {
        // SAFETY: the call touches no memory; -1 spares the caller, and means this namespace only (pid_namespaces(7)).
        unsafe { libc::kill(-1, libc::SIGKILL) };
    }
}

fn set_of(signals: &[libc::c_int]) -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: `sigemptyset` initialises the whole set it is given; `sigaddset` then works on an initialised set.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in signals {
            libc::sigaddset(set.as_mut_ptr(), *signal);
        }
        set.assume_init()
    }
}

/// Sets the blocked signals, which this process receives only when it asks for them; an empty set receives all.
pub(crate) fn block(signals: &[libc::c_int]) {
    let set = set_of(signals);
    // SAFETY: both pointers are valid for the call, null being allowed for the old mask.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const set, ptr::null_mut()) };
}

/// Waits until one of the blocked `signals` arrives and takes it.
pub(crate) fn next_signal(signals: &[libc::c_int]) -> libc::c_int {
    let set = set_of(signals);
    loop {
        // SAFETY: the set is initialised, and null says that no details are wanted.
        let signal = unsafe { libc::sigwaitinfo(&raw const set, ptr::null_mut()) };
        if signal > 0 {
            return signal;
        }
    }
}

/// Gives the command a process group, in the foreground of the terminal if its standard input is one. A group from outside the PID
/// namespace would read as 0 inside, which breaks job control. The command does not outlive this process.
pub(crate) fn own_group(command: &mut Command) {
    // SAFETY: the closure runs between fork and exec and calls only async-signal-safe system calls.
    unsafe {
        command.pre_exec(|| {
            if libc::setpgid(0, 0) != 0 || libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                return Err(io::Error::last_os_error());
            }
            // A background process that takes the terminal gets SIGTTOU; with it blocked, the call succeeds.
            let taking = set_of(&[libc::SIGTTOU]);
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const taking, ptr::null_mut());
            if libc::isatty(0) == 1 {
                libc::tcsetpgrp(0, libc::getpid());
            }
            // The command must not inherit the signals that the world blocks.
            let none = set_of(&[]);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const none, ptr::null_mut());
            Ok(())
        });
    }
}
