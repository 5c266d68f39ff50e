//! Plans how limits are enforced, and the size of private directories.

use policy::{Backend, ByteSize, CpuCount, Enforcement, Limits, LimitsAsked, RunSpec};
use sys::cgroup;

use crate::error::Error;
use crate::host::Host;
use crate::need::SEE_DOCTOR;

/// How limits are enforced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LimitsPlan {
    /// By a control group.
    Group(Limits),
    /// By the engine.
    Engine(Limits),
    /// Not at all, except for the number of processes.
    Processes(u32),
    /// Not at all.
    Unlimited,
}

pub(super) fn plan_limits(
    spec: &RunSpec,
    host: &Host,
    notices: &mut Vec<String>,
) -> Result<LimitsPlan, Error> {
    if spec.backend == Backend::Docker {
        // Only the container shows which limits the engine enforces. The lack of one that nobody asked for is a notice.
        let asked = if spec.limits_asked.any() { spec.limits.enforcement } else { Enforcement::BestEffort };
        return Ok(LimitsPlan::Engine(Limits { enforcement: asked, ..spec.limits.clone() }));
    }
    let asked = LimitsAsked { cpus: spec.limits_asked.cpus && binds(spec.limits.cpus), ..spec.limits_asked };
    // The kernel counts a sandbox's processes without a group. Those of `process` count as the caller's own.
    let (lacks, is_asked) = match spec.backend {
        Backend::Process => ("memory, processors and processes", asked.any()),
        _ => ("memory and processors", asked.memory || asked.cpus),
    };
    match &host.limits {
        Ok(_) => Ok(LimitsPlan::Group(spec.limits.clone())),
        Err(missing) if is_asked && spec.limits.enforcement == Enforcement::Required => Err(Error::Refused {
            what: format!("{lacks} cannot be limited: {}", missing.why),
            remedy: Some(format!("{}; or accept a run without them: --limits best-effort", missing.remedy)),
        }),
        Err(missing) => {
            // At each run, so in one line: `lockgate doctor` has the remedy.
            notices.push(format!("{lacks} are not limited: {}{SEE_DOCTOR}", missing.why));
            Ok(match spec.backend {
                Backend::Process => LimitsPlan::Unlimited,
                _ => LimitsPlan::Processes(spec.limits.pids),
            })
        }
    }
}

/// Whether the machine can have more processors than this limit. One that cannot be reached needs nothing that enforces it.
pub(crate) fn binds(cpus: CpuCount) -> bool {
    cgroup::processors().is_none_or(|processors| u64::from(cpus.milli()) < u64::from(processors) * 1000)
}

/// Returns the size of private directories if memory is certainly limited. They live in memory, so it is half of that at most: filling
/// them must not end the run.
pub(super) fn private_room_of(spec: &RunSpec) -> ByteSize {
    spec.limits.disk.min(ByteSize::from_bytes(spec.limits.memory.bytes() / 2))
}

/// Returns the number of files that a private directory of a size may hold.
pub(super) fn inodes(size: ByteSize) -> u64 {
    (size.bytes() / 4096).clamp(1024, 1 << 20)
}
