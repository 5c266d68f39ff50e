//! Refuses declared paths that Podman would read as options of a mount.

use std::path::Path;

use super::Plan;
use super::engine::{EngineKind, is_one_value};
use crate::error::Error;
use crate::step::{Step, Visible};

/// Refuses a plan that shows or copies a path that Podman would read as several options of a mount.
pub(super) fn refuse_options_in_paths(plan: &Plan) -> Result<(), Error> {
    if plan.engine.as_ref().is_none_or(|engine| engine.at.kind != EngineKind::Podman) {
        return Ok(());
    }
    let targets = plan.steps.iter().filter_map(|step| match step {
        Step::Show(Visible { target, .. }) => Some(target.as_path()),
        _ => None,
    });
    let is_unfit = |path: &&Path| !path.to_str().is_some_and(is_one_value);
    match plan.shown().chain(targets).find(is_unfit) {
        None => Ok(()),
        Some(path) => Err(Error::Refused {
            what: format!(
                "Podman cannot show `{}`: it reads a comma, a double quote or a control character in a path as options of a mount",
                path.to_string_lossy().escape_debug()
            ),
            remedy: Some("rename it, or use an engine of Docker's or another --backend".into()),
        }),
    }
}
