//! Puts a filter on the calling thread. Nothing takes it off again; children and programs it executes inherit
//! it.
//!
//! It allocates nothing and takes no lock, so it may run between `fork` and `execve`. It must be the last
//! thing a sandbox's own code does: what comes after it is judged by it.

use std::io;
use std::ptr;

use super::Filter;
use crate::kernel_file;

/// Sets `no_new_privs` and installs the filter on the calling thread, and on what it starts from now on.
///
/// Other threads of the process are left as they are: call it while there is only one.
///
/// `SECCOMP_FILTER_FLAG_SPEC_ALLOW` is not set. Since Linux 5.16 a filter no longer turns on the costly
/// speculation mitigations by itself, so the flag saves nothing there; where it still matters, an older
/// kernel or an administrator's boot option asked for them, and code we do not trust is what they were asked
/// for.
///
/// # Errors
///
/// The kernel's own: `ENOMEM` when the filters of the thread have become too many, `EINVAL` or `ENOSYS` when
/// the kernel has no seccomp filters.
pub fn install(filter: &Filter) -> io::Result<()> {
    let program = filter.program();
    let program = libc::sock_fprog {
        len: program.len() as u16, // at most `CAPACITY`, which fits
        filter: program.as_ptr().cast_mut().cast(),
    };
    // The kernel wants whole registers, and an argument of a variadic call is only as wide as its type.
    let (yes, unused): (libc::c_ulong, libc::c_ulong) = (1, 0);
    // SAFETY: this option takes no pointers, and changes nothing but a flag of the calling thread.
    if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, yes, unused, unused, unused) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `program` outlives the call and points to `len` instructions, whose layout is that of
    // `sock_filter`; the kernel copies them and writes nothing.
    let result = unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, ptr::from_ref(&program))
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Whether a filter judges the system calls of this process, ours or another's. Read from `/proc`: a filter may forbid the call that asks.
#[must_use]
pub fn is_installed() -> bool {
    kernel_file::read("/proc/self/status").is_ok_and(|status| tells_of_a_filter(&status))
}

/// Whether a process's status says `SECCOMP_MODE_FILTER`: proc_pid_status(5).
fn tells_of_a_filter(status: &str) -> bool {
    status.lines().filter_map(|line| line.strip_prefix("Seccomp:")).any(|mode| mode.trim() == "2")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_told_by_a_status() {
        let status = |mode: &str| format!("NoNewPrivs:\t1\nSeccomp:\t{mode}\nSeccomp_filters:\t2\n");
        assert!(tells_of_a_filter(&status("2")));
        assert!(!tells_of_a_filter(&status("0")) && !tells_of_a_filter(""));
    }
}
