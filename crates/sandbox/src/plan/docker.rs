//! The steps of the `docker` backend: what an engine is asked for.

use std::path::{Path, PathBuf};

use policy::{ByteSize, RunSpec, WorkspaceMode};

use super::engine::{EngineRun, refusal};
use super::inside::HOME;
use super::limits::{inodes, private_room_of};
use super::linux::show_places;
use crate::caller::Caller;
use crate::error::Error;
use crate::step::Step;
use crate::tool;

pub(super) fn steps(
    spec: &RunSpec,
    caller: &Caller,
    engine: &EngineRun,
    places: (&Path, Option<&Path>),
    tools: &tool::Brought,
    notices: &mut Vec<String>,
) -> Result<Vec<Step>, Error> {
    if let (WorkspaceMode::Overlay, (workspace, Some(changes))) = (spec.workspace_mode, places)
        && let Some((why, remedy)) = refusal(&engine.at, [workspace, changes])
    {
        let what = format!("what is written in the workspace cannot be kept apart: {why}");
        return Err(Error::Refused { what, remedy: Some(remedy.into()) });
    }
    refuse_volumes(places.0, &engine.config.volumes)?;
    if engine.at.makes_user_root() {
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
    show_places(&mut steps, spec, caller, places, tools)?;
    // What walls there are is put up inside, by our own process; `EnterRoot` marks where the root is whole.
    steps.extend([Step::EnterRoot, Step::DropPrivileges, Step::Landlock, Step::Seccomp]);
    Ok(steps)
}

/// What an image keeps in the workspace an engine would make there, as root, on this machine's own disk.
fn refuse_volumes(workspace: &Path, volumes: &[PathBuf]) -> Result<(), Error> {
    match volumes.iter().find(|volume| *volume != workspace && volume.starts_with(workspace)) {
        None => Ok(()),
        Some(volume) => Err(Error::Refused {
            what: format!(
                "the image declares a volume at `{}`, in the workspace, where the engine would make it",
                volume.display()
            ),
            remedy: Some("use another image, or work in another folder".into()),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_keeps_nothing_in_the_workspace() {
        let refused =
            |volume: &str| refuse_volumes(Path::new("/home/a/w"), &["/data".into(), volume.into()]).is_err();
        for (volume, expected) in [
            ("/home/a/w/.github", true),
            ("/home/a/w/src/gen", true),
            ("/home/a/w", false),
            ("/home/a/w2", false),
            ("/home/a", false),
        ] {
            assert_eq!(refused(volume), expected, "{volume}");
        }
    }
}
