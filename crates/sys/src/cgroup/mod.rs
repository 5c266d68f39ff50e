//! Control groups: version 2, version 1, and hosts that mount both. One group a sandbox, made before its first
//! process and removed after its last.
//!
//! A process is never moved from outside by `cgroup.procs`: after a moment of idleness that takes 5 to 15 ms. It is
//! born in its group (version 2, `CLONE_INTO_CGROUP`), or moves itself through an inherited descriptor (version 1).

mod host;
mod v1;
mod v2;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

pub use host::{Host, Unavailable, Version, processors};
use rustix::fs::{Mode, OFlags};

/// What a group may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Octets of memory, swap included.
    pub memory: u64,
    /// Thousandths of a processor; nothing where the machine has no more to give.
    pub cpu_milli: Option<u32>,
    /// Processes and threads.
    pub pids: u32,
}

/// What a group has used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The most memory at one time, in octets.
    pub memory_peak: Option<u64>,
    /// How many processes the kernel killed for want of memory.
    pub out_of_memory: u64,
    /// How often a new process was refused.
    pub pids_refused: u64,
}

/// A group that exists. Dropping it does not remove it: that is an undo of its own, see [`remove`].
#[derive(Debug)]
pub struct Group {
    version: Version,
    /// One directory with version 2, one a controller with version 1.
    directories: Vec<PathBuf>,
    /// Version 2: the directory itself. Version 1: each directory's `tasks`.
    doors: Vec<OwnedFd>,
}

impl Group {
    /// Makes a group with its limits.
    ///
    /// # Errors
    /// The first directory or file that could not be made or written. Nothing is left behind.
    pub fn create(host: &Host, name: &str, limits: &Limits) -> io::Result<Self> {
        let directories = host.directories(name, limits);
        let made = Self::fill(host.version(), directories.clone(), limits);
        if made.is_err() {
            for directory in &directories {
                let _ = std::fs::remove_dir(directory);
            }
        }
        made
    }

    fn fill(version: Version, directories: Vec<PathBuf>, limits: &Limits) -> io::Result<Self> {
        for directory in &directories {
            match std::fs::create_dir(directory) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
        }
        let doors = match version {
            Version::V2 => v2::limit(&directories, limits)?,
            Version::V1 => v1::limit(&directories, limits)?,
        };
        Ok(Self { version, directories, doors })
    }

    /// With version 2: the descriptor to be born into.
    #[must_use]
    pub fn birthplace(&self) -> Option<BorrowedFd<'_>> {
        match self.version {
            Version::V2 => self.doors.first().map(AsFd::as_fd),
            Version::V1 => None,
        }
    }

    /// With version 1: the doors by which a process moves itself in, see [`enter`]. With version 2 it is born there.
    #[must_use]
    pub fn doors(&self) -> Vec<BorrowedFd<'_>> {
        match self.version {
            Version::V2 => Vec::new(),
            Version::V1 => self.doors.iter().map(AsFd::as_fd).collect(),
        }
    }

    /// What has been used so far.
    #[must_use]
    pub fn usage(&self) -> Usage {
        match self.version {
            Version::V2 => v2::usage(&self.directories),
            Version::V1 => v1::usage(&self.directories),
        }
    }
}

/// What a group has used, by its directories: one with version 2, and with version 1 those of memory, processors if they are bounded, and
/// processes.
#[must_use]
pub fn usage_of(directories: &[PathBuf]) -> Usage {
    match directories.len() {
        1 => v2::usage(directories),
        _ => v1::usage(directories),
    }
}

/// Moves the calling process through the doors of a group.
///
/// # Errors
/// Whatever `write(2)` gives.
pub fn enter<'a>(doors: impl IntoIterator<Item = BorrowedFd<'a>>) -> io::Result<()> {
    for tasks in doors {
        rustix::io::write(tasks, b"0")?;
    }
    Ok(())
}

/// Removes a group's directory. One that is gone is no error; one that still holds a process is.
///
/// # Errors
/// Whatever `rmdir(2)` gives.
pub fn remove(directory: &Path) -> io::Result<()> {
    match std::fs::remove_dir(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Takes the bound of a group's processors away, for processes that are to end: best effort, a directory that has none is left alone.
pub fn let_run(directory: &Path) {
    for (file, all) in [("cpu.cfs_quota_us", "-1"), ("cpu.max", "max")] {
        let _ = write(directory, file, all);
    }
}

/// Writes a value to a control file.
fn write(directory: &Path, file: &str, value: &str) -> io::Result<()> {
    let path = directory.join(file);
    let fd = rustix::fs::open(&path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::write(&fd, value.as_bytes())?;
    Ok(())
}

/// A control file that holds one number.
fn number(directory: &Path, file: &str) -> Option<u64> {
    std::fs::read_to_string(directory.join(file)).ok()?.trim().parse().ok()
}

/// One row of a control file of `key value` lines.
fn row(directory: &Path, file: &str, key: &str) -> Option<u64> {
    let text = std::fs::read_to_string(directory.join(file)).ok()?;
    text.lines().find_map(|line| line.strip_prefix(key)?.trim().parse().ok())
}
