//! Removes a directory tree of any depth with a few descriptors and without recursion: subdirectories are moved to the top until each
//! directory is flat. Follows no link, and moves nothing out of the top.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::side::entries;

/// The prefix of the names of directories that were moved to the top.
const GIVEN: &str = ".given-";
/// The flags by which directories are opened. A link is refused.
const LOOK: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Removes a directory and everything in it. Makes directories accessible that are closed by their mode, since they are the caller's.
/// Another process may remove it at the same time: what that has taken away is gone as well.
pub(super) fn remove(directory: &Path) -> io::Result<()> {
    let top = open_up(&rustix::fs::openat(CWD, directory, OFlags::PATH | LOOK, Mode::empty())?)?;
    let mut number = 0;
    loop {
        let names = or_gone(entries(&top))?.unwrap_or_default();
        for name in &names {
            or_gone(empty(&top, name, &mut number))?;
        }
        if names.is_empty() {
            match or_gone(std::fs::remove_dir(directory)) {
                Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
                removed => return removed.map(drop),
            }
        }
    }
}

/// Returns `None` for what is gone.
fn or_gone<T>(done: io::Result<T>) -> io::Result<Option<T>> {
    match done {
        Ok(done) => Ok(Some(done)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Removes an entry of the top. Moves non-empty directories in it to the top.
fn empty(top: &OwnedFd, name: &OsStr, number: &mut u64) -> io::Result<()> {
    if is_taken_away(top, name)? {
        return Ok(());
    }
    let directory = open_up(&rustix::fs::openat(top, name, OFlags::PATH | LOOK, Mode::empty())?)?;
    for inner in entries(&directory)? {
        if or_gone(is_taken_away(&directory, &inner))? == Some(false) {
            or_gone(give(&directory, &inner, top, number))?;
        }
    }
    match rustix::fs::unlinkat(top, name, AtFlags::REMOVEDIR) {
        // Another process has moved a directory to this name, which the next look at the top finds.
        Ok(()) | Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Removes an entry if one call can do it. Returns whether it did: only a non-empty directory is left.
fn is_taken_away(parent: &OwnedFd, name: &OsStr) -> io::Result<bool> {
    let stat = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
    let directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
    let flags = if directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
    match rustix::fs::unlinkat(parent, name, flags) {
        Ok(()) => Ok(true),
        Err(Errno::NOTEMPTY | Errno::EXIST) if directory => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

fn give(parent: &OwnedFd, name: &OsStr, top: &OwnedFd, number: &mut u64) -> io::Result<()> {
    // Moving a directory changes its `..`, which takes the right to write into it.
    drop(open_up(&rustix::fs::openat(parent, name, OFlags::PATH | LOOK, Mode::empty())?));
    loop {
        *number += 1;
        match rustix::fs::renameat(parent, name, top, format!("{GIVEN}{number}")) {
            // A directory that an earlier removal left. (An empty one is replaced, which does no harm.)
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => {}
            given => return Ok(given?),
        }
    }
}

/// Restores the owner's access to a directory, and opens it.
fn open_up(found: &OwnedFd) -> io::Result<OwnedFd> {
    if rustix::fs::fstat(found)?.st_mode & 0o700 != 0o700 {
        // By descriptor and not by name, at which something else could be. If this process is not the owner, opening it fails.
        let itself = format!("/proc/self/fd/{}", found.as_raw_fd());
        let _ = rustix::fs::chmod(itself, Mode::RWXU);
    }
    Ok(rustix::fs::openat(found, c".", OFlags::RDONLY | LOOK, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    use super::*;
    use crate::changes::fixture::unprivileged;

    /// Makes nested directories, each with a file and a link beside the next one.
    fn nest(at: &Path, depth: usize, outside: &Path) {
        let mut inner = rustix::fs::open(at, OFlags::PATH | LOOK, Mode::empty()).unwrap();
        let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
        for _ in 0..depth {
            rustix::fs::symlinkat(outside, &inner, "link").unwrap();
            rustix::fs::openat(&inner, "file", flags, Mode::RUSR).unwrap();
            rustix::fs::mkdirat(&inner, "directory", Mode::RWXU).unwrap();
            inner = rustix::fs::openat(&inner, "directory", OFlags::PATH | LOOK, Mode::empty()).unwrap();
        }
    }

    #[test]
    fn what_is_nested_deeper_than_there_are_descriptors_goes_away() {
        /// Enough for the other tests of this process.
        const FEW: u64 = 512;
        let limit = getrlimit(Resource::Nofile);
        let few = limit.current.map_or(FEW, |now| now.min(FEW));
        setrlimit(Resource::Nofile, Rlimit { current: Some(few), ..limit }).unwrap();
        let state = tempfile::tempdir().unwrap();
        let (top, outside) = (state.path().join("top"), state.path().join("outside"));
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(outside.join("canary"), "kept").unwrap();
        std::fs::create_dir_all(top.join("written")).unwrap();
        // A directory that an earlier removal left.
        std::fs::create_dir_all(top.join(".given-2/not empty")).unwrap();
        nest(&top.join("written"), 600, &outside);
        remove(&top).unwrap();
        assert!(!top.exists());
        assert_eq!(std::fs::read_to_string(outside.join("canary")).unwrap(), "kept");
        assert_eq!(remove(&top).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn what_two_take_away_at_once_is_gone_for_both() {
        let state = tempfile::tempdir().unwrap();
        for round in 0..8 {
            let top = state.path().join(round.to_string());
            for wide in 0..20 {
                std::fs::create_dir_all(top.join(wide.to_string())).unwrap();
                nest(&top.join(wide.to_string()), 10, Path::new("/nowhere"));
            }
            let removed = std::thread::scope(|scope| {
                [0, 1].map(|_| scope.spawn(|| remove(&top))).map(|thread| thread.join().unwrap())
            });
            for done in removed {
                assert!(done.as_ref().err().is_none_or(|e| e.kind() == io::ErrorKind::NotFound), "{done:?}");
            }
            assert!(!top.exists());
        }
    }

    #[test]
    fn what_was_shut_goes_away() {
        unprivileged(|state| {
            use std::os::unix::fs::PermissionsExt;
            let top = state.join("top");
            std::fs::create_dir_all(top.join("a/b/c/d")).unwrap();
            for shut in ["a/b/c", "a/b", "a", ""] {
                let none = std::fs::Permissions::from_mode(0o0);
                std::fs::set_permissions(top.join(shut), none).unwrap();
            }
            remove(&top).unwrap();
            assert!(!top.exists());
        });
    }
}
