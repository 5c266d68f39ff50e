//! The steps of the `docker` backend: the requests to a container engine.

use std::path::{Path, PathBuf};

use policy::{ByteSize, MountMode, WorkspaceMode};

use super::engine::{EngineRun, refusal, refuse_unfit_volumes};
use super::inputs::PlanInputs;
use super::inside::{HOME, is_plain};
use super::limits::{inodes, private_room_of};
use super::linux::show_places;
use crate::error::Error;
use crate::step::Step;

/// Returns the steps of the `docker` backend.
pub(super) fn steps(
    inputs: &PlanInputs<'_>,
    engine: &EngineRun,
    notices: &mut Vec<String>,
) -> Result<Vec<Step>, Error> {
    let &PlanInputs { spec, workspace, additions, .. } = inputs;
    if let (WorkspaceMode::Overlay, Some(changes)) = (spec.workspace_mode, &additions.changes)
        && let Some((why, remedy)) = refusal([workspace, changes.as_path()])
    {
        let what = format!("what is written in the workspace cannot be kept apart: {why}");
        return Err(Error::Refused { what, remedy: Some(remedy.into()) });
    }
    let written = spec.mounts.iter().filter(|mount| mount.mode == MountMode::ReadWrite);
    let written = written.map(|mount| mount.target.as_path());
    refuse_unfit_volumes(&engine.config.volumes)?;
    refuse_volumes([workspace].into_iter().chain(written.clone()), &engine.config.volumes)?;
    refuse_volumes([workspace].into_iter().chain(written), &engine.config.linked)?;
    if engine.at.makes_user_root() {
        notices.push("the engine runs without root: its root is you, and the command's user inside".into());
    }
    let room = private_room_of(spec);
    let mut steps =
        vec![Step::RunNetwork, Step::SidecarContainer, Step::AgentContainer(engine.image.clone())];
    // At an engine each is a file system of its own: they share the room in eighths.
    let directories = [("/tmp", 0o1777, 3), ("/var/tmp", 0o1777, 1), ("/run", 0o755, 1), (HOME, 0o700, 3)];
    steps.extend(directories.map(|(path, mode, eighths)| {
        let size = ByteSize::from_bytes(room.bytes() / 8 * eighths);
        Step::PrivateDirectory { path: path.into(), mode, size, inodes: inodes(size) }
    }));
    show_places(&mut steps, inputs)?;
    // Our own process sets up these restrictions inside. `EnterRoot` marks the point at which the root is complete.
    steps.extend([Step::EnterRoot, Step::DropPrivileges, Step::Landlock, Step::Seccomp]);
    Ok(steps)
}

/// Refuses an image that declares a volume in a host folder: the engine would make the directory there, as root.
fn refuse_volumes<'a>(mut folders: impl Iterator<Item = &'a Path>, volumes: &[PathBuf]) -> Result<(), Error> {
    let refused = |what: String| Error::Refused {
        what,
        remedy: Some("use another image, or work in another folder".into()),
    };
    if let Some(volume) = volumes.iter().find(|volume| !is_plain(volume)) {
        let volume = volume.display();
        return Err(refused(format!("the image declares a volume at `{volume}`, which is no plain path")));
    }
    let lies_in =
        |folder: &Path| volumes.iter().find(|volume| *volume != folder && volume.starts_with(folder));
    match folders.find_map(|folder| Some((folder, lies_in(folder)?))) {
        None => Ok(()),
        Some((folder, volume)) => Err(refused(format!(
            "the image declares a volume at `{}`, in `{}`, where the engine would make it",
            volume.display(),
            folder.display()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_keeps_nothing_in_a_folder_of_this_machine() {
        let refused = |volume: &str| {
            let folders = ["/home/a/w", "/data"].map(Path::new);
            refuse_volumes(folders.into_iter(), &["/var/lib/x".into(), volume.into()]).is_err()
        };
        for (volume, expected) in [
            ("/home/a/w/.github", true),
            ("/home/a/w/src/gen", true),
            ("/data/db", true),
            ("/home/a/x/../w/.github", true),
            ("home/a/w/.github", true),
            ("/home/a/w", false),
            ("/home/a/w2", false),
            ("/home/a", false),
        ] {
            assert_eq!(refused(volume), expected, "{volume}");
        }
    }
}
