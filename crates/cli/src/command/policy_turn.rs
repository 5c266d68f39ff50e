//! The turn of a command that edits a policy: nobody else edits the file between what it reads and what it writes.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::output;

/// How long a lock is waited for. Whoever may read the file can hold it, as a command in a sandbox: that must not keep its rules as they are.
const PATIENCE: Duration = Duration::from_secs(3);
const BETWEEN: Duration = Duration::from_millis(10);

/// A turn, which ends when it is dropped.
pub(super) struct Turn {
    /// The lock on the file itself: two users, and two state directories, edit one file too.
    _held: Option<HeldFile>,
    /// The lock on what is approved.
    _approvals: Option<File>,
}

impl Turn {
    /// Waits for the lock on the file, and then for that on what is approved, which `approvals` takes.
    pub(super) fn wait<E>(
        path: &Path,
        approvals: impl FnOnce() -> Result<Option<File>, E>,
    ) -> Result<Self, E> {
        let held = HeldFile::wait(path, PATIENCE);
        if held.as_ref().is_some_and(|held| held.is_held_elsewhere) {
            output::tell(&format!(
                "another program holds {} locked; it is edited all the same (`fuser` tells which one)",
                output::path(path)
            ));
        }
        Ok(Self { _held: held, _approvals: approvals()? })
    }
}

/// A file that is locked (flock(2)). Where it was made for that and nothing was written to it, it goes with the lock.
struct HeldFile {
    file: File,
    path: PathBuf,
    is_made: bool,
    /// Whether it is not locked, because another program has the lock.
    is_held_elsewhere: bool,
}

impl HeldFile {
    /// Returns `None` where there is nothing to lock: whatever else has the name, no policy is written to it. On a file system without
    /// locks there is none.
    fn wait(path: &Path, patience: Duration) -> Option<Self> {
        let end = Instant::now() + patience;
        loop {
            let (file, is_made) = open(path)?;
            let mut held = Self { file, path: path.into(), is_made, is_held_elsewhere: false };
            while let Err(Errno::WOULDBLOCK | Errno::INTR) =
                rustix::fs::flock(&held.file, FlockOperation::NonBlockingLockExclusive)
            {
                held.is_held_elsewhere = Instant::now() >= end;
                if held.is_held_elsewhere {
                    return Some(held);
                }
                std::thread::sleep(BETWEEN);
            }
            // Whoever made it may have taken it away while it was waited for.
            if held.is_in_its_place() || Instant::now() >= end {
                return Some(held);
            }
        }
    }

    fn is_in_its_place(&self) -> bool {
        let identity = |about: std::fs::Metadata| (about.dev(), about.ino());
        let there = std::fs::symlink_metadata(&self.path).map(identity);
        self.file.metadata().map(identity).is_ok_and(|own| there.is_ok_and(|there| there == own))
    }
}

impl Drop for HeldFile {
    fn drop(&mut self) {
        let is_empty = || self.file.metadata().is_ok_and(|about| about.len() == 0);
        if self.is_made && is_empty() && self.is_in_its_place() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Opens a regular file, and makes it if there is none. Returns whether it was made.
fn open(path: &Path) -> Option<(File, bool)> {
    let open = |flags: OFlags| {
        let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        rustix::fs::open(path, flags, Mode::from_raw_mode(0o666)).map(File::from)
    };
    let there = || match open(OFlags::RDWR) {
        // It is locked all the same: whoever may write it waits.
        Err(Errno::ACCESS | Errno::PERM | Errno::ROFS) => open(OFlags::RDONLY),
        opened => opened,
    };
    let opened = match there() {
        Err(Errno::NOENT) => match open(OFlags::RDWR | OFlags::CREATE | OFlags::EXCL) {
            Err(Errno::EXIST) => there().map(|file| (file, false)),
            made => made.map(|file| (file, true)),
        },
        opened => opened.map(|file| (file, false)),
    };
    opened.ok().filter(|(file, _)| file.metadata().is_ok_and(|about| about.is_file()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::super::policy_write::put;
    use super::*;

    fn hold(path: &Path) -> Option<HeldFile> {
        HeldFile::wait(path, PATIENCE)
    }

    #[test]
    fn of_lines_that_are_added_at_once_all_are_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("policy.toml");
        std::thread::scope(|scope| {
            for line in 0..12 {
                let path = &path;
                scope.spawn(move || {
                    let _held = HeldFile::wait(path, 20 * PATIENCE).unwrap();
                    let before = runtime::read_policy_if_there(path).unwrap().unwrap_or_default();
                    put(path, &format!("{before}# {line}\n")).unwrap();
                });
            }
        });
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().count(), 12, "{text}");
    }

    #[test]
    fn a_file_is_held_by_one_at_a_time_and_not_waited_for_without_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("policy.toml");
        std::fs::write(&path, "x = 1\n").unwrap();
        let linked = folder.path().join("linked.toml");
        std::fs::hard_link(&path, &linked).unwrap();
        let held = hold(&path).unwrap();
        for name in [&path, &linked] {
            assert!(HeldFile::wait(name, Duration::ZERO).unwrap().is_held_elsewhere);
        }
        drop(held);
        assert!(!hold(&linked).unwrap().is_held_elsewhere);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "x = 1\n");
    }

    #[test]
    fn a_file_that_was_made_to_be_held_goes_where_nothing_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("policy.toml");
        let held = hold(&path).unwrap();
        std::thread::scope(|scope| {
            let next = scope.spawn(|| hold(&path).map(|held| (held.is_in_its_place(), held)));
            drop(held);
            assert!(
                next.join().unwrap().unwrap().0,
                "it holds the file that is there, not the one that went"
            );
        });
        assert!(!path.exists());
        let held = hold(&path).unwrap();
        put(&path, "x = 1\n").unwrap();
        drop(held);
        assert!(path.exists());
        // One that was there stays, also empty.
        std::fs::write(&path, "").unwrap();
        drop(hold(&path).unwrap());
        assert!(path.exists());
    }

    #[test]
    fn nothing_but_a_file_is_held_or_made() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        symlink(at("none"), at("dangling")).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, at("pipe"), rustix::fs::FileType::Fifo, Mode::RWXU, 0).unwrap();
        for name in ["dangling", "pipe", ".", "absent/policy.toml"] {
            assert!(hold(&at(name)).is_none(), "{name}");
        }
        assert!(!at("none").exists() && !at("absent").exists());
    }
}
