//! Whether `/proc` is that of this process's pid namespace, and what it tells of this process's namespaces. One of another pid namespace
//! answers whatever is asked by a number about a stranger, so nothing may be asked there by one.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::process::{Pid, getpid};

/// The link to the number of the process that reads it, proc(5).
const OWN: &str = "/proc/self";
/// The inode of the machine's first time namespace, linux/nsfs.h.
const FIRST_TIME_NAMESPACE: u64 = 0xEFFF_FFFA;
/// How many ticks `/proc` counts in a second on this architecture, sysconf(3).
const TICKS: i64 = 100;
/// One of these ticks.
const NANOSECONDS: i64 = 1_000_000_000 / TICKS;

/// What is said of a `/proc` that is not this namespace's.
pub(crate) const FOREIGN: &str =
    "/proc does not tell of the processes here: it is another pid namespace's, or is not mounted";

/// Whether `/proc` numbers processes as this process does. A copy of it in another namespace has its answer.
pub(crate) fn are_of_this_namespace() -> bool {
    static ANSWER: OnceLock<bool> = OnceLock::new();
    *ANSWER.get_or_init(|| names(std::fs::read_link(OWN), getpid()))
}

fn names(link: io::Result<PathBuf>, process: Pid) -> bool {
    link.is_ok_and(|link| link == Path::new(&process.as_raw_pid().to_string()))
}

/// Returns the inode of this process's pid namespace, pid_namespaces(7).
pub(crate) fn pid_namespace() -> Option<u32> {
    static INODE: OnceLock<Option<u32>> = OnceLock::new();
    *INODE.get_or_init(|| rustix::fs::stat("/proc/self/ns/pid").ok()?.st_ino.try_into().ok())
}

/// Whether what this process starts belongs to another pid namespace than it does itself, in which the kernel makes none: unshare(2).
pub(crate) fn children_are_elsewhere() -> bool {
    let inode = |name| rustix::fs::stat(Path::new("/proc/self/ns").join(name)).ok().map(|it| it.st_ino);
    inode("pid").is_some_and(|own| inode("pid_for_children") != Some(own))
}

/// Returns by how many ticks this process's time namespace moves the start times that it reads, time_namespaces(7).
pub(crate) fn shift() -> i64 {
    static SHIFT: OnceLock<i64> = OnceLock::new();
    *SHIFT.get_or_init(|| {
        // A start opens no file for it where nearly every process is.
        if rustix::fs::stat("/proc/self/ns/time").is_ok_and(|it| it.st_ino == FIRST_TIME_NAMESPACE) {
            return 0;
        }
        sys::kernel_file::read("/proc/self/timens_offsets").ok().and_then(|told| shift_in(&told)).unwrap_or(0)
    })
}

/// Reads the line `boottime`: seconds and nanoseconds.
fn shift_in(offsets: &str) -> Option<i64> {
    let mut line = offsets.lines().find_map(|line| line.strip_prefix("boottime"))?.split_whitespace();
    let mut number = || line.next()?.parse::<i64>().ok();
    let (seconds, nanoseconds) = (number()?, number()?);
    seconds.checked_mul(TICKS)?.checked_add(nanoseconds / NANOSECONDS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_that_has_this_processs_own_number_is_asked() {
        let process = Pid::from_raw(17).unwrap();
        for (link, is_own) in [("17", true), ("1", false), ("170", false), ("", false)] {
            assert_eq!(names(Ok(link.into()), process), is_own, "{link}");
        }
        assert!(!names(Err(io::ErrorKind::NotFound.into()), process));
        assert!(are_of_this_namespace() && !children_are_elsewhere());
    }

    #[test]
    fn what_a_time_namespace_adds_is_known() {
        let told = |offset: &str| shift_in(&format!("monotonic           7         0\nboottime{offset}\n"));
        assert_eq!(told("       100000         0"), Some(10_000_000));
        assert_eq!(told("       -2 500000000"), Some(-150));
        assert_eq!((told(""), told(" x 0"), shift_in("")), (None, None, None));
    }
}
