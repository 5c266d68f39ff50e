//! Keeps the policy file that a person named out of the command's reach: the next run obeys it without asking. In a workspace that the
//! command may write to, the file is shown read-only, and the folders on the way to it cannot be exchanged. A link on that way that the
//! command could exchange is refused, and so is a second name of any of them that is shown for writing, as by a bind mount.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use policy::{Backend, MountMode, MountPoint, RunSpec, WorkspaceMode};
use sandbox::{Caller, Mounts, MountsOnceRead, Place};

use crate::error::Error;
use crate::way::Way;

/// Adds what keeps a file as it is, if the command could write to it.
///
/// # Errors
/// When it could be written under another name, or what is named could become another file.
pub(crate) fn keep(
    spec: &mut RunSpec,
    file: &Path,
    caller: &Caller,
    mounts: &MountsOnceRead,
) -> Result<(), Error> {
    let named = caller.resolve(file);
    // A pipe or a descriptor is no file that the next run reads. That there is none is told elsewhere.
    let Ok(file) = named.canonicalize() else { return Ok(()) };
    if !file.is_file() || spec.backend == Backend::Process {
        return Ok(());
    }
    let way = Way::along(&named)
        .map_err(|error| refused(&named, &format!("cannot be followed to its file ({error})"), ELSEWHERE))?;
    let shown = Shown::of(spec, caller);
    if let Some(mount) = shown.mounts.iter().find(|source| file.starts_with(source)) {
        let why = format!("could be written inside, by way of {}", mount.display());
        return Err(refused(&file, &why, ELSEWHERE));
    }
    let links = way.links.iter().filter(|link| shown.in_workspace(link) || shown.in_mount(link));
    if let Some(place) = links.chain(way.folders.iter().filter(|folder| shown.in_mount(folder))).next() {
        let why = format!("is named by way of {}, which the command could exchange", place.display());
        return Err(refused(&named, &why, &format!("name the file itself: {}", file.display())));
    }
    shown.refuse_other_names(&named, &file, &way, mounts)?;
    // What is protected is held with the folders above it.
    let is_held = shown.is_written && file.strip_prefix(&shown.workspace).is_ok_and(sandbox::is_protected);
    let show = |path: PathBuf, mode| MountPoint { source: path.clone(), target: path, mode };
    // What is a mount of its own inside cannot be renamed or removed there.
    let held = way.folders.into_iter().filter(|folder| shown.in_workspace(folder));
    let held = held.filter(|folder| !(is_held && file.starts_with(folder)));
    let mut held: Vec<_> = held.map(|folder| show(folder, MountMode::ReadWrite)).collect();
    if shown.in_workspace(&file) {
        held.push(show(file, MountMode::ReadOnly));
    }
    spec.mounts.splice(0..0, held);
    Ok(())
}
/// What the command may write to.
struct Shown {
    workspace: PathBuf,
    is_written: bool,
    /// The sources of what else is shown for writing.
    mounts: Vec<PathBuf>,
}

impl Shown {
    fn of(spec: &RunSpec, caller: &Caller) -> Self {
        let real = |path: &Path| caller.resolve(path).canonicalize().unwrap_or_else(|_| path.into());
        let writable = spec.mounts.iter().filter(|mount| mount.mode == MountMode::ReadWrite);
        Self {
            workspace: real(spec.workspace.as_deref().unwrap_or(Path::new("."))),
            is_written: spec.workspace_mode == WorkspaceMode::ReadWrite,
            mounts: writable.map(|mount| real(&mount.source)).collect(),
        }
    }

    fn in_workspace(&self, path: &Path) -> bool {
        let within = path.strip_prefix(&self.workspace).ok().filter(|within| !within.as_os_str().is_empty());
        self.is_written && within.is_some_and(|within| !sandbox::is_protected(within))
    }

    fn in_mount(&self, path: &Path) -> bool {
        self.mounts.iter().any(|source| path != source && path.starts_with(source))
    }

    fn writable(&self) -> impl Iterator<Item = &Path> {
        self.is_written.then_some(&self.workspace).into_iter().chain(&self.mounts).map(PathBuf::as_path)
    }

    /// Refuses a file, or a link or a folder on the way to it, that the command could change by another name.
    fn refuse_other_names(
        &self,
        named: &Path,
        file: &Path,
        way: &Way,
        mounts: &MountsOnceRead,
    ) -> Result<(), Error> {
        if self.writable().next().is_none() {
            return Ok(());
        }
        let list = mounts.get().map_err(|error| {
            let why = format!("cannot be compared with what is shown: /proc/self/mountinfo: {error}");
            refused(named, &why, "mount /proc")
        })?;
        let own = list.place_of(file);
        let names = own.iter().flat_map(|place| self.names_of(place, &list));
        let is_it = |name: &PathBuf| name != file && is_one_file(name, file);
        let is_shown =
            |name: &PathBuf| self.in_workspace(name) || self.mounts.iter().any(|it| name.starts_with(it));
        if let Some(name) = names.filter(is_it).find(is_shown) {
            return Err(refused(
                file,
                &format!("could be written inside, by way of {}", name.display()),
                ELSEWHERE,
            ));
        }
        for path in way.links.iter().chain(&way.folders) {
            let Some(place) = place_of_name(path, &list) else { continue };
            let names = self.names_of(&place, &list).into_iter().filter(|name| name != path);
            let mut names = names.filter(|name| !is_mount_point(name, &list));
            if let Some(name) = names.find(|name| self.in_workspace(name) || self.in_mount(name)) {
                let why = format!(
                    "is named by way of {}, which the command could exchange as {}",
                    path.display(),
                    name.display()
                );
                return Err(refused(named, &why, ELSEWHERE));
            }
        }
        match self.may_hold_a_link_to(file, &list) {
            true => Err(refused(file, "has a second name, by which it could be written inside", COPY)),
            false => Ok(()),
        }
    }

