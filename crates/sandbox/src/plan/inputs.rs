//! The inputs of every backend's steps.

use std::path::Path;

use policy::RunSpec;

use super::additions::Additions;
use crate::caller::Caller;
use crate::host::Host;
use crate::tool::Brought;

/// What a backend makes its steps from.
#[derive(Clone, Copy)]
pub(super) struct PlanInputs<'a> {
    pub(super) spec: &'a RunSpec,
    pub(super) caller: &'a Caller,
    pub(super) host: &'a Host,
    pub(super) additions: &'a Additions,
    /// The workspace, absolute.
    pub(super) workspace: &'a Path,
    /// The home inside.
    pub(super) home: &'a Path,
    pub(super) tools: &'a Brought,
}
