//! The environment block that this process was started with, which every process forked from it has a copy of.

use std::ffi::CStr;

/// Overwrites the value of a variable where it stands, so that processes made from here on do not have it. The variable
/// stays, and is empty. For a process that has one thread.
pub fn wipe(name: &CStr) {
    // SAFETY: `getenv` gives a pointer to the value inside the environment block, or null; the value ends in NUL, and every
    // octet before it belongs to this process and may be written. No other thread reads it: there is none.
    unsafe {
        let value = libc::getenv(name.as_ptr());
        if !value.is_null() {
            let length = libc::strlen(value);
            std::ptr::write_bytes(value, 0, length);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wiped_variable_is_empty_in_what_is_started_from_here() {
        // The tests of a crate may share a process: this variable is this test's own.
        let name = c"LOCKGATE_SYS_WIPE_TEST";
        // SAFETY: no other thread of these tests writes or reads the environment meanwhile.
        unsafe { libc::setenv(name.as_ptr(), c"secret".as_ptr(), 1) };
        assert_eq!(std::env::var("LOCKGATE_SYS_WIPE_TEST").as_deref(), Ok("secret"));
        wipe(name);
        assert_eq!(std::env::var("LOCKGATE_SYS_WIPE_TEST").as_deref(), Ok(""));
    }
}
