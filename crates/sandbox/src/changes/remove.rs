//! What a run wrote, taken away however it is nested: with a handful of descriptors and no way down. A directory that has directories
//! in it gives them to the top first, and is then a flat one. No link is followed, and nothing leaves the top.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::walk::entries;

/// What the names begin with that directories have once they have been given to the top.
const GIVEN: &str = ".given-";
/// How directories are opened: where a link is, they are none.
const LOOK: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Removes a directory and all that is in it. Directories that were shut are opened, as they are the caller's.
pub(super) fn remove(directory: &Path) -> io::Result<()> {
    let top = open_up(&rustix::fs::openat(CWD, directory, OFlags::PATH | LOOK, Mode::empty())?)?;
    let mut number = 0;
    loop {
        let names = entries(&top)?;
        if names.is_empty() {
            return std::fs::remove_dir(directory);
        }
        for name in &names {
            empty(&top, name, &mut number)?;
        }
    }
}

/// Takes an entry of the top away, but for the directories in it that are not empty: those are then in the top.
fn empty(top: &OwnedFd, name: &OsStr, number: &mut u64) -> io::Result<()> {
    if is_taken_away(top, name)? {
        return Ok(());
    }
    let directory = open_up(&rustix::fs::openat(top, name, OFlags::PATH | LOOK, Mode::empty())?)?;
    for inner in entries(&directory)? {
        if !is_taken_away(&directory, &inner)? {
            give(&directory, &inner, top, number)?;
        }
    }
    Ok(rustix::fs::unlinkat(top, name, AtFlags::REMOVEDIR)?)
}

/// Takes away what can be taken at once; whether it could. Only a directory with something in it cannot.
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
    // Who moves a directory elsewhere writes into it: what is above it is another.
    drop(open_up(&rustix::fs::openat(parent, name, OFlags::PATH | LOOK, Mode::empty())?));
    loop {
        *number += 1;
        match rustix::fs::renameat(parent, name, top, format!("{GIVEN}{number}")) {
            // One that an earlier removal did not come to. An empty one is replaced, and that is as well.
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => {}
            given => return Ok(given?),
        }
    }
}

/// Gives a directory that was shut back to its owner, and opens it.
fn open_up(found: &OwnedFd) -> io::Result<OwnedFd> {
    if rustix::fs::fstat(found)?.st_mode & 0o700 != 0o700 {
        // By what it is and not by its name, at which something else might stand. Whose it is not tells the opening.
        let itself = format!("/proc/self/fd/{}", found.as_raw_fd());
        let _ = rustix::fs::chmod(itself, Mode::RWXU);
    }
    Ok(rustix::fs::openat(found, c".", OFlags::RDONLY | LOOK, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    use super::super::unprivileged;
    use super::*;

    /// Directories in one another, each with a file and a link beside the next one.
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
        /// As many as the other tests get by with as well.
        const FEW: u64 = 512;
        let limit = getrlimit(Resource::Nofile);
        let few = limit.current.map_or(FEW, |now| now.min(FEW));
        setrlimit(Resource::Nofile, Rlimit { current: Some(few), ..limit }).unwrap();
        let state = tempfile::tempdir().unwrap();
        let (top, outside) = (state.path().join("top"), state.path().join("outside"));
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(outside.join("canary"), "kept").unwrap();
        std::fs::create_dir_all(top.join("written")).unwrap();
        // What an earlier removal did not come to.
        std::fs::create_dir_all(top.join(".given-2/not empty")).unwrap();
        nest(&top.join("written"), 600, &outside);
        remove(&top).unwrap();
        assert!(!top.exists());
        assert_eq!(std::fs::read_to_string(outside.join("canary")).unwrap(), "kept");
        assert_eq!(remove(&top).unwrap_err().kind(), io::ErrorKind::NotFound);
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
