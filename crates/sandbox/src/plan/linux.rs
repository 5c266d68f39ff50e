//! The steps of the `linux` backend: the host's system directories, read-only, under a private root.

use std::path::{Path, PathBuf};

use policy::{ByteSize, RunSpec, Wiring, WorkspaceMode};

use super::inputs::PlanInputs;
use super::inside::HOME;
use super::limits::inodes;
use crate::error::Error;
use crate::further_authorities::FurtherAuthorities;
use crate::host::{Host, NoLandlock};
use crate::host_path::SystemPath;
use crate::step::{Step, Visible};

/// Returns the steps of the `linux` backend.
pub(super) fn steps(inputs: &PlanInputs<'_>, notices: &mut Vec<String>) -> Result<Vec<Step>, Error> {
    let &PlanInputs { spec, host, .. } = inputs;
    note_landlock(host, notices);
    let (size, inodes) = private_room(spec, host, notices);
    let mut steps = vec![Step::OpenSources, Step::MountRoot { size, inodes }];
    for path in &host.system {
        steps.push(match path {
            SystemPath::Tree(path) => Step::ShowSystem(path.clone()),
            SystemPath::Link(path, to) => Step::Link { path: path.clone(), to: to.clone() },
        });
    }
    let directories = [("/tmp", 0o1777), ("/var/tmp", 0o1777), ("/run", 0o755), (HOME, 0o700)];
    steps.extend(directories.map(|(path, mode)| Step::Directory(path.into(), mode)));
    // The root is entered before anything of the caller's is shown: to leave the host's root takes long, and the parent, which hands over
    // what is shown, does its own part meanwhile.
    steps.extend([Step::ShowEtc, Step::MountProc, Step::MakeDevices, Step::EnterRoot, Step::SetHostname]);
    show_places(&mut steps, inputs)?;
    finish(&mut steps, spec.wiring, host);
    Ok(steps)
}

/// Adds the steps that show parts of the host: tools, the workspace, mounts and copies.
pub(super) fn show_places(steps: &mut Vec<Step>, inputs: &PlanInputs<'_>) -> Result<(), Error> {
    let &PlanInputs { spec, caller, workspace, tools, .. } = inputs;
    steps.extend(tools.visible.iter().cloned().map(Step::Show));
    steps.push(match (spec.workspace_mode, &inputs.additions.changes) {
        (WorkspaceMode::Overlay, Some(changes)) => {
            Step::OverlayWorkspace { workspace: workspace.into(), changes: changes.clone() }
        }
        (WorkspaceMode::Overlay, None) => {
            let what = "there is no place to keep what is written in the workspace apart".into();
            return Err(Error::Refused { what, remedy: None });
        }
        (mode, _) => Step::ShowWorkspace(workspace.into(), mode),
    });
    for mount in &spec.mounts {
        let source = caller.resolve(&mount.source);
        let target = inside(&caller.resolve(&mount.target))?;
        steps.push(Step::Show(Visible { source, target, mode: mount.mode }));
    }
    for copy in &spec.copies {
        steps.push(Step::Copy { source: caller.resolve(&copy.source), target: inside(&copy.target)? });
    }
    if spec.workspace_mode == WorkspaceMode::ReadWrite {
        steps.push(Step::Protect);
    }
    Ok(())
}

/// Adds the last steps of every sandbox: its network and its restrictions.
pub(super) fn finish(steps: &mut Vec<Step>, wiring: Wiring, host: &Host) {
    match wiring {
        Wiring::Redirect => {
            // Early: it needs nothing from the parent, which does its own part meanwhile; and the sidecar is ready to serve
            // before the last step, so that nobody waits for it.
            let at = steps.iter().position(|step| *step == Step::MakeDevices).map_or(0, |at| at + 1);
            steps.splice(at..at, [Step::WireNetwork, Step::HandOutListeners]);
        }
        Wiring::Veth => steps.push(Step::JoinLink),
    }
    steps.push(Step::DropPrivileges);
    if host.landlock_for_command().is_ok() {
        steps.push(Step::Landlock);
    }
    steps.push(Step::Seccomp);
}

