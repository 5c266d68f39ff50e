//! Refuses writable mounts below what an engine shows read-only: it shows them as well, and most make only the outermost mount read-only.

use std::path::Path;

use policy::{MountMode, WorkspaceMode};

use super::container::Protected;
use super::copies;
use crate::error::Error;
use crate::mounted::Mounts;
use crate::plan::Plan;
use crate::step::{Step, Visible};

/// Refuses a plan that shows a folder read-only with a writable mount below it. `protected` are the mounts over its workspace.
pub(super) fn refuse(plan: &Plan, protected: &[Protected]) -> Result<(), Error> {
    let mounts = Mounts::read().map_err(|error| Error::Source {
        path: plan.workspace.clone(),
        why: format!("what is mounted below it cannot be told: /proc/self/mountinfo: {error}"),
    })?;
    refuse_among(&mounts, plan, protected)
}

fn refuse_among(mounts: &Mounts, plan: &Plan, protected: &[Protected]) -> Result<(), Error> {
    let declared = plan.steps.iter().filter_map(read_only);
    let declared = declared.chain(copies::copies(plan).map(|copy| copy.source)).map(|path| (path, &[][..]));
    let covers = protected.iter().filter(|(_, mode)| *mode == MountMode::ReadOnly);
    let covers = covers.map(|(path, _)| (path.as_path(), protected));
    let mut shown = declared.chain(covers);
    match shown.find_map(|(path, covers)| Some((path, first_writable(mounts, path, covers)?))) {
        None => Ok(()),
        Some((path, at)) => Err(Error::Refused {
            what: format!(
                "an engine cannot show `{}` read-only: something is mounted below it, at `{}`, and may stay writable",
                path.display(),
                at.display()
            ),
            remedy: Some("unmount that, mount it read-only, or use --backend linux or container".into()),
        }),
    }
}

/// Returns the first writable mount below a folder that is in none of the covers left to the command within.
fn first_writable<'a>(mounts: &'a Mounts, folder: &Path, covers: &[Protected]) -> Option<&'a Path> {
    let left = |path: &Path| path != folder && path.starts_with(folder);
    let left = covers.iter().filter(|(path, mode)| *mode == MountMode::ReadWrite && left(path));
    mounts.writable_below(folder).find(|at| !left.clone().any(|(path, _)| at.starts_with(path)))
}

/// Returns what a step shows read-only.
fn read_only(step: &Step) -> Option<&Path> {
    match step {
        Step::ShowWorkspace(path, WorkspaceMode::ReadOnly)
        | Step::Show(Visible { source: path, mode: MountMode::ReadOnly, .. }) => Some(path),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::docker::container::fixture::plan;

    #[test]
    fn what_is_mounted_below_what_is_shown_read_only_is_refused() {
        let protected: Vec<Protected> = [
            ("/w/.git", MountMode::ReadWrite),
            ("/w/.git/hooks", MountMode::ReadOnly),
            ("/w/.claude", MountMode::ReadOnly),
            ("/w/.claude/worktrees", MountMode::ReadWrite),
        ]
        .map(|(path, mode)| (path.into(), mode))
        .into();
        let refused = |at: &str, options: &str, mode: WorkspaceMode| {
            let mut plan = plan();
            for step in &mut plan.steps {
                if let Step::ShowWorkspace(_, shown) = step {
                    *shown = mode;
                }
            }
            let list = format!("22 1 0:21 / / rw - ext4 x rw\n23 22 0:22 / {at} {options} - tmpfs x rw\n");
            let protected = if mode == WorkspaceMode::ReadWrite { &protected[..] } else { &[] };
            let refused = refuse_among(&Mounts::parse(list.as_bytes()), &plan, protected);
            refused.err().map(|error| error.to_string())
        };
        // `/data` is a read-only mount of the plan, `/fixtures` a copy.
        for at in ["/w/.git/hooks/x", "/w/.claude/x", "/data/x/y", "/fixtures/x"] {
            let told = refused(at, "rw,nosuid", WorkspaceMode::ReadWrite).unwrap_or_default();
            assert!(told.contains(at) && told.contains("may stay writable"), "{at}: {told}");
            assert_eq!(refused(at, "ro,nosuid", WorkspaceMode::ReadWrite), None, "{at}");
        }
        for at in ["/w", "/w/x", "/w/.git/x", "/w/.git/hooks", "/w/.claude/worktrees/x", "/data", "/other"] {
            assert_eq!(refused(at, "rw", WorkspaceMode::ReadWrite), None, "{at}");
        }
        assert!(refused("/w/x", "rw", WorkspaceMode::ReadOnly).unwrap().contains("/w/x"));
        assert_eq!(refused("/w", "rw", WorkspaceMode::ReadOnly), None);
    }
}