    /// Whether a file has hard links that may be in what the command may write to: they are on its file system. An overlay may tell its
    /// device of folders only, so that of the file's folder counts as well.
    fn may_hold_a_link_to(&self, file: &Path, list: &Mounts) -> bool {
        if file.metadata().is_ok_and(|about| about.nlink() < 2) {
            return false;
        }
        let device = |path: &Path| path.metadata().map(|about| about.dev()).ok();
        let own = [device(file), file.parent().and_then(device)];
        let may_be_at = |at: &Path| device(at).is_none_or(|it| own.contains(&Some(it)));
        let below = |folder| list.seen_below(folder).filter(|mount| !mount.is_read_only);
        self.writable().any(|folder| {
            file.starts_with(folder) || may_be_at(folder) || below(folder).any(|mount| may_be_at(&mount.at))
        })
    }

    /// Returns the names that a place has in what the command may write to.
    fn names_of(&self, place: &Place, list: &Mounts) -> Vec<PathBuf> {
        let name = |at: &Path, shown: &Place| {
            let within = place.is_in(shown).then(|| place.path.strip_prefix(&shown.path).ok())??;
            Some(at.components().chain(within.components()).collect())
        };
        let of_folder = |folder: &Path| {
            let below = list.seen_below(folder).filter(|mount| !mount.is_read_only);
            let below = below.filter_map(|mount| name(&mount.at, mount.root.as_ref()?));
            list.place_of(folder).and_then(|shown| name(folder, &shown)).into_iter().chain(below).collect()
        };
        self.writable().flat_map(|folder| -> Vec<PathBuf> { of_folder(folder) }).collect()
    }
}

/// Returns the place of a name in its folder, whatever it leads to.
fn place_of_name(path: &Path, list: &Mounts) -> Option<Place> {
    let Place { device, path: folder } = list.place_of(path.parent()?)?;
    Some(Place { device, path: folder.join(path.file_name()?) })
}

/// Whether something is mounted at a path.
fn is_mount_point(path: &Path, list: &Mounts) -> bool {
    path.parent().is_some_and(|folder| list.seen_below(folder).any(|mount| mount.at == path))
}

/// Whether two names are those of one file, as far as is known. Another mount may lie over one.
fn is_one_file(one: &Path, other: &Path) -> bool {
    let identity = |path: &Path| path.metadata().map(|about| (about.dev(), about.ino()));
    match (identity(one), identity(other)) {
        (Ok(one), Ok(other)) => one == other,
        _ => true,
    }
}

const ELSEWHERE: &str = "keep it outside of what the command may write to";
const COPY: &str = "name a copy of it, outside of what the command may write to";

fn refused(file: &Path, why: &str, remedy: &str) -> Error {
    let what =
        format!("the policy {} {why}, and the next run would obey what is written there", file.display());
    sandbox::Error::Refused { what, remedy: Some(remedy.to_owned()) }.into()
}

#[cfg(test)]
mod tests {
    use rustix::fs::{AtFlags, StatxFlags};

    use super::*;

    fn mounts(folder: &Path, workspace: &Path, policy: &str, config: &str) -> Result<Vec<String>, Error> {
        mounts_among(folder, workspace, policy, config, &MountsOnceRead::default())
    }

    fn mounts_among(
        folder: &Path,
        workspace: &Path,
        policy: &str,
        config: &str,
        mounted: &MountsOnceRead,
    ) -> Result<Vec<String>, Error> {
        let mut layers = policy::Layers::default();
        layers.push(policy::Origin::Flags, toml::from_str(config).unwrap());
        let mut spec = RunSpec { workspace: Some(workspace.into()), ..layers.compile().unwrap() };
        keep(&mut spec, Path::new(policy), &Caller::new(1, 1, folder), mounted)?;
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
        std::fs::write(folder.join("twice.toml"), "").unwrap();
        std::fs::hard_link(folder.join("twice.toml"), workspace.join("third")).unwrap();
        assert!(refusal("twice.toml", "").contains("a second name"));
        assert!(
            mounts(&folder, &workspace, "twice.toml", "workspace = { mode = \"ro\" }").unwrap().is_empty()
        );
        let shown = format!("mount = [{{ source = {folder:?}, target = \"/data\", mode = \"rw\" }}]");
        assert!(refusal("out.toml", &shown).contains("by way of"));
    }

