//! Directory change notification by dnotify, fcntl(2). Inotify could do it as well, but closing an inotify descriptor waits for all
//! processors, some 15 ms at the end of each run.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use crate::signal::Signals;

/// `DN_CREATE`, `DN_DELETE` and `DN_RENAME`, of `<fcntl.h>`.
const NAMES: libc::c_uint = 0x4 | 0x8 | 0x10;
/// `DN_MODIFY`, `<fcntl.h>`: a file of the directory was written.
const WRITES: libc::c_uint = 0x2;
/// `DN_MULTISHOT`: notify again after the first time.
const AGAIN: libc::c_uint = 0x8000_0000;

/// `F_SETOWN_EX` and `F_OWNER_TID`, `<fcntl.h>`.
const SET_OWNER: libc::c_int = 15;
const THREAD: libc::c_int = 0;

/// `struct f_owner_ex`.
#[repr(C)]
struct Owner {
    kind: libc::c_int,
    id: libc::pid_t,
}

/// Returns a descriptor that becomes readable, to this thread, when a directory that it watches has changed.
///
/// # Errors
/// When `sigprocmask(2)` or `signalfd(2)` fails.
pub fn changes() -> io::Result<Signals> {
    Signals::block(&[libc::SIGIO])
}

/// Watches an open directory while that descriptor is open. The kernel signals this thread alone, which has blocked the signal: in a
/// thread that has not, the signal would end the process.
///
/// # Errors
/// When `fcntl(2)` fails: with `EINVAL` if the kernel has no dnotify, or an administrator has switched it off.
pub fn watch(directory: BorrowedFd<'_>, _heard_by: &Signals) -> io::Result<()> {
    ask(directory, NAMES)
}

/// A watch for writes to the files of a directory. It becomes readable to the thread that made it.
#[derive(Debug)]
pub struct Writes {
    heard: Signals,
    /// Open while it is watched.
    _directory: OwnedFd,
}

impl Writes {
    /// Watches a directory.
    ///
    /// # Errors
    /// When the directory cannot be opened, or on the conditions of [`watch`].
    pub fn within(directory: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(directory, flags, Mode::empty())?;
        let heard = changes()?;
        ask(directory.as_fd(), WRITES)?;
        Ok(Self { heard, _directory: directory })
    }

    /// Clears the notifications so far. A file that is read afterwards is no older than they are.
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
    // SAFETY: the descriptor is open, and the argument is a record of the layout that the call expects, read before it returns.
    let owned = unsafe { libc::fcntl(directory.as_raw_fd(), SET_OWNER, &raw const owner) };
    // SAFETY: the descriptor is open, and the argument is a number.
    if owned != 0 || unsafe { libc::fcntl(directory.as_raw_fd(), libc::F_NOTIFY, what | AGAIN) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
