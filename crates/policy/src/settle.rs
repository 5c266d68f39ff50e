//! Checks of companions and inbound ports after all layers: against the backend, and against each other.

use crate::backend::Backend;
use crate::companion_ports::CompanionPorts;
use crate::error::ConfigError;
use crate::rules::Policy;
use crate::spec::RunSpec;

/// The most companions of a run. Each costs the memory of a sandbox and a sidecar.
const MOST_COMPANIONS: usize = 16;
/// The most inbound ports of a run.
const MOST_PORTS: usize = 32;

/// Completes the companions' policies. A companion without rules of its own gets the command's, none gets its credentials, and each
/// may reach the companions before it.
pub(crate) fn companions(spec: &mut RunSpec) -> Result<(), ConfigError> {
    if spec.companions.is_empty() {
        return Ok(());
    }
    let refuse = |problem: String| ConfigError::new("the run", "companion", problem);
    if spec.backend == Backend::Process {
        return Err(refuse(format!("backend `{}` has no companions", spec.backend))
            .with_hint("use `linux`, `container` or `docker`"));
    }
    if spec.companions.len() > MOST_COMPANIONS {
        return Err(refuse(format!(
            "there are {}, and a run has {MOST_COMPANIONS} at most",
            spec.companions.len()
        )));
    }
    let mut beside = Vec::new();
    for companion in &mut spec.companions {
        let rules = match companion.own_rules {
            true => Policy { ceiling: spec.policy.ceiling.clone(), ..companion.policy.clone() },
            false => spec.policy.clone(),
        };
        companion.policy = Policy { providers: Vec::new(), companions: beside.clone(), ..rules };
        beside.push(CompanionPorts { name: companion.name.clone(), ports: companion.ports.clone() });
    }
    spec.policy.companions = beside;
    Ok(())
}

/// Refuses a port that is declared twice, and a backend without inbound ports.
pub(crate) fn inbound(spec: &RunSpec) -> Result<(), ConfigError> {
    let refuse = |problem: String| ConfigError::new("the run", "inbound", problem);
    if spec.inbound.is_empty() {
        return Ok(());
    }
    if spec.inbound.len() > MOST_PORTS {
        return Err(refuse(format!("there are {}, and a run has {MOST_PORTS} at most", spec.inbound.len())));
    }
    if spec.backend == Backend::Process {
        let problem = format!("backend `{}` opens no ports of its own", spec.backend);
        return Err(refuse(problem).with_hint("use `linux`, `container` or `docker`"));
    }
    for (index, inbound) in spec.inbound.iter().enumerate() {
        if spec.inbound[..index].iter().any(|other| other.host_port == inbound.host_port) {
            return Err(refuse(format!("port {} of this machine is asked for twice", inbound.host_port)));
        }
    }
    Ok(())
}
