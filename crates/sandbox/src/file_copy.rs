//! What a copy of a file keeps beside its octets: holes and times.

use std::fs::{File, Metadata};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;

use rustix::fs::{SeekFrom as Offset, Timespec, Timestamps};
use rustix::io::Errno;

/// The most octets that are copied before an end can be asked for.
const AT_ONCE: u64 = 8 << 20;

/// Copies a file's content and keeps its holes: otherwise a sparse file of a few octets could fill the disk.
pub(crate) fn copy_content(mut from: &File, mut to: &File, is_ended: &dyn Fn() -> bool) -> io::Result<()> {
    let length = from.metadata()?.len();
    if length == 0 {
        return io::copy(&mut from, &mut to).map(drop); // a file of the kernel's does not tell its length
    }
    let mut at = 0;
    while at < length {
        if is_ended() {
            return Err(io::ErrorKind::Interrupted.into());
        }
        at = match rustix::fs::seek(from, Offset::Data(at)) {
            Ok(start) => start,
            // Only a hole is left, or it was truncated meanwhile.
            Err(Errno::NXIO) => return to.set_len(from.metadata()?.len().min(length)),
            Err(errno) => return Err(errno.into()),
        };
        let end = rustix::fs::seek(from, Offset::Hole(at))?;
        from.seek(SeekFrom::Start(at))?;
        to.seek(SeekFrom::Start(at))?;
        let copied = io::copy(&mut from.take((end - at).min(AT_ONCE)), &mut to)?;
        if copied == 0 {
            return to.set_len(at); // it is shorter than it said, or was truncated meanwhile
        }
        at += copied;
    }
    to.set_len(length)
}

/// Gives a copy, when nothing is written in it any more, the times of what it is a copy of: `make` and git go by them. A file system may
/// keep none.
pub(crate) fn keep_times(copy: impl AsFd, of: &Metadata) {
    let last_access = Timespec { tv_sec: of.atime(), tv_nsec: of.atime_nsec() };
    let last_modification = Timespec { tv_sec: of.mtime(), tv_nsec: of.mtime_nsec() };
    let _ = rustix::fs::futimens(copy, &Timestamps { last_access, last_modification });
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn holes_stay_holes_and_files_of_the_kernel_are_whole() {
        let (sparse, copy) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        sparse.set_len(1 << 30).unwrap();
        sparse.write_all_at(b"x", 1 << 29).unwrap();
        copy_content(&sparse, &copy, &|| false).unwrap();
        let made = copy.metadata().unwrap();
        assert!(made.len() == 1 << 30 && made.blocks() < 1 << 11, "{made:?}");
        let mut there = [0];
        copy.read_exact_at(&mut there, 1 << 29).unwrap();
        assert_eq!(&there, b"x");
        // One that is truncated meanwhile has no zeros in place of what it had.
        let (copy, once) = (tempfile::tempfile().unwrap(), std::cell::Cell::new(0));
        sparse.write_all_at(b"begin", 0).unwrap();
        let truncates = || {
            if once.replace(1) == 1 {
                sparse.set_len(3).unwrap();
            }
            false
        };
        copy_content(&sparse, &copy, &truncates).unwrap();
        assert_eq!(copy.metadata().unwrap().len(), 3);
        // One says that it has nothing, one that it has a page.
        for path in ["/proc/version", "/sys/kernel/mm/transparent_hugepage/enabled"] {
            let Ok(file) = File::open(path) else { continue };
            let copy = tempfile::tempfile().unwrap();
            copy_content(&file, &copy, &|| false).unwrap();
            let length = usize::try_from(copy.metadata().unwrap().len()).unwrap();
            assert!(length > 0 && length == std::fs::read(path).unwrap().len(), "{path}: {length}");
        }
    }
}
