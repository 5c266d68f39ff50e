//! How limits are held, and how much the private directories hold.

use policy::{Backend, ByteSize, Enforcement, Limits, RunSpec};

use crate::error::Error;
use crate::host::Host;

/// How limits are held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LimitsPlan {
    /// By a control group.
    Group(Limits),
    /// By the engine.
    Engine(Limits),
    /// Not at all, but for the number of processes.
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
        // What is held is seen in the container alone: of what nobody asked for, its lack is a notice.
        let asked = if spec.limits_asked.any() { spec.limits.enforcement } else { Enforcement::BestEffort };
        return Ok(LimitsPlan::Engine(Limits { enforcement: asked, ..spec.limits.clone() }));
    }
    // A sandbox's own processes can be counted without a group; those of `process` are the caller's as any other.
    let (lacks, is_asked) = match spec.backend {
        Backend::Process => ("memory, processors and processes", spec.limits_asked.any()),
        _ => ("memory and processors", spec.limits_asked.memory_or_cpus),
    };
    match &host.limits {
        Ok(_) => Ok(LimitsPlan::Group(spec.limits.clone())),
        Err(missing) if is_asked && spec.limits.enforcement == Enforcement::Required => Err(Error::Refused {
            what: format!("{lacks} cannot be limited: {}", missing.why),
            remedy: Some(format!("{}; or accept a run without them: --limits best-effort", missing.remedy)),
        }),
        Err(missing) => {
            notices.push(format!(
                "{lacks} are not limited: {}. To change that, {}",
                missing.why, missing.remedy
            ));
            Ok(match spec.backend {
                Backend::Process => LimitsPlan::Unlimited,
                _ => LimitsPlan::Processes(spec.limits.pids),
            })
        }
    }
}

/// How much the private directories hold where memory is surely limited: they live in it, so half of it at most, or filling
/// them would end the run.
pub(super) fn private_room_of(spec: &RunSpec) -> ByteSize {
    spec.limits.disk.min(ByteSize::from_bytes(spec.limits.memory.bytes() / 2))
}

/// How many files a private directory of a size may hold.
pub(super) fn inodes(size: ByteSize) -> u64 {
    (size.bytes() / 4096).clamp(1024, 1 << 20)
}
