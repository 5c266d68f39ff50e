//! What a copy of a file keeps beside its octets: holes and times.

use std::fs::{File, Metadata};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;

use rustix::fs::{SeekFrom as Offset, Timespec, Timestamps};
use rustix::io::Errno;

/// The most octets that are copied before an end can be asked for.
const AT_ONCE: u64 = 8 << 20;

/// Copies a file's content into an empty one, both just opened, and keeps its holes: otherwise a sparse file of a few octets could fill the
/// disk.
pub(crate) fn copy_content(
    mut from: &File,
    of: &Metadata,
    mut to: &File,
    is_ended: &dyn Fn() -> bool,
) -> io::Result<()> {
    let length = of.len();
    if length == 0 {
        return io::copy(&mut from, &mut to).map(drop); // a file of the kernel's does not tell its length
    }
    let may_have_holes = of.blocks().saturating_mul(512) < length; // stat(2)
    let mut at = 0;
    while at < length {
        if is_ended() {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let mut end = length;
        if may_have_holes {
            at = match rustix::fs::seek(from, Offset::Data(at)) {
                Ok(start) => start,
                // Only a hole is left, or it was truncated meanwhile.
                Err(Errno::NXIO) => return to.set_len(from.metadata()?.len().min(length)),
                Err(errno) => return Err(errno.into()),
            };
            end = rustix::fs::seek(from, Offset::Hole(at))?;
            from.seek(SeekFrom::Start(at))?;
            to.seek(SeekFrom::Start(at))?;
        }
        let copied = io::copy(&mut from.take((end - at).min(AT_ONCE)), &mut to)?;
        if copied == 0 {
            return to.set_len(at); // it is shorter than it said, or was truncated meanwhile
        }
        at += copied;
    }
    if at == length { Ok(()) } else { to.set_len(length) } // it has become longer meanwhile
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
    fn a_file_without_holes_is_copied_without_a_seek() {
        let whole = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(whole.path(), [b'x'; 8192]).unwrap();
        let whole = File::open(whole.path()).unwrap();
        let (mut there, pipe) = io::pipe().unwrap(); // which has no places to seek
        let pipe = File::from(std::os::fd::OwnedFd::from(pipe));
        copy_content(&whole, &whole.metadata().unwrap(), &pipe, &|| false).unwrap();
        drop(pipe);
        let mut copied = Vec::new();
        there.read_to_end(&mut copied).unwrap();
        assert_eq!(copied, [b'x'; 8192]);
    }

    #[test]
    fn holes_stay_holes_and_files_of_the_kernel_are_whole() {
        let (sparse, copy) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        sparse.set_len(1 << 30).unwrap();
        sparse.write_all_at(b"x", 1 << 29).unwrap();
        copy_content(&sparse, &sparse.metadata().unwrap(), &copy, &|| false).unwrap();
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
        copy_content(&sparse, &sparse.metadata().unwrap(), &copy, &truncates).unwrap();
        assert_eq!(copy.metadata().unwrap().len(), 3);
        // One says that it has nothing, one that it has a page.
        for path in ["/proc/version", "/sys/kernel/mm/transparent_hugepage/enabled"] {
            let Ok(file) = File::open(path) else { continue };
            let copy = tempfile::tempfile().unwrap();
            copy_content(&file, &file.metadata().unwrap(), &copy, &|| false).unwrap();
            let length = usize::try_from(copy.metadata().unwrap().len()).unwrap();
            assert!(length > 0 && length == std::fs::read(path).unwrap().len(), "{path}: {length}");
        }
    }
}
