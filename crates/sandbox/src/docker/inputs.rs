//! What the shim of a run is given by whoever starts it.

use std::ffi::OsString;
use std::os::fd::OwnedFd;

use super::container::Protected;
use super::inside::Shown;
use super::slots::Slots;
use crate::launch::Stdio;
use crate::plan::Plan;
use crate::plan::engine::EngineAt;
use crate::run_network::Visit;

/// What a shim is given.
pub(super) struct ShimInputs<'a> {
    pub(super) plan: &'a Plan,
    pub(super) command: &'a [OsString],
    pub(super) stdio: Stdio,
    pub(super) control: OwnedFd,
    /// To the sidecar's process on this machine.
    pub(super) link: OwnedFd,
    /// On which its parent is told and asks for what is known of a companion.
    pub(super) broker: Option<OwnedFd>,
    /// The networks of companions, on which the sidecar has a place.
    pub(super) visits: Vec<Visit>,
    pub(super) engine: &'a EngineAt,
    /// Where slots at it are taken.
    pub(super) slots: Slots,
    /// How many sidecars may wait there for later runs.
    pub(super) pool: usize,
    pub(super) image: &'a str,
    /// What is shown, and what it must be.
    pub(super) shown: Vec<Shown>,
    /// What of the workspace is protected, and how it may be used all the same.
    pub(super) protected: Vec<Protected>,
    /// What turned out weaker than planned.
    pub(super) notices: Vec<String>,
    /// Where the parent hands over the certificate of the run's authority, where there is one.
    pub(super) hand: OwnedFd,
    /// Where whoever takes away behind the run is handed the run's mark of life, where that may be.
    pub(super) mark: Option<OwnedFd>,
}

/// The name of a run's container. S1.6
pub(super) fn agent_name(plan: &Plan) -> String {
    format!("lockgate-agent-{}", plan.run)
}
