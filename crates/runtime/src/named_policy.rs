//! Keeps the policy file that a person named out of the command's reach: the next run obeys it without asking. In a workspace that the
//! command may write to it is shown read-only, and so that neither it nor a folder above it can be exchanged.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use policy::{Backend, MountMode, MountPoint, RunSpec, WorkspaceMode};
use sandbox::Caller;

use crate::error::Error;

/// Adds what keeps a file as it is, if the command could write to it.
///
/// # Errors
/// When it could be written under another name.
pub(crate) fn keep(spec: &mut RunSpec, file: &Path, caller: &Caller) -> Result<(), Error> {
    // A pipe or a descriptor is no file that the next run reads. That there is none is told elsewhere.
    let Ok(file) = caller.resolve(file).canonicalize() else { return Ok(()) };
    let about = match file.metadata() {
        Ok(about) if about.is_file() && spec.backend != Backend::Process => about,
        _ => return Ok(()),
    };
    let real = |path: &Path| caller.resolve(path).canonicalize().unwrap_or_else(|_| path.into());
    let writable = spec.mounts.iter().filter(|mount| mount.mode == MountMode::ReadWrite);
    if let Some(mount) = writable.map(|mount| real(&mount.source)).find(|source| file.starts_with(source)) {
        return Err(refused(&file, &format!("could be written inside, by way of {}", mount.display())));
    }
    let workspace = real(spec.workspace.as_deref().unwrap_or(Path::new(".")));
    let Ok(within) = file.strip_prefix(&workspace) else { return Ok(()) };
    if spec.workspace_mode != WorkspaceMode::ReadWrite || sandbox::is_protected(within) {
        return Ok(());
    }
    if about.nlink() > 1 {
        return Err(refused(&file, "has a second name, by which it could be written inside"));
    }
    let show = |path: PathBuf, mode| MountPoint { source: path.clone(), target: path, mode };
    let mut folders: Vec<PathBuf> =
        file.ancestors().skip(1).take_while(|above| **above != *workspace).map(PathBuf::from).collect();
    folders.reverse();
    // What is a mount of its own inside cannot be renamed or removed there.
    let held = folders.into_iter().map(|folder| show(folder, MountMode::ReadWrite));
    let held: Vec<_> = held.chain([show(file, MountMode::ReadOnly)]).collect();
    spec.mounts.splice(0..0, held);
    Ok(())
}

fn refused(file: &Path, why: &str) -> Error {
    let what =
        format!("the policy {} {why}, and the next run would obey what is written there", file.display());
    let remedy = "keep it outside of what the command may write to".to_owned();
    sandbox::Error::Refused { what, remedy: Some(remedy) }.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mounts(folder: &Path, workspace: &Path, policy: &str, config: &str) -> Result<Vec<String>, Error> {
        let mut layers = policy::Layers::default();
        layers.push(policy::Origin::Flags, toml::from_str(config).unwrap());
        let mut spec = RunSpec { workspace: Some(workspace.into()), ..layers.compile().unwrap() };
        keep(&mut spec, Path::new(policy), &Caller::new(1, 1, folder))?;
        let told = |mount: &MountPoint| {
            let place = mount.target.strip_prefix(workspace).unwrap_or(&mount.target);
            format!("{} {:?}", place.display(), mount.mode)
        };
        Ok(spec.mounts.iter().map(told).collect())
    }

    #[test]
    fn a_policy_in_the_workspace_cannot_be_exchanged() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().canonicalize().unwrap();
        let workspace = folder.join("ws");
        std::fs::create_dir_all(workspace.join("a/b")).unwrap();
        for file in ["out.toml", "ws/p.toml", "ws/lockgate.toml", "ws/a/b/p.toml", "ws/twice.toml"] {
            std::fs::write(folder.join(file), "").unwrap();
        }
        std::fs::hard_link(folder.join("ws/twice.toml"), folder.join("ws/second")).unwrap();
        std::os::unix::fs::symlink("ws/p.toml", folder.join("link.toml")).unwrap();
        let at = |policy: &str| mounts(&folder, &workspace, policy, "").unwrap();
        assert_eq!(at("ws/p.toml"), ["p.toml ReadOnly"]);
        assert_eq!(at("link.toml"), ["p.toml ReadOnly"]);
        assert_eq!(at("ws/a/b/p.toml"), ["a ReadWrite", "a/b ReadWrite", "a/b/p.toml ReadOnly"]);
        for elsewhere in ["out.toml", "ws/lockgate.toml", "/dev/null", "none.toml"] {
            assert!(at(elsewhere).is_empty(), "{elsewhere}");
        }
        for config in
            ["workspace = { mode = \"ro\" }", "workspace = { mode = \"overlay\" }", "backend = \"process\""]
        {
            assert!(mounts(&folder, &workspace, "ws/p.toml", config).unwrap().is_empty(), "{config}");
        }
        let refusal =
            |policy: &str, config: &str| mounts(&folder, &workspace, policy, config).unwrap_err().to_string();
        assert!(refusal("ws/twice.toml", "").contains("a second name"));
        let shown = format!("mount = [{{ source = {folder:?}, target = \"/data\", mode = \"rw\" }}]");
        assert!(refusal("out.toml", &shown).contains("by way of"));
    }
}
