//! A process behind a run, for what neither its start nor its end waits for. It has let go of everything that is the run's but the
//! lines it is given: whoever reads what the command writes would wait for this process as well.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;

use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};
use sys::process::{self, Namespaces};
use sys::{descriptor, privilege};

/// The machine's first process namespace, as its link says: `PID_NS_INIT_INO` of linux/nsfs.h.
const FIRST: &str = "pid:[4026531836]";

/// Starts one that lives this life, from a process that has a single thread still.
pub(super) fn start(lines: &[BorrowedFd<'_>], life: impl FnOnce() -> Option<()>) -> io::Result<()> {
    process::clone(Namespaces::NONE, None, || i32::from(shut_off(lines).is_err() || life().is_none()))
        .map(drop)
}

fn shut_off(lines: &[BorrowedFd<'_>]) -> io::Result<()> {
    privilege::undumpable()?;
    descriptor::close_all_but(lines)?;
    let nothing = OpenOptions::new().read(true).write(true).open("/dev/null")?;
    dup2_stdin(&nothing)?;
    dup2_stdout(&nothing)?;
    dup2_stderr(&nothing)?;
    Ok(rustix::process::chdir("/")?)
}

/// Whether one outlives the run. In somebody's container it ends with whatever was started there first, and what it had to do is
/// not done.
pub(super) fn lasts() -> bool {
    std::fs::read_link("/proc/self/ns/pid").is_ok_and(|namespace| namespace == Path::new(FIRST))
}