    #[test]
    fn a_policy_with_a_hard_link_is_refused_where_its_file_system_is_shown_for_writing() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().canonicalize().unwrap();
        std::fs::create_dir(folder.join("beside")).unwrap();
        std::fs::write(folder.join("p.toml"), "").unwrap();
        std::fs::hard_link(folder.join("p.toml"), folder.join("second")).unwrap();
        // Another file system, in which the folders of this one can be named.
        let workspace = PathBuf::from(format!("/proc/{}", std::process::id()));
        let list = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let told = |below: &str, config: &str| {
            let mounted = MountsOnceRead::of(&format!("{list}{below}"));
            mounts_among(&folder, &workspace, "p.toml", config, &mounted).map_err(|error| error.to_string())
        };
        let beside = PathBuf::from(format!("{}/root{}/beside", workspace.display(), folder.display()));
        // What lies under another mount is none that is shown.
        let about =
            rustix::fs::statx(rustix::fs::CWD, &beside, AtFlags::empty(), StatxFlags::MNT_ID).unwrap();
        let below =
            |how: &str| format!("{} 1 0:9999 / {} {how} - x x rw\n", about.stx_mnt_id, beside.display());
        let shown =
            format!("mount = [{{ source = {:?}, target = \"/d\", mode = \"rw\" }}]", folder.join("beside"));
        assert_eq!(told("", ""), Ok(Vec::new()));
        assert_eq!(told(&below("ro"), ""), Ok(Vec::new()));
        assert!(told("", &shown).unwrap_err().contains("a second name"));
        assert!(told(&below("rw"), "").unwrap_err().contains("a second name"));
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

    #[test]
    fn a_policy_that_is_mounted_in_the_workspace_as_well_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().canonicalize().unwrap();
        let workspace = folder.join("ws");
        for made in ["ws/held", "out/deep", "beside"] {
            std::fs::create_dir_all(folder.join(made)).unwrap();
        }
        for file in ["out/p.toml", "out/deep/p.toml", "beside/p.toml", "ws/held/p.toml"] {
            std::fs::write(folder.join(file), "").unwrap();
        }
        std::os::unix::fs::symlink("../beside/p.toml", folder.join("out/link.toml")).unwrap();
        let list = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let told = |mounted: &str, at: &str, how: &str, policy: &str, config: &str| {
            let place = MountsOnceRead::of(&list).get().unwrap().place_of(&folder.join(mounted)).unwrap();
            let (device, root, at) = (place.device, place.path.display(), folder.join(at));
            let mounted = format!("{list}9999 1 {device} {root} {} {how} - x x rw\n", at.display());
            mounts_among(&folder, &workspace, policy, config, &MountsOnceRead::of(&mounted))
                .map_err(|error| error.to_string())
        };
        let shown =
            format!("mount = [{{ source = {:?}, target = \"/d\", mode = \"rw\" }}]", folder.join("beside"));
        let read_only = "workspace = { mode = \"ro\" }";
        for (mounted, at, policy, config, name) in [
            ("out", "ws/sub", "out/p.toml", "", "ws/sub/p.toml"),
            ("out", "ws/sub", "out/deep/p.toml", "", "ws/sub/deep/p.toml"),
            ("out/p.toml", "ws/sub", "out/p.toml", "", "ws/sub"),
            ("", "ws/sub", "out/p.toml", "", "ws/sub/out/p.toml"),
            ("out", "ws/sub", "out/link.toml", "", "ws/sub/link.toml"),
            ("out", "ws/sub", "out/deep/../../beside/p.toml", "", "ws/sub/deep"),
            ("out", "beside/sub", "out/p.toml", &*shown, "beside/sub/p.toml"),
        ] {
            let why = told(mounted, at, "rw", policy, config).unwrap_err();
            let name = folder.join(name);
            assert!(why.contains("by way of") && why.contains(name.to_str().unwrap()), "{policy}: {why}");
            for (how, config) in [("ro", config), ("rw", read_only)] {
                assert!(told(mounted, at, how, policy, config).is_ok(), "{policy}: {how} {config}");
            }
        }
        for (mounted, at, policy) in [
            ("beside", "ws/sub", "out/p.toml"),
            ("out", "beside/sub", "out/p.toml"),
            // What is protected is read-only.
            ("out", "ws/.vscode", "out/p.toml"),
            // The mount point itself can be neither renamed nor removed inside.
            ("out", "ws/sub", "out/../beside/p.toml"),
        ] {
            assert_eq!(told(mounted, at, "rw", policy, ""), Ok(Vec::new()), "{mounted} {at} {policy}");
        }
        let held = ["held ReadWrite", "held/p.toml ReadOnly"].map(str::to_owned).to_vec();
        assert_eq!(told("beside", "ws/sub", "rw", "ws/held/p.toml", ""), Ok(held));
    }
}
