//! Keeps the policy file that a person named out of the command's reach: the next run obeys it without asking. In a workspace that the
//! command may write to, the file is shown read-only, and the folders on the way to it cannot be exchanged. A link on that way that the
//! command could exchange is refused.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use policy::{Backend, MountMode, MountPoint, RunSpec, WorkspaceMode};
use sandbox::Caller;

use crate::error::Error;
use crate::way::Way;

/// Adds what keeps a file as it is, if the command could write to it.
///
/// # Errors
/// When it could be written under another name, or what is named could become another file.
pub(crate) fn keep(spec: &mut RunSpec, file: &Path, caller: &Caller) -> Result<(), Error> {
    let named = caller.resolve(file);
    // A pipe or a descriptor is no file that the next run reads. That there is none is told elsewhere.
    let Ok(file) = named.canonicalize() else { return Ok(()) };
    let about = match file.metadata() {
        Ok(about) if about.is_file() && spec.backend != Backend::Process => about,
        _ => return Ok(()),
    };
    let way = Way::along(&named)
        .map_err(|error| refused(&named, &format!("cannot be followed to its file ({error})"), ELSEWHERE))?;
    let real = |path: &Path| caller.resolve(path).canonicalize().unwrap_or_else(|_| path.into());
    let writable = spec.mounts.iter().filter(|mount| mount.mode == MountMode::ReadWrite);
    let mounts: Vec<_> = writable.map(|mount| real(&mount.source)).collect();
    if let Some(mount) = mounts.iter().find(|source| file.starts_with(source)) {
        let why = format!("could be written inside, by way of {}", mount.display());
        return Err(refused(&file, &why, ELSEWHERE));
    }
    let workspace = real(spec.workspace.as_deref().unwrap_or(Path::new(".")));
    let is_written = spec.workspace_mode == WorkspaceMode::ReadWrite;
    let in_workspace = |path: &Path| {
        let within = path.strip_prefix(&workspace).ok().filter(|within| !within.as_os_str().is_empty());
        is_written && within.is_some_and(|within| !sandbox::is_protected(within))
    };
    let in_mount = |path: &Path| mounts.iter().any(|source| path != source && path.starts_with(source));
    let links = way.links.iter().filter(|link| in_workspace(link) || in_mount(link));
    if let Some(place) = links.chain(way.folders.iter().filter(|folder| in_mount(folder))).next() {
        let why = format!("is named by way of {}, which the command could exchange", place.display());
        return Err(refused(&named, &why, &format!("name the file itself: {}", file.display())));
    }
    // What is protected is held with the folders above it.
    let is_held = is_written && file.strip_prefix(&workspace).is_ok_and(sandbox::is_protected);
    let show = |path: PathBuf, mode| MountPoint { source: path.clone(), target: path, mode };
    // What is a mount of its own inside cannot be renamed or removed there.
    let held = way.folders.into_iter().filter(|folder| in_workspace(folder));
    let held = held.filter(|folder| !(is_held && file.starts_with(folder)));
    let mut held: Vec<_> = held.map(|folder| show(folder, MountMode::ReadWrite)).collect();
    if in_workspace(&file) {
        if about.nlink() > 1 {
            return Err(refused(&file, "has a second name, by which it could be written inside", ELSEWHERE));
        }
        held.push(show(file, MountMode::ReadOnly));
    }
    spec.mounts.splice(0..0, held);
    Ok(())
}

const ELSEWHERE: &str = "keep it outside of what the command may write to";

fn refused(file: &Path, why: &str, remedy: &str) -> Error {
    let what =
        format!("the policy {} {why}, and the next run would obey what is written there", file.display());
    sandbox::Error::Refused { what, remedy: Some(remedy.to_owned()) }.into()
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

    #[test]
    fn no_link_on_the_way_to_a_policy_is_the_commands() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().canonicalize().unwrap();
        let workspace = folder.join("ws");
        std::fs::create_dir_all(workspace.join("policies/deep")).unwrap();
        std::fs::create_dir_all(workspace.join(".git/hooks")).unwrap();
        std::fs::create_dir_all(folder.join("shown/below")).unwrap();
        for file in ["out.toml", "ws/policies/p.toml", "ws/.git/hooks/p.toml"] {
            std::fs::write(folder.join(file), "").unwrap();
        }
        for (link, target) in [
            ("ws/ci.toml", "policies/p.toml"),
            ("ws/conf", "policies"),
            ("ws/out.toml", "../out.toml"),
            ("ws/whole", "/"),
            ("by-way", "ws/conf/p.toml"),
            ("to-ws", "ws"),
            ("shown/out.toml", "../out.toml"),
        ] {
            std::os::unix::fs::symlink(target, folder.join(link)).unwrap();
        }
        let told = |policy: &str, config: &str| mounts(&folder, &workspace, policy, config);
        let whole = format!("ws/whole{}/out.toml", folder.display());
        for (policy, link) in [
            ("ws/ci.toml", "ws/ci.toml"),
            ("ws/conf/p.toml", "ws/conf"),
            ("ws/conf/../../out.toml", "ws/conf"),
            ("ws/out.toml", "ws/out.toml"),
            ("by-way", "ws/conf"),
            ("to-ws/ci.toml", "ws/ci.toml"),
            (&whole, "ws/whole"),
        ] {
            let error = told(policy, "").unwrap_err();
            let link = format!("by way of {},", folder.join(link).display());
            assert!(error.to_string().contains(&link), "{policy}: {error}");
            let real = folder.join(policy).canonicalize().unwrap();
            assert!(error.remedy().unwrap().ends_with(real.to_str().unwrap()), "{policy}");
            for config in ["workspace = { mode = \"ro\" }", "backend = \"process\""] {
                assert!(told(policy, config).unwrap().is_empty(), "{policy}: {config}");
            }
        }
        assert_eq!(
            told("to-ws/policies/p.toml", "").unwrap(),
            ["policies ReadWrite", "policies/p.toml ReadOnly"]
        );
        // A folder that the path leaves again must stay what it is, too.
        let held = ["policies ReadWrite", "policies/deep ReadWrite"];
        assert_eq!(told("ws/policies/deep/../../../out.toml", "").unwrap(), held);
        let shown =
            format!("mount = [{{ source = {:?}, target = \"/data\", mode = \"rw\" }}]", folder.join("shown"));
        for policy in ["shown/out.toml", "shown/below/../../out.toml"] {
            let error = told(policy, &shown).unwrap_err().to_string();
            assert!(error.contains("is named by way of"), "{policy}: {error}");
        }
        assert!(told("ws/.git/hooks/p.toml", "").unwrap().is_empty());
        assert_eq!(told("shown/../out.toml", &shown).unwrap(), ["/data ReadWrite"]);
    }
}
