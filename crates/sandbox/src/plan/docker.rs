//! The steps of the `docker` backend: what an engine is asked for.

use std::path::Path;

use policy::{ByteSize, RunSpec, WorkspaceMode};

use super::linux::show_places;
use super::{HOME, inodes, private_room_of};
use crate::caller::Caller;
use crate::docker::EngineRun;
use crate::error::Error;
use crate::step::Step;
use crate::tool;

pub(super) fn steps(
    spec: &RunSpec,
    caller: &Caller,
    engine: &EngineRun,
    workspace: &Path,
    tools: &tool::Brought,
    notices: &mut Vec<String>,
) -> Result<Vec<Step>, Error> {
    if spec.workspace_mode == WorkspaceMode::Overlay {
        return Err(Error::Refused {
            what: "backend `docker` cannot keep what is written in a workspace apart".into(),
            remedy: Some("use --backend container, or --workspace-mode ro".into()),
        });
    }
    if !spec.builtin_tools.is_empty() {
        return Err(Error::Refused {
            what: "backend `docker` cannot bring in what `builtin_tools` name".into(),
            remedy: Some("use --backend container".into()),
        });
    }
    if engine.at.rootless {
        notices.push("the engine runs without root: its root is you, and the command's user inside".into());
    }
    let room = private_room_of(spec);
    let mut steps =
        vec![Step::RunNetwork, Step::SidecarContainer, Step::AgentContainer(engine.image.clone())];
    // Each is a file system of its own at an engine: eighths, so that all of them hold what one would.
    let directories = [("/tmp", 0o1777, 3), ("/var/tmp", 0o1777, 1), ("/run", 0o755, 1), (HOME, 0o700, 3)];
    steps.extend(directories.map(|(path, mode, eighths)| {
        let size = ByteSize::from_bytes(room.bytes() / 8 * eighths);
        Step::PrivateDirectory { path: path.into(), mode, size, inodes: inodes(size) }
    }));
    show_places(&mut steps, spec, caller, (workspace, None), tools)?;
    // What walls there are is put up inside, by our own process; `EnterRoot` marks where the root is whole.
    steps.extend([Step::EnterRoot, Step::DropPrivileges, Step::Landlock, Step::Seccomp]);
    Ok(steps)
}
