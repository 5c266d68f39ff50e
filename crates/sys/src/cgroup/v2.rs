//! Control groups of version 2.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use rustix::fs::{Mode, OFlags};

use super::{Limits, Usage, number, row, write};

/// The length of a scheduling period, in microseconds: the kernel's own default.
const PERIOD: u64 = 100_000;

pub(super) fn limit(directories: &[PathBuf], limits: &Limits) -> io::Result<Vec<OwnedFd>> {
    let [group] = directories else { return Err(io::ErrorKind::InvalidInput.into()) };
    write(group, "memory.max", &limits.memory.to_string())?;
    // A kernel without swap has no such file.
    match write(group, "memory.swap.max", "0") {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    if let Some(milli) = limits.cpu_milli {
        let quota = (u64::from(milli) * PERIOD / 1000).max(1000);
        write(group, "cpu.max", &format!("{quota} {PERIOD}"))?;
    }
    write(group, "pids.max", &limits.pids.to_string())?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(vec![rustix::fs::open(group, flags, Mode::empty())?])
}

pub(super) fn usage(directories: &[PathBuf]) -> Usage {
    let [group] = directories else { return Usage::default() };
    Usage {
        memory_peak: number(group, "memory.peak"),
        out_of_memory: row(group, "memory.events", "oom_kill ").unwrap_or(0),
        pids_refused: row(group, "pids.events", "max ").unwrap_or(0),
    }
}
