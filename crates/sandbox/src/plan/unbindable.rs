//! Refuses unbindable mounts in what a run of root's is shown. The kernel leaves them out of a tree that is cloned, mount_namespaces(7), so
//! what they cover would be shown. Other runs are shown the mounts of a namespace of their own, in which none is unbindable.

use super::Plan;
use super::refused::untold;
use crate::error::Error;
use crate::mounted::MountsOnceRead;
use crate::path_identity::resolved;
use crate::step::{Step, TreeSource};

pub(super) fn refuse(plan: &Plan, mounts: &MountsOnceRead) -> Result<(), Error> {
    if !plan.identity.is_private() {
        return Ok(());
    }
    let mounts = mounts.get().map_err(|error| untold(&plan.workspace, &error))?;
    if !mounts.have_unbindable() {
        return Ok(());
    }
    let trees = plan.steps.iter().flat_map(Step::trees);
    let mut shown = trees.filter_map(|tree| match tree {
        TreeSource::Path(path, _) | TreeSource::State(path) => Some(path),
        TreeSource::Layer(_) => None,
    });
    match shown.find_map(|path| Some((path, mounts.first_unbindable(&resolved(path))?))) {
        None => Ok(()),
        Some((path, at)) => Err(Error::Refused {
            what: format!(
                "`{}` cannot be shown inside: the mount at `{}` is unbindable",
                path.display(),
                at.display()
            ),
            remedy: Some(format!("mount --make-private {}", at.display())),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::ids::Identity;
    use crate::plan::tests::planned;

    #[test]
    fn an_unbindable_mount_is_not_shown_to_a_run_of_roots() {
        let plan = planned("copy = [{ source = '/nonesuch/data', target = '/home/agent/c' }]").unwrap();
        let private = Plan { identity: Identity::with_sidecar_id(0x7000_0000), ..plan.clone() };
        let told = |plan: &Plan, at: &str, kind: &str| {
            let real = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
            let mounts = MountsOnceRead::of(&format!("{real}9999 1 9:9 / {at} rw {kind} - x x rw\n"));
            refuse(plan, &mounts).map_err(|error| (error.to_string(), error.remedy().unwrap()))
        };
        for at in ["/nonesuch/data", "/nonesuch/data/x", "/home/me/project", "/home/me/project/.git"] {
            let (what, remedy) = told(&private, at, "unbindable").unwrap_err();
            assert!(what.contains(&format!("`{at}` is unbindable")), "{what}");
            assert_eq!(remedy, format!("mount --make-private {at}"));
            assert_eq!(told(&private, at, "shared:7"), Ok(()), "{at}");
            assert_eq!(told(&plan, at, "unbindable"), Ok(()), "{at}");
        }
        assert_eq!(told(&private, "/nonesuch/other", "unbindable"), Ok(()));
    }
}
