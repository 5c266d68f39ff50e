//! The arguments of this process. Whoever sees a process forked from it can read them: proc_pid_cmdline(5).

use std::ffi::c_char;
use std::io;
use std::os::unix::ffi::OsStrExt;

use crate::process::refuse_threads;

unsafe extern "C" {
    /// glibc's pointer to the first argument.
    static program_invocation_name: *mut c_char;
}

/// Overwrites the arguments with `name`, truncated to the room they have. Arguments that are read afterwards are lost.
///
/// # Errors
/// When this process has more than one thread: another one could be reading them.
pub fn replace(name: &str) -> io::Result<()> {
    refuse_threads()?;
    // The kernel lays them one behind the other, each with its NUL: execve(2).
    let room: usize = std::env::args_os().map(|word| word.as_bytes().len() + 1).sum();
    // SAFETY: the pointer is to the first argument, which the others follow; all of it belongs to this process and may be
    // written. No other thread reads it, for there is none. What is written ends in NUL, as the last argument did.
    unsafe {
        let first = program_invocation_name;
        if first.is_null() || room == 0 {
            return Ok(());
        }
        std::ptr::write_bytes(first, 0, room);
        let length = name.len().min(room - 1);
        std::ptr::copy_nonoverlapping(name.as_ptr().cast(), first, length);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use rustix::process::{Pid, WaitOptions};

    use super::*;
    use crate::process;

    #[test]
    fn a_process_that_was_forked_has_the_name_it_took() {
        let own = || std::fs::read("/proc/self/cmdline").unwrap();
        let before = own();
        assert!(before.len() > 8 && !before.starts_with(b"taken"));
        // Not by `process::fork`, which refuses: a test has threads.
        // SAFETY: the copy has this thread alone, and the C library keeps its allocator whole across its own fork.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            process::run_and_exit(|| {
                let taken = replace("taken").is_ok();
                let now = own();
                i32::from(!(taken && now.starts_with(b"taken\0") && now[5..].iter().all(|octet| *octet == 0)))
            });
        }
        let child = Pid::from_raw(pid).expect("a copy of this process");
        let (_, ended) = rustix::process::waitpid(Some(child), WaitOptions::empty()).unwrap().unwrap();
        assert_eq!(ended.exit_status(), Some(0));
        assert_eq!(own(), before);
    }
}
