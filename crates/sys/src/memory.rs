//! Memory that was freed and is still this process's, and memory that is a file's.

use std::fs::File;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags};

/// Gives back what the C library keeps of freed memory for later, wherever in the heap it lies.
pub fn give_back() {
    // SAFETY: takes a number, and touches nothing but memory that nobody owns.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
}

/// The first eight octets of a file, seen as they are without asking the kernel.
#[derive(Debug)]
pub struct Watched {
    octets: NonNull<AtomicU64>,
    /// A file that is cut shorter takes the memory away: nobody may do that who is not trusted with this process.
    _file: File,
}

impl Watched {
    /// Watches a file that has them.
    ///
    /// # Errors
    /// When it is shorter, or cannot be mapped.
    pub fn over(file: File) -> io::Result<Self> {
        let size = size_of::<AtomicU64>();
        if file.metadata()?.len() < size as u64 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let mapped = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), size, ProtFlags::READ, MapFlags::SHARED, &file, 0)
        }?;
        let octets =
            NonNull::new(mapped.cast()).ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
        Ok(Self { octets, _file: file })
    }

    /// The eight octets as they are now.
    #[must_use]
    pub fn now(&self) -> u64 {
        // SAFETY: the mapping lives as long as this value, begins with a page and so is aligned; others may write what it
        // shows, which is why it is read as one atomic number.
        unsafe { self.octets.as_ref() }.load(Ordering::Relaxed)
    }
}

// SAFETY: a mapping belongs to the process and to none of its threads, and is only read, as one atomic number.
unsafe impl Send for Watched {}

impl Drop for Watched {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this size, and nothing borrows from it any more.
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
