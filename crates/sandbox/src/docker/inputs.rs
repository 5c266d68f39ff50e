//! What the parent gives to the shim of a run.

use std::ffi::OsString;
use std::os::fd::OwnedFd;

use super::brief::Shown;
use super::container::Protected;
use super::slots::Slots;
use crate::launch::Stdio;
use crate::plan::Plan;
use crate::plan::engine::EngineAt;
use crate::run_network::Visit;

/// The inputs of a shim: its plan, its descriptors, and the engine.
pub(super) struct ShimInputs<'a> {
    pub(super) plan: &'a Plan,
    pub(super) command: &'a [OsString],
    pub(super) stdio: Stdio,
    pub(super) control: OwnedFd,
    /// The socket to the stand-in, the sidecar's process on this machine.
    pub(super) stand_in: OwnedFd,
    /// The socket broker, which learns a companion's network and asks for its health.
    pub(super) broker: Option<OwnedFd>,
    /// The networks of companions that the sidecar joins.
    pub(super) visits: Vec<Visit>,
    pub(super) engine: &'a EngineAt,
    /// The slots at the engine.
    pub(super) slots: Slots,
    /// How many sidecars may wait in the pool for later runs.
    pub(super) pool: usize,
    pub(super) image: &'a str,
    /// Where the agent's container has our own binary.
    pub(super) place: String,
    /// The bind mounts, and the files they must be.
    pub(super) shown: Vec<Shown>,
    /// The protected paths of the workspace, and how each may be used.
    pub(super) protected: Vec<Protected>,
    /// Notices about what is weaker than planned.
    pub(super) notices: Vec<String>,
    /// The socket on which the parent hands over the certificate of the run's authority, if there is one.
    pub(super) hand: OwnedFd,
    /// The socket on which the remover is handed the run lock, if objects may be removed behind the run.
    pub(super) run_lock: Option<OwnedFd>,
}

/// Returns the name of the agent's container of a run. S1.6
pub(super) fn agent_name(plan: &Plan) -> String {
    format!("lockgate-agent-{}", plan.run)
}
