//! Returning freed heap memory to the kernel, and reading a file through a memory mapping.

use std::fs::File;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags};

/// Returns freed memory that the C library keeps to the kernel, from anywhere in the heap.
pub fn give_back() {
    // SAFETY: the call takes a number, and touches only memory that nobody owns.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
}

/// The first eight octets of a file, mapped so that reading them takes no system call.
#[derive(Debug)]
pub struct Watched {
    octets: NonNull<AtomicU64>,
    /// Truncating the file invalidates the mapping (`SIGBUS`), so only processes that this one trusts may have it.
    _file: File,
}

impl Watched {
    /// Maps the first eight octets of a file.
    ///
    /// # Errors
    /// When the file is shorter, or cannot be mapped.
    pub fn over(file: File) -> io::Result<Self> {
        let size = size_of::<AtomicU64>();
        if file.metadata()?.len() < size as u64 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        // SAFETY: the mapping is new, at an address of the kernel's choice.
        let mapped = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), size, ProtFlags::READ, MapFlags::SHARED, &file, 0)
        }?;
        let octets =
            NonNull::new(mapped.cast()).ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
        Ok(Self { octets, _file: file })
    }

    /// Returns the current eight octets.
    #[must_use]
    pub fn now(&self) -> u64 {
        // SAFETY: the mapping lives as long as this value, and begins at a page, so it is aligned. Other processes may write to
        // it, so it is read as one atomic number.
        unsafe { self.octets.as_ref() }.load(Ordering::Relaxed)
    }
}

// SAFETY: a mapping belongs to the process and not to a thread, and is only read, as one atomic number.
unsafe impl Send for Watched {}

impl Drop for Watched {
    fn drop(&mut self) {
        // SAFETY: `over` mapped it with this size, and nothing borrows from it any more.
        let _ = unsafe { rustix::mm::munmap(self.octets.as_ptr().cast(), size_of::<AtomicU64>()) };
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    fn memory() -> File {
        rustix::fs::memfd_create("watched", rustix::fs::MemfdFlags::CLOEXEC).unwrap().into()
    }

    #[test]
    fn what_somebody_writes_is_seen() {
        let file = memory();
        file.write_all_at(&[7; 8], 0).unwrap();
        let watched = Watched::over(file.try_clone().unwrap()).unwrap();
        assert_eq!(watched.now().to_ne_bytes(), [7; 8]);
        file.write_all_at(&[1, 2, 3, 4, 5, 6, 7, 8], 0).unwrap();
        assert_eq!(watched.now().to_ne_bytes(), [1, 2, 3, 4, 5, 6, 7, 8]);
    }

    #[test]
    fn a_file_that_is_too_short_is_refused() {
        let file = memory();
        file.write_all_at(&[7; 7], 0).unwrap();
        assert_eq!(Watched::over(file).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
