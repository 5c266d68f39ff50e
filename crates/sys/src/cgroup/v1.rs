//! Control groups of version 1. Directories are in the order memory, cpu (if processors are limited), pids.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use super::{Limits, Usage, number, row, write};

/// The length of a scheduling period, in microseconds: the kernel's own default.
const PERIOD: u64 = 100_000;

/// The part of the limit of memory that TCP may hold in addition to it.
const TCP_SHARE: u64 = 4;

/// The most octets that a charge takes ahead, on all processors together: a peak may be that much below the limit.
const BATCH: u64 = 1 << 20;

pub(super) fn limit(directories: &[PathBuf], limits: &Limits) -> io::Result<Vec<OwnedFd>> {
    let (memory, cpu, pids) = by_controller(directories).ok_or(io::ErrorKind::InvalidInput)?;
    write(memory, "memory.limit_in_bytes", &limits.memory.to_string())?;
    // Swap accounting can be switched off at boot, and a kernel may be built without TCP; then the file does not exist.
    write_if_there(memory, "memory.memsw.limit_in_bytes", limits.memory)?;
    // What sockets hold is no part of the limit of memory.
    write_if_there(memory, "memory.kmem.tcp.limit_in_bytes", limits.memory / TCP_SHARE)?;
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

fn write_if_there(directory: &Path, file: &str, most: u64) -> io::Result<()> {
    match write(directory, file, &most.to_string()) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

pub(super) fn usage(directories: &[PathBuf]) -> Usage {
    let Some((memory, _, pids)) = by_controller(directories) else { return Usage::default() };
    let killed = row(memory, "memory.oom_control", "oom_kill ").unwrap_or(0);
    // The kernel counts no failures where it kills, so the peak tells: it is at most a batch below a limit that was reached.
    let is_below = |peak: &str, limit: &str| {
        let (peak, limit) = (number(memory, peak)?, number(memory, limit)?);
        Some(peak < limit.saturating_sub(BATCH))
    };
    let is_below_limit = is_below("memory.max_usage_in_bytes", "memory.limit_in_bytes") == Some(true)
        && is_below("memory.memsw.max_usage_in_bytes", "memory.memsw.limit_in_bytes") != Some(false);
    Usage {
        memory_peak: number(memory, "memory.max_usage_in_bytes"),
        out_of_memory: killed,
        short_outside: killed > 0 && is_below_limit,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_others_lack_is_told_by_a_peak_below_the_limit() {
        for (peak, with_swap, outside) in
            [(60 << 20, None, true), (64 << 20, None, false), ((64 << 20) - 4096, None, false)]
                .into_iter()
                .chain([(60 << 20, Some(60 << 20), true), (60 << 20, Some(64 << 20), false)])
        {
            let root = tempfile::tempdir().unwrap();
            let write = |file: &str, text: String| std::fs::write(root.path().join(file), text).unwrap();
            write("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n".into());
            write("memory.limit_in_bytes", (64_u64 << 20).to_string());
            write("memory.max_usage_in_bytes", peak.to_string());
            if let Some(peak) = with_swap {
                write("memory.memsw.limit_in_bytes", (64_u64 << 20).to_string());
                write("memory.memsw.max_usage_in_bytes", peak.to_string());
            }
            let seen = usage(&[root.path().into(), root.path().into()]);
            assert_eq!((seen.out_of_memory, seen.short_outside), (1, outside), "{peak} {with_swap:?}");
        }
    }

    #[test]
    fn what_tcp_holds_is_limited_where_the_kernel_can() {
        let limits = Limits { memory: 1 << 20, cpu_milli: None, pids: 7 };
        for (has_tcp, then) in [(true, "262144"), (false, "")] {
            let root = tempfile::tempdir().unwrap();
            let directories = ["memory", "pids"].map(|name| root.path().join(name));
            let tcp = directories[0].join("memory.kmem.tcp.limit_in_bytes");
            for (directory, file) in directories.iter().zip(["memory.limit_in_bytes", "pids.max"]) {
                std::fs::create_dir(directory).unwrap();
                std::fs::write(directory.join(file), "").unwrap();
                std::fs::write(directory.join("tasks"), "").unwrap();
            }
            if has_tcp {
                std::fs::write(&tcp, "").unwrap();
            }
            limit(&directories, &limits).unwrap();
            assert_eq!(std::fs::read_to_string(tcp).unwrap_or_default(), then);
            let memory = std::fs::read_to_string(directories[0].join("memory.limit_in_bytes"));
            assert_eq!(memory.unwrap(), "1048576");
        }
    }
}
