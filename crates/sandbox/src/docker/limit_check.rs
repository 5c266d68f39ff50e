//! Checks from inside the container that the engine enforces the limits it was asked for. Some engines accept limits and silently
//! enforce none, as Podman without root does with control groups of version 1. The init sets the limits a process can set itself.

use std::path::{Path, PathBuf};

use policy::Enforcement;
use rustix::process::Resource;
use serde::{Deserialize, Serialize};
use sys::cgroup;

use super::container::{OPEN_FILES, OWN_PROCESSES};
use crate::failure::Failure;
use crate::plan::Plan;
use crate::plan::limits::LimitsPlan;
use crate::rlimit;

/// Where an engine mounts a container's own control group.
const BASE: &str = "/sys/fs/cgroup";
const OWN_GROUPS: &str = "/proc/self/cgroup";
/// The notice for missing control-group namespaces; Podman does not report that itself.
const NAMES_SHOW: &str = "the names of this machine's control groups can be seen inside: with those of version 1 Podman has no \
                          namespace for them";
const MEMORY: &str = "memory";
const PROCESSES: &str = "processes";
/// By how many thousandths of a processor an engine may round a quota.
const ROUNDING: u64 = 10;

/// The limits that an engine was asked for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct LimitRequest {
    memory: u64,
    milli_cpus: u64,
    processes: u64,
    /// Whether a run without them is refused.
    required: bool,
}

impl LimitRequest {
    /// Returns the limits of a plan.
    pub(super) fn of(plan: &Plan) -> Option<Self> {
        let LimitsPlan::Engine(limits) = &plan.limits else { return None };
        Some(Self {
            memory: limits.memory.bytes(),
            milli_cpus: limits.cpus.milli().into(),
            processes: u64::from(limits.pids).saturating_add_signed(OWN_PROCESSES),
            required: limits.enforcement == Enforcement::Required,
        })
    }
}

/// The limits of the container's own control group; `None` where there is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    memory: Option<u64>,
    milli_cpus: Option<u64>,
    processes: Option<u64>,
}

/// Checks all limits, and sets those a process can set. A required limit that is not enforced is a failure; others get a notice.
pub(super) fn look(asked: &LimitRequest, notices: &mut Vec<String>) -> Result<(), Failure> {
    let _ = rlimit::set_cores();
    let _ = rlimit::lower(Resource::Nofile, OPEN_FILES);
    let mut missing = missing(asked, seen(Path::new(BASE)));
    // RLIMIT_NPROC is a substitute: it counts all processes of the user at that engine, not this run's alone.
    missing.retain(|what| *what != PROCESSES || rlimit::lower(Resource::Nproc, asked.processes).is_err());
    if !is_apart(&std::fs::read_to_string(OWN_GROUPS).unwrap_or_default()) {
        notices.push(NAMES_SHOW.into());
    }
    if missing.is_empty() {
        return Ok(());
    }
    let what = format!("the engine does not limit {}", missing.join(", "));
    let remedy = "an engine without root needs control groups of version 2, of which its user was given some";
    if asked.required {
        let cause = format!("{what}: {remedy}; or accept a run without them: --limits best-effort");
        return Err(Failure::new("hold the limits", cause));
    }
    notices.push(format!("{what}: {remedy}"));
    Ok(())
}

/// Whether this container has a control-group namespace of its own: cgroup_namespaces(7).
fn is_apart(groups: &str) -> bool {
    groups.lines().all(|line| line.splitn(3, ':').nth(2) == Some("/"))
}

/// Returns the names of the limits that are not enforced.
fn missing(asked: &LimitRequest, seen: Seen) -> Vec<&'static str> {
    let within = |seen: Option<u64>, most: u64| seen.is_some_and(|seen| seen <= most);
    let all = [
        (MEMORY, within(seen.memory, asked.memory)),
        ("processors", within(seen.milli_cpus, asked.milli_cpus + ROUNDING)),
        (PROCESSES, within(seen.processes, asked.processes)),
    ];
    all.into_iter().filter(|(_, is_held)| !is_held).map(|(what, _)| what).collect()
}

/// Reads the limits of either version of control groups: cgroups(7). A value that is not a number is no limit.
fn seen(base: &Path) -> Seen {
    let text = |file: &str| std::fs::read_to_string(base.join(file)).unwrap_or_default();
    let number = |file: &str| text(file).trim().parse().ok();
    let share = |quota: Option<u64>, period: Option<u64>| quota?.checked_mul(1000)?.checked_div(period?);
    if !base.join("memory").is_dir() {
        let cpu = text("cpu.max");
        let mut cpu = cpu.split_whitespace().map(|word| word.parse().ok());
        return Seen {
            memory: number("memory.max"),
            milli_cpus: share(cpu.next().flatten(), cpu.next().flatten()),
            processes: number("pids.max"),
        };
    }
    Seen {
        memory: number("memory/memory.limit_in_bytes"),
        milli_cpus: share(number("cpu/cpu.cfs_quota_us"), number("cpu/cpu.cfs_period_us")),
        processes: number("pids/pids.max"),
    }
}

