//! The environment block that the kernel gave this process. Every process forked from it has a copy.

use std::ffi::{CStr, c_char};
use std::io;

use crate::process::refuse_threads;

/// Overwrites the values of a variable in place, so that processes forked from now on do not have them: execve(2) takes several entries of
/// one name. The variable stays set, and is empty. Does nothing if the variable is not set.
///
/// # Errors
/// When the variable is set and this process has more than one thread: another one could be reading it.
pub fn wipe(name: &CStr) -> io::Result<()> {
    // SAFETY: `environ` is the C library's list of entries, and nothing in this program changes it while it has several threads.
    let values = unsafe { values_of(name, libc::environ) };
    if values.is_empty() {
        return Ok(());
    }
    refuse_threads()?;
    for value in values {
        // SAFETY: the value lies inside the environment block and ends in NUL, and every octet before it belongs to this process and may
        // be written. No other thread reads it, for there is none.
        unsafe {
            let length = libc::strlen(value);
            std::ptr::write_bytes(value, 0, length);
        }
    }
    Ok(())
}

/// Returns where the values of a variable are, in every entry of its name.
///
/// # Safety
/// `entries` must be null, or lead to pointers to entries that end in NUL, the last of them null.
unsafe fn values_of(name: &CStr, mut entries: *mut *mut c_char) -> Vec<*mut c_char> {
    let mut values = Vec::new();
    // SAFETY: the list goes on up to its null pointer.
    while let Some(entry) = unsafe { entries.as_ref() }.filter(|entry| !entry.is_null()) {
        // SAFETY: each entry goes on up to its NUL.
        let text = unsafe { CStr::from_ptr(*entry) }.to_bytes();
        if text.strip_prefix(name.to_bytes()).is_some_and(|rest| rest.starts_with(b"=")) {
            // SAFETY: the entry has the name and the sign.
            values.push(unsafe { entry.add(name.count_bytes() + 1) });
        }
        // SAFETY: as above.
        entries = unsafe { entries.add(1) };
    }
    values
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

    #[test]
    fn every_entry_of_the_name_is_wiped_and_no_other() {
        let made = [c"OTHER=a", c"NAME=first", c"NAME_TOO=b", c"NAME", c"NAME=", c"NAME=second"];
        let mut owned = made.map(|entry| entry.to_owned().into_bytes_with_nul());
        // SAFETY: as above.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            run_and_exit(|| {
                let mut entries: Vec<_> = owned.iter_mut().map(|entry| entry.as_mut_ptr().cast()).collect();
                entries.push(std::ptr::null_mut());
                // SAFETY: this process has one thread, and the entries live until it ends.
                unsafe { libc::environ = entries.as_mut_ptr() };
                let is_done = wipe(c"NAME").is_ok() && wipe(c"NONE").is_ok();
                let left = owned.iter().map(|entry| CStr::from_bytes_until_nul(entry).unwrap_or_default());
                let is_right = left.eq([c"OTHER=a", c"NAME=", c"NAME_TOO=b", c"NAME", c"NAME=", c"NAME="]);
                let none_stays =
                    owned.iter().all(|entry| !entry.ends_with(b"t\0") && !entry.ends_with(b"d\0"));
                i32::from(!(is_done && is_right && none_stays))
            });
        }
        let child = Pid::from_raw(pid).expect("a copy of this process");
        let (_, ended) = rustix::process::waitpid(Some(child), WaitOptions::empty()).unwrap().unwrap();
        assert_eq!(ended.exit_status(), Some(0));
    }
}
