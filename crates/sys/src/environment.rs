//! The environment block that the kernel gave this process. Every process forked from it has a copy.

use std::ffi::CStr;
use std::io;

use crate::process::refuse_threads;

/// Overwrites the value of a variable in place, so that processes forked from now on do not have it. The variable stays set, and
/// is empty. Does nothing if the variable is not set.
///
/// # Errors
/// When the variable is set and this process has more than one thread: another one could be reading it.
pub fn wipe(name: &CStr) -> io::Result<()> {
    // SAFETY: `name` ends in NUL, and nothing in this program changes the environment while it has several threads.
    let value = unsafe { libc::getenv(name.as_ptr()) };
    if value.is_null() {
        return Ok(());
    }
    refuse_threads()?;
    // SAFETY: `getenv` returned a pointer to the value inside the environment block. The value ends in NUL, and every octet
    // before it belongs to this process and may be written. No other thread reads it, for there is none.
    unsafe {
        let length = libc::strlen(value);
        std::ptr::write_bytes(value, 0, length);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use rustix::process::{Pid, WaitOptions};

    use super::*;
    use crate::process::run_and_exit;

    #[test]
    fn a_wiped_variable_is_empty_in_what_is_started_from_here() {
        // Not by `process::fork`, which refuses: a test has threads.
        // SAFETY: the copy has this thread alone, and the C library keeps its allocator whole across its own fork.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            run_and_exit(|| {
                let name = c"LOCKGATE_SYS_WIPE_TEST";
                // SAFETY: this process has one thread.
                unsafe { libc::setenv(name.as_ptr(), c"secret".as_ptr(), 1) };
                let value = || std::env::var("LOCKGATE_SYS_WIPE_TEST");
                let was_set = value().as_deref() == Ok("secret");
                let wiped = wipe(name).is_ok() && value().as_deref() == Ok("");
                i32::from(!(was_set && wiped))
            });
        }
        let child = Pid::from_raw(pid).expect("a copy of this process");
        let (_, ended) = rustix::process::waitpid(Some(child), WaitOptions::empty()).unwrap().unwrap();
        assert_eq!(ended.exit_status(), Some(0));
    }
}
