//! Control groups: version 2, version 1, and hosts that mount both. Each sandbox has one group, made before its first process and
//! removed after its last.
//!
//! No process is moved from outside through `cgroup.procs`: after a moment of idleness that takes 5 to 15 ms. A process is born in
//! its group (version 2, `CLONE_INTO_CGROUP`), or moves itself through an inherited control file (version 1).

mod bounds;
mod host;
mod own;
mod v1;
mod v2;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

pub use bounds::Bounds;
pub use host::{Host, Unavailable, Version, processors};
use rustix::fs::{Mode, OFlags};

use crate::kernel_file;

/// Where groups are mounted: the root of this process's own namespace of them.
const ROOT: &str = "/sys/fs/cgroup";

/// The limits of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Octets of memory, swap included.
    pub memory: u64,
    /// Thousandths of a processor. `None` if the machine has no more than was asked for.
    pub cpu_milli: Option<u32>,
    /// Processes and threads.
    pub pids: u32,
}

/// The resource usage of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The peak of memory, in octets.
    pub memory_peak: Option<u64>,
    /// The number of processes that the out-of-memory killer ended.
    pub out_of_memory: u64,
    /// Whether it did so without the group's own limit being reached: for the machine, or for a group around this one.
    pub short_outside: bool,
    /// The number of times that the kernel refused a new process.
    pub pids_refused: u64,
}

/// An existing group. Dropping it does not remove it; see [`remove`].
#[derive(Debug)]
pub struct Group {
    version: Version,
    /// A directory in which another is with version 2, one per controller with version 1.
    directories: Vec<PathBuf>,
    /// The directory itself with version 2, each directory's `tasks` with version 1.
    control_files: Vec<OwnedFd>,
}

impl Group {
    /// Makes a group with its limits.
    ///
    /// # Errors
    /// When a directory or file cannot be made or written. Nothing is left behind.
    pub fn create(host: &Host, name: &str, limits: &Limits) -> io::Result<Self> {
        let directories = host.directories(name, limits);
        let made = Self::fill(host.version(), directories.clone(), limits);
        if made.is_err() {
            for directory in directories.iter().rev() {
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
        let control_files = match version {
            Version::V2 => v2::limit(&directories, limits)?,
            Version::V1 => v1::limit(&directories, limits)?,
        };
        Ok(Self { version, directories, control_files })
    }

    /// Returns the descriptor for `CLONE_INTO_CGROUP`, with version 2.
    #[must_use]
    pub fn birthplace(&self) -> Option<BorrowedFd<'_>> {
        match self.version {
            Version::V2 => self.control_files.first().map(AsFd::as_fd),
            Version::V1 => None,
        }
    }

    /// Returns the control files by which a process moves itself into the group, with version 1; see [`enter`]. With version 2 there
    /// are none: a process is born in the group.
    #[must_use]
    pub fn control_files(&self) -> Vec<BorrowedFd<'_>> {
        match self.version {
            Version::V2 => Vec::new(),
            Version::V1 => self.control_files.iter().map(AsFd::as_fd).collect(),
        }
    }

    /// Reads the usage so far.
    #[must_use]
    pub fn usage(&self) -> Usage {
        match self.version {
            Version::V2 => v2::usage(&self.directories),
            Version::V1 => v1::usage(&self.directories),
        }
    }
}

/// Reads the usage of a group from its directories: one with version 2; with version 1 those of memory, of processors if they are
/// limited, and of processes.
#[must_use]
pub fn usage_of(directories: &[PathBuf]) -> Usage {
    match directories.len() {
        1 => v2::usage(directories),
        _ => v1::usage(directories),
    }
}

/// Moves the calling process into a group through its control files.
///
/// # Errors
/// When `write(2)` fails.
pub fn enter<'a>(control_files: impl IntoIterator<Item = BorrowedFd<'a>>) -> io::Result<()> {
    for tasks in control_files {
        rustix::io::retry_on_intr(|| rustix::io::write(tasks, b"0"))?;
    }
    Ok(())
}

/// Removes a group's directory, and leaves the caller's own group as it was, if it was in that. Does nothing if it is gone.
///
/// # Errors
/// When `rmdir(2)` fails, as for a group that still holds a process.
pub fn remove(directory: &Path) -> io::Result<()> {
    match std::fs::remove_dir(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    directory.parent().into_iter().for_each(own::step_back);
    Ok(())
}

/// Lifts a group's processor limit, so that its processes can end sooner. Best effort: the directory need not have such a limit.
pub fn let_run(directory: &Path) {
    for (file, all) in [("cpu.cfs_quota_us", "-1"), ("cpu.max", "max")] {
        let _ = write(directory, file, all);
    }
}

/// Hands a group's controllers down to its children.
fn hand_down_all(directory: &Path) -> io::Result<()> {
    write(directory, "cgroup.subtree_control", "+memory +cpu +pids")
}

/// Writes a value to a control file.
fn write(directory: &Path, file: &str, value: &str) -> io::Result<()> {
    // A control file is neither a link nor a pipe: what is one lies in no group, and is not written to or waited for.
    let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let fd = rustix::fs::open(directory.join(file), flags, Mode::empty())?;
    rustix::io::retry_on_intr(|| rustix::io::write(&fd, value.as_bytes()))?;
    Ok(())
}

/// Reads a control file that holds one number.
fn number(directory: &Path, file: &str) -> Option<u64> {
    kernel_file::read(directory.join(file)).ok()?.trim().parse().ok()
}

/// Reads the value of `key` in a control file of `key value` lines.
fn row(directory: &Path, file: &str, key: &str) -> Option<u64> {
    let text = kernel_file::read(directory.join(file)).ok()?;
    text.lines().find_map(|line| line.strip_prefix(key)?.trim().parse().ok())
}
