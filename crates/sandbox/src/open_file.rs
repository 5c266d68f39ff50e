//! A path below a directory, opened; and checks of an open file by its descriptor: its owner, whether a name still leads to it, whether it
//! is empty. Another process that can write in a directory can move what is there, and put another file at its name, at any moment.

use std::ffi::OsStr;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags, RawDir, ResolveFlags, openat2};
use rustix::io::Errno;

/// How often a path is looked up that somebody moves meanwhile.
const LOOKUPS: usize = 100;

/// Opens a path below a directory. No component may be a link.
pub(crate) fn lookup(
    directory: impl AsFd,
    path: impl AsRef<Path>,
    flags: OFlags,
) -> rustix::io::Result<OwnedFd> {
    lookup_with(directory, path, flags, ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS)
}

/// Opens a path as `resolve` says. What another run moves away during the lookup, as it does with what held a name, is not below the
/// directory any more (`EXDEV`), and is looked up again.
pub(crate) fn lookup_with(
    directory: impl AsFd,
    path: impl AsRef<Path>,
    flags: OFlags,
    resolve: ResolveFlags,
) -> rustix::io::Result<OwnedFd> {
    let open = || openat2(directory.as_fd(), path.as_ref(), flags, Mode::empty(), resolve);
    let is_settled = |opened: &rustix::io::Result<_>| !matches!(opened, Err(Errno::XDEV | Errno::AGAIN));
    std::iter::repeat_with(open).take(LOOKUPS - 1).find(is_settled).unwrap_or_else(open)
}

/// Whether this process's user owns an open file.
pub(crate) fn is_own(opened: impl AsFd) -> rustix::io::Result<bool> {
    Ok(rustix::fs::fstat(opened)?.st_uid == rustix::process::geteuid().as_raw())
}

/// Whether two descriptors refer to the same file.
pub(crate) fn is_same(one: impl AsFd, other: impl AsFd) -> rustix::io::Result<bool> {
    let (one, other) = (rustix::fs::fstat(one)?, rustix::fs::fstat(other)?);
    Ok((one.st_dev, one.st_ino) == (other.st_dev, other.st_ino))
}

/// Whether a name leads to an open file.
pub(crate) fn is_at(parent: impl AsFd, name: &OsStr, opened: impl AsFd) -> rustix::io::Result<bool> {
    let opened = rustix::fs::fstat(opened)?;
    match rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(there) => Ok((there.st_dev, there.st_ino) == (opened.st_dev, opened.st_ino)),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Whether a directory is empty. One that was removed meanwhile is.
pub(crate) fn is_empty(directory: &OwnedFd) -> rustix::io::Result<bool> {
    let mut buffer = [MaybeUninit::uninit(); 512];
    rustix::fs::seek(directory, rustix::fs::SeekFrom::Start(0))?;
    let mut entries = RawDir::new(directory, &mut buffer);
    while let Some(entry) = entries.next() {
        match entry {
            Ok(entry) if matches!(entry.file_name().to_bytes(), b"." | b"..") => {}
            Ok(_) => return Ok(false),
            Err(Errno::NOENT) => return Ok(true),
            Err(errno) => return Err(errno),
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    // L05: another run moves what held a name out of the workspace.
    #[test]
    fn what_is_moved_away_during_a_lookup_is_there_or_not() {
        let folder = tempfile::tempdir().unwrap();
        let [within, aside] = ["within", "aside"].map(|name| folder.path().join(name));
        std::fs::create_dir_all(within.join("held")).unwrap();
        let root = std::fs::File::open(&within).unwrap();
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    std::fs::rename(within.join("held"), &aside).unwrap();
                    std::fs::rename(&aside, within.join("held")).unwrap();
                }
            });
            let refused = (0..100_000).find_map(|_| {
                lookup(&root, "held", OFlags::PATH | OFlags::CLOEXEC)
                    .err()
                    .filter(|errno| *errno != Errno::NOENT)
            });
            is_over.store(true, Ordering::Relaxed);
            assert!(refused.is_none(), "{refused:?}");
        });
    }

    #[test]
    fn a_directory_that_another_run_removes_is_empty_and_one_that_cannot_be_read_is_not_judged() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path().join("a");
        std::fs::create_dir(&at).unwrap();
        let opened = OwnedFd::from(std::fs::File::open(&at).unwrap());
        std::fs::write(at.join("b"), "").unwrap();
        assert_eq!(is_empty(&opened), Ok(false));
        std::fs::remove_dir_all(&at).unwrap();
        assert_eq!(is_empty(&opened), Ok(true));
        assert_eq!(is_empty(&crate::source::open(folder.path()).unwrap()), Err(Errno::BADF));
    }
}
