//! Returning freed heap memory to the kernel.

/// Returns freed memory that the C library keeps to the kernel, from anywhere in the heap.
pub fn give_back() {
    // SAFETY: the call takes a number, and touches only memory that nobody owns.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
}
