//! Copies at an engine: it mounts each source at a place of its own, and the container copies from there.

use std::path::{Path, PathBuf};

use crate::plan::Plan;
use crate::step::Step;

/// The mount points of the sources.
const PLACE: &str = "/.lockgate-copies";

/// One copy of a plan.
pub(super) struct PlannedCopy<'a> {
    /// The path of the host.
    pub(super) source: &'a Path,
    /// Where the engine mounts it.
    pub(super) place: PathBuf,
    /// Where the command finds the copy.
    pub(super) target: &'a Path,
}

/// Returns the copies of a plan, in its order.
pub(super) fn copies(plan: &Plan) -> impl Iterator<Item = PlannedCopy<'_>> {
    let paths = plan.steps.iter().filter_map(|step| match step {
        Step::Copy { source, target } => Some((source, target)),
        _ => None,
    });
    let place = |number: usize| Path::new(PLACE).join(number.to_string());
    paths.enumerate().map(move |(number, (source, target))| PlannedCopy {
        source,
        place: place(number),
        target,
    })
}
