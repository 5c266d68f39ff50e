//! Control groups of version 2.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use super::bounds::Bounds;
use super::{Limits, Usage, number, row, write};
use crate::kernel_file;

/// The length of a scheduling period, in microseconds: the kernel's own default.
const PERIOD: u64 = 100_000;

/// The name of the group below a run's own in which its processes are.
const WITHIN: &str = "run";

/// Returns the directories of a group below `parent`. The outer one holds no process: because it hands its controllers down, nobody can take
/// them from it, as systemd does where the last of its own units that needs one ends (`EBUSY`).
pub(super) fn directories(parent: &Path, name: &str) -> Vec<PathBuf> {
    let outer = parent.join(name);
    let inner = outer.join(WITHIN);
    vec![outer, inner]
}

pub(super) fn limit(directories: &[PathBuf], limits: &Limits) -> io::Result<Vec<OwnedFd>> {
    let [outer, group] = directories else { return Err(io::ErrorKind::InvalidInput.into()) };
    super::hand_down_all(outer)?;
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

/// Returns what a group's own limits allow.
pub(super) fn bounds(group: &Path) -> Bounds {
    let cpu = kernel_file::read(group.join("cpu.max")).unwrap_or_default();
    let mut cpu = cpu.split_whitespace().map(|word| word.parse::<u64>().ok());
    let share = |quota: Option<u64>, period: Option<u64>| quota?.checked_mul(1000)?.checked_div(period?);
    Bounds {
        // Without a limit the file holds `max`.
        memory: number(group, "memory.max"),
        cpu_milli: share(cpu.next().flatten(), cpu.next().flatten()),
        pids: number(group, "pids.max"),
    }
}

pub(super) fn usage(directories: &[PathBuf]) -> Usage {
    let [.., group] = directories else { return Usage::default() };
    let killed = row(group, "memory.events", "oom_kill ").unwrap_or(0);
    // A group around this one, or the whole machine, kills without a limit of this group's that was reached.
    let by_own_limit = row(group, "memory.events", "oom ") != Some(0);
    Usage {
        memory_peak: number(group, "memory.peak"),
        out_of_memory: killed,
        short_outside: killed > 0 && !by_own_limit,
        pids_refused: row(group, "pids.events", "max ").unwrap_or(0),
    }
}
