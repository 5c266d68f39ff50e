//! Control groups of version 1. Directories are in the order memory, cpu (if processors are limited), pids.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use super::{Limits, Usage, number, row, write};

/// The length of a scheduling period, in microseconds: the kernel's own default.
const PERIOD: u64 = 100_000;

pub(super) fn limit(directories: &[PathBuf], limits: &Limits) -> io::Result<Vec<OwnedFd>> {
    let (memory, cpu, pids) = by_controller(directories).ok_or(io::ErrorKind::InvalidInput)?;
    let most = limits.memory.to_string();
    write(memory, "memory.limit_in_bytes", &most)?;
    // Swap accounting can be switched off at boot; then this file does not exist.
    match write(memory, "memory.memsw.limit_in_bytes", &most) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    if let Some(milli) = limits.cpu_milli {
        let quota = (u64::from(milli) * PERIOD / 1000).max(1000);
        write(cpu.ok_or(io::ErrorKind::InvalidInput)?, "cpu.cfs_quota_us", &quota.to_string())?;
    }
    write(pids, "pids.max", &limits.pids.to_string())?;
    let open = |directory: &PathBuf| {
        Ok(rustix::fs::open(directory.join("tasks"), OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?)
    };
    directories.iter().map(open).collect()
}

pub(super) fn usage(directories: &[PathBuf]) -> Usage {
    let Some((memory, _, pids)) = by_controller(directories) else { return Usage::default() };
    Usage {
        memory_peak: number(memory, "memory.max_usage_in_bytes"),
        out_of_memory: row(memory, "memory.oom_control", "oom_kill ").unwrap_or(0),
        pids_refused: row(pids, "pids.events", "max ").unwrap_or(0),
    }
}

fn by_controller(directories: &[PathBuf]) -> Option<(&Path, Option<&Path>, &Path)> {
    match directories {
        [memory, pids] => Some((memory, None, pids)),
        [memory, cpu, pids] => Some((memory, Some(cpu), pids)),
        _ => None,
    }
}