pub(super) fn note_landlock(host: &Host, notices: &mut Vec<String>) {
    if let Err(NoLandlock { why, .. }) = host.landlock_for_command() {
        notices.push(format!("{why}; mounts alone keep files apart"));
    }
}

/// Returns a target inside, unchanged. Refuses the sandbox's own directories.
pub(super) fn inside(target: &Path) -> Result<PathBuf, Error> {
    let covers = ["/usr", "/etc", "/bin", "/lib", "/sbin", "/tmp", "/home", "/run", "/var"];
    if covers.iter().any(|c| target == Path::new(c)) {
        let what = format!("nothing can be shown at `{}` itself; name a place below it", target.display());
        return Err(Error::Refused { what, remedy: None });
    }
    let ours = target
        .components()
        .nth(1)
        .is_some_and(|c| c.as_os_str().as_encoded_bytes().starts_with(b".lockgate"));
    if ours {
        let what = format!(
            "nothing can be shown at `{}`: names that begin so are this program's own",
            target.display()
        );
        return Err(Error::Refused { what, remedy: None });
    }
    Ok(target.into())
}

/// Returns the size of private directories and the number of files in them. They live in memory, so the size is half of the memory limit
/// at most: filling them must not end the run. Nor may it end other processes of this machine: unless a size was asked for, it is half of
/// the machine's memory at most, which is the kernel's own bound, tmpfs(5).
pub(super) fn private_room(spec: &RunSpec, host: &Host, notices: &mut Vec<String>) -> (ByteSize, u64) {
    let mut size = spec.limits.disk;
    let half = ByteSize::from_bytes(spec.limits.memory.bytes() / 2);
    if host.limits.is_ok() && size > half {
        if spec.disk_asked {
            notices.push(format!(
                "private directories hold {half}: they live in memory, and take half of it at most; --memory, or `limits.memory` in the policy, sets it"
            ));
        }
        size = half;
    }
    if !spec.disk_asked {
        size = size.min(ByteSize::from_bytes(host.memory.bytes() / 2));
    }
    (size, inodes(size))
}

/// Adds the step that trusts further authorities, as late as the right to mount lasts: the sidecar makes the run's own and gets ready
/// meanwhile, with the network that was wired before.
pub(super) fn trust_authorities(
    steps: &mut Vec<Step>,
    bundle: Option<PathBuf>,
    further: &FurtherAuthorities,
) {
    if further.is_empty() {
        return;
    }
    let at = steps.iter().position(|step| *step == Step::DropPrivileges).unwrap_or(steps.len());
    steps.insert(at, Step::TrustAuthorities(bundle, further.clone()));
}

/// Adds a step that reads the host's authorities, which takes longest, while the parent does its own part. Not if something that is shown
/// later could cover the bundle or a Java runtime.
pub(super) fn read_authorities_early(steps: &mut Vec<Step>, java: &[&Path]) {
    let bundle = steps.iter().find_map(|step| match step {
        Step::TrustAuthorities(bundle, _) => bundle.clone(),
        _ => None,
    });
    let (Some(bundle), Some(at)) = (bundle, steps.iter().position(|step| *step == Step::MakeDevices)) else {
        return;
    };
    // The whole top-level directory, because links in it lead to other places in it, and whatever else they may lead to.
    let tree: PathBuf = bundle.components().take(2).collect();
    let shown = steps.iter().filter_map(|step| match step {
        Step::ShowSystem(path) | Step::Link { path, .. } => Some(path.as_path()),
        _ => None,
    });
    let places = [tree.as_path(), Path::new("/usr"), Path::new("/opt")];
    // Where a runtime has its store. What else is in a folder with programs is not looked at.
    let java: Vec<PathBuf> =
        java.iter().flat_map(|home| ["lib", "jre"].map(|part| home.join(part))).collect();
    let read: Vec<&Path> = shown.chain(places).chain(java.iter().map(PathBuf::as_path)).collect();
    let lies_over =
        |covered: &Path| read.iter().any(|read| covered.starts_with(read) || read.starts_with(covered));
    if !steps.iter().filter_map(Step::covers).any(lies_over) {
        steps.insert(at + 1, Step::ReadAuthorities(bundle));
    }
}
