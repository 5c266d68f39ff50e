//! Memory that was freed and is still this process's.

/// Gives back what the C library keeps of freed memory for later, wherever in the heap it lies.
pub fn give_back() {
    // SAFETY: takes a number, and touches nothing but memory that nobody owns.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
}
