//! Where the sandboxes of a run are made.

use sandbox::Plan;

/// Where a sandbox is made.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Locality {
    /// On this machine, by this program.
    Here,
    /// In containers, by an engine.
    AtEngine,
}

impl Locality {
    pub(crate) fn of(plan: &Plan) -> Self {
        if plan.engine.is_some() { Self::AtEngine } else { Self::Here }
    }
}