/// Returns the resources this container has used, read where an engine mounts the container's own control group.
pub(super) fn own_usage(asked: Option<&LimitRequest>) -> cgroup::Usage {
    usage_at(Path::new(BASE), asked)
}

/// A group without the requested limit of memory is not the container's own: its figures are those of the engine, or of a whole session.
fn usage_at(base: &Path, asked: Option<&LimitRequest>) -> cgroup::Usage {
    if asked.is_none_or(|asked| missing(asked, seen(base)).contains(&MEMORY)) {
        return cgroup::Usage::default();
    }
    let directories: Vec<PathBuf> = if base.join("memory").is_dir() {
        ["memory", "cpu", "pids"].map(|controller| base.join(controller)).to_vec()
    } else {
        vec![base.to_path_buf()]
    };
    cgroup::usage_of(&directories)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn directory(files: &[(&str, &str)]) -> tempfile::TempDir {
        let base = tempfile::tempdir().unwrap();
        for (file, text) in files {
            let path = base.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        base
    }

    const REQUEST: LimitRequest =
        LimitRequest { memory: 64 << 20, milli_cpus: 500, processes: 10, required: true };

    #[test]
    fn what_is_held_is_seen_in_either_version() {
        let first = directory(&[
            ("memory/memory.limit_in_bytes", "67108864\n"),
            ("cpu/cpu.cfs_quota_us", "50000\n"),
            ("cpu/cpu.cfs_period_us", "100000\n"),
            ("pids/pids.max", "10\n"),
        ]);
        let second =
            directory(&[("memory.max", "67108864\n"), ("cpu.max", "50000 100000\n"), ("pids.max", "9\n")]);
        for base in [first, second] {
            assert_eq!(missing(&REQUEST, seen(base.path())), [""; 0], "{:?}", seen(base.path()));
        }
    }

    #[test]
    fn names_of_other_control_groups_are_seen() {
        assert!(is_apart("4:memory:/\n0::/\n") && is_apart(""));
        assert!(!is_apart("4:memory:/libpod_parent/libpod-1\n0::/\n") && !is_apart("0::/../a:b\n"));
    }

    #[test]
    fn what_is_not_held_is_named() {
        let all = ["memory", "processors", "processes"];
        let second = directory(&[("memory.max", "max"), ("cpu.max", "max 100000"), ("pids.max", "max")]);
        // As Podman without root has them.
        let first = directory(&[
            ("memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("cpu/cpu.cfs_quota_us", "-1\n"),
            ("cpu/cpu.cfs_period_us", "100000\n"),
        ]);
        for base in [first, second, directory(&[])] {
            assert_eq!(missing(&REQUEST, seen(base.path())), all);
        }
        let more = directory(&[("memory.max", "67108865"), ("cpu.max", "60000 100000"), ("pids.max", "11")]);
        assert_eq!(missing(&REQUEST, seen(more.path())), all);
    }

    #[test]
    fn what_others_use_is_not_the_containers() {
        let group = |limit: &'static str| {
            directory(&[("memory.max", limit), ("memory.peak", "4096"), ("memory.events", "oom_kill 3\n")])
        };
        let own = usage_at(group("67108864").path(), Some(&REQUEST));
        assert_eq!((own.memory_peak, own.out_of_memory), (Some(4096), 3));
        // As a session of a user's has them, in either version.
        let first = directory(&[
            ("memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("memory/memory.max_usage_in_bytes", "4096\n"),
            ("memory/memory.oom_control", "oom_kill 3\n"),
        ]);
        for base in [first, group("max")] {
            assert_eq!(usage_at(base.path(), Some(&REQUEST)), cgroup::Usage::default());
        }
    }

    #[test]
    fn one_that_was_asked_for_ends_the_run_and_of_others_there_is_a_notice() {
        // This process has no limits of a run's, and is to have none.
        let asked = |required| LimitRequest { memory: 1, processes: u64::MAX, required, ..REQUEST };
        let mut notices = Vec::new();
        assert!(look(&asked(true), &mut notices).is_err());
        assert!(look(&asked(false), &mut notices).is_ok());
        assert!(notices.iter().any(|notice| notice.contains("does not limit memory")), "{notices:?}");
    }
}
