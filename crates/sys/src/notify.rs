//! Being told that something was made, removed or renamed in a directory, or written: by dnotify, fcntl(2). Inotify would do the same and
//! more, but to let go of it waits for all processors, some 15 ms at the end of each run.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use crate::signal::Signals;

/// `DN_CREATE`, `DN_DELETE` and `DN_RENAME`, of `<fcntl.h>`.
const NAMES: libc::c_uint = 0x4 | 0x8 | 0x10;
/// `DN_MODIFY`, of the same: a file of the directory was written.
const WRITES: libc::c_uint = 0x2;
/// `DN_MULTISHOT`: again after the first time.
const AGAIN: libc::c_uint = 0x8000_0000;

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
    ask(directory, NAMES)
}

/// What becomes readable, to the thread that made it, when a file of a directory was written.
#[derive(Debug)]
pub struct Writes {
    heard: Signals,
    /// Open for as long as it is watched.
    _directory: OwnedFd,
}

impl Writes {
    /// Watches a directory.
    ///
    /// # Errors
    /// When it cannot be opened, or as [`watch`].
    pub fn within(directory: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(directory, flags, Mode::empty())?;
        let heard = changes()?;
        ask(directory.as_fd(), WRITES)?;
        Ok(Self { heard, _directory: directory })
    }

    /// Forgets what was heard so far. What is looked at afterwards is no older than that.
    pub fn forget(&self) {
        while let Ok(Some(_)) = self.heard.next() {}
    }
}

impl AsFd for Writes {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.heard.as_fd()
    }
}

fn ask(directory: BorrowedFd<'_>, what: libc::c_uint) -> io::Result<()> {
    let owner = Owner { kind: THREAD, id: rustix::thread::gettid().as_raw_nonzero().get() };
    // SAFETY: the descriptor is open, and the argument is a record of the form that is asked for, read before the call returns.
    let owned = unsafe { libc::fcntl(directory.as_raw_fd(), SET_OWNER, &raw const owner) };
    // SAFETY: the descriptor is open, and the argument is a number.
    if owned != 0 || unsafe { libc::fcntl(directory.as_raw_fd(), libc::F_NOTIFY, what | AGAIN) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
