//! Starts a background process, for work that neither the start nor the end of a run waits for. It closes all descriptors of the
//! run but those it is given: a reader of the command's output would wait for this process as well.

use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;

use sys::privilege;
use sys::process::{self, Forked, Namespaces};

use crate::null_streams;

/// The machine's initial PID namespace, as its link reads: `PID_NS_INIT_INO` of linux/nsfs.h.
const FIRST: &str = "pid:[4026531836]";

/// Starts a process that runs `life`, from one with a single thread.
pub(super) fn start(lines: &[BorrowedFd<'_>], life: impl FnOnce() -> Option<()>) -> io::Result<()> {
    process::clone(Namespaces::NONE, None, |forked| {
        i32::from(shut_off(forked, lines).is_err() || life().is_none())
    })
    .map(drop)
}

/// Closes everything but `lines`, and leaves the run's directory.
fn shut_off(forked: Forked, lines: &[BorrowedFd<'_>]) -> io::Result<()> {
    privilege::undumpable()?;
    forked.close_all_but(lines)?;
    null_streams::take()?;
    Ok(rustix::process::chdir("/")?)
}

/// Whether a background process outlives the run. In a container it would be killed with the container's first process, its work
/// not done.
pub(super) fn lasts() -> bool {
    std::fs::read_link("/proc/self/ns/pid").is_ok_and(|namespace| namespace == Path::new(FIRST))
}
