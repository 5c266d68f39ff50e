//! Being told that something was made, removed or renamed in a directory: by dnotify, fcntl(2). Inotify would do the same and more, but
//! to let go of it waits for all processors, some 15 ms at the end of each run.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::signal::Signals;

/// `DN_CREATE`, `DN_DELETE`, `DN_RENAME` and `DN_MULTISHOT`, of `<fcntl.h>`: what is asked for, and again after the first time.
const WHAT: libc::c_uint = 0x4 | 0x8 | 0x10 | 0x8000_0000;

/// `F_SETOWN_EX` and `F_OWNER_TID`, of the same.
const SET_OWNER: libc::c_int = 15;
const THREAD: libc::c_int = 0;

/// `struct f_owner_ex`.
#[repr(C)]
struct Owner {
    kind: libc::c_int,
    id: libc::pid_t,
}

/// What becomes readable, to this thread, when a directory that it watches has changed.
///
/// # Errors
/// Whatever `sigprocmask(2)` or `signalfd(2)` gives.
pub fn changes() -> io::Result<Signals> {
    Signals::block(&[libc::SIGIO])
}

/// Watches an open directory, for as long as that descriptor is open. This thread, which has blocked the signal, is told and no other:
/// one that had not would end the process.
///
/// # Errors
/// Whatever `fcntl(2)` gives: `EINVAL` where the kernel has no such watch, or an administrator has switched it off.
pub fn watch(directory: BorrowedFd<'_>, _heard_by: &Signals) -> io::Result<()> {
    let owner = Owner { kind: THREAD, id: rustix::thread::gettid().as_raw_nonzero().get() };
    // SAFETY: the descriptor is open, and the argument is a record of the form that is asked for, read before the call returns.
    let owned = unsafe { libc::fcntl(directory.as_raw_fd(), SET_OWNER, &raw const owner) };
    // SAFETY: the descriptor is open, and the argument is a number.
    if owned != 0 || unsafe { libc::fcntl(directory.as_raw_fd(), libc::F_NOTIFY, WHAT) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
