//! Reads a policy file: a regular file or a link to one, of bounded length. A repository decides what lies at the name of its file, so
//! neither a device without an end nor a pipe without a writer may be waited for. Nothing here writes.

use std::fs::{Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use crate::error::Error;
use crate::stranger::Stranger;

/// The largest policy file, in octets.
pub const LARGEST_POLICY: u64 = 1 << 20;
/// As many links as the kernel follows on the way to a file, path_resolution(7).
const MOST_LINKS: usize = 40;

/// Who says that there is a policy.
#[derive(Clone, Copy)]
enum Named {
    /// The person, who may name a pipe, as a shell's `<(…)` is one, and waits for its writer.
    ByThePerson,
    /// Its place in a repository: whoever put it there.
    ByItsPlace,
    /// Its place among the machine's or the person's settings.
    AsALayer(Keeper),
}

/// Who keeps a layer below the projects'.
#[derive(Clone, Copy)]
pub(crate) enum Keeper {
    /// Root, for everybody.
    Machine,
    /// The person, whom the environment names. It may name another.
    Person,
}

impl Keeper {
    /// Returns who else may have written there.
    fn stranger(self, path: &Path, about: &Metadata) -> Option<Stranger> {
        match self {
            Self::Machine => Stranger::beside_root(path, about),
            Self::Person => Stranger::beside_person(path, about, rustix::process::geteuid().as_raw()),
        }
    }

    /// Returns who else may put another file in the folder of a link, or in that to which it leads.
    fn stranger_beside_link(self, folder: &Path, about: &Metadata) -> Option<Stranger> {
        match self {
            Self::Machine => Stranger::beside_root(folder, about),
            Self::Person => Stranger::beside_link(folder, about, rustix::process::geteuid().as_raw()),
        }
    }
}

/// Reads the policy file that the person named.
///
/// # Errors
/// When it is not there, is neither a regular file nor a pipe, is larger than a policy may be, is not UTF-8, or may not be read.
pub(crate) fn read_policy(path: &Path) -> Result<String, Error> {
    read(path, Named::ByThePerson)
}

/// Reads the machine's or the person's policy file, which may be absent. A ceiling must not vanish because something else has its name:
/// a folder, such as an engine makes where it is to mount a missing file, or a link that leads nowhere. What somebody else may have
/// written there is not obeyed: it counts without approval.
///
/// # Errors
/// When something has its name that is no regular file, is larger than a policy may be, is not UTF-8, or may not be read, or somebody
/// else may write to it or to its folder.
pub(crate) fn read_layer_if_there(path: &Path, keeper: Keeper) -> Result<Option<String>, Error> {
    let leads_nowhere = |folder: &Path| folder.is_symlink() && !folder.exists();
    match std::fs::symlink_metadata(path) {
        Err(error)
            if error.kind() == io::ErrorKind::NotFound && !path.ancestors().skip(1).any(leads_nowhere) =>
        {
            Ok(None)
        }
        _ => read(path, Named::AsALayer(keeper)).map(Some),
    }
}

/// Reads a project's policy file, which may be absent. An empty directory of its name is a placeholder that a run holds.
///
/// # Errors
/// When it is no regular file, is larger than a policy may be, is not UTF-8, or may not be read.
pub fn read_policy_if_there(path: &Path) -> Result<Option<String>, Error> {
    match std::fs::metadata(path) {
        Ok(meta) if meta.is_dir() && is_empty_or_gone(path) => Ok(None),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Ok(None)
        }
        _ => read(path, Named::ByItsPlace).map(Some),
    }
}

/// Whether a directory is empty, or the run that held the name has given it back meanwhile.
fn is_empty_or_gone(path: &Path) -> bool {
    match std::fs::read_dir(path) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

fn read(path: &Path, named: Named) -> Result<String, Error> {
    let unreadable = |source| match named {
        Named::AsALayer(_) => Error::ReadLayer { path: path.into(), source },
        Named::ByThePerson | Named::ByItsPlace => Error::ReadSettings { path: path.into(), source },
    };
    let not_a_policy = |why| match named {
        Named::AsALayer(_) | Named::ByThePerson => {
            unreadable(io::Error::new(io::ErrorKind::InvalidData, why))
        }
        Named::ByItsPlace => Error::NotAPolicy { path: path.into(), why },
    };
    let refuse_irregular = |meta: Metadata| match named {
        _ if meta.is_file() => Ok(()),
        Named::ByThePerson if meta.file_type().is_fifo() => Ok(()),
        _ => Err(not_a_policy("it is no regular file")),
    };
    // Opening some devices has an effect already, so the file is looked at before; a file that replaces it meanwhile is seen after.
    refuse_irregular(std::fs::metadata(path).map_err(unreadable)?)?;
    let flags = match named {
        Named::ByThePerson => OFlags::NOCTTY,
        Named::ByItsPlace | Named::AsALayer(_) => OFlags::NONBLOCK | OFlags::NOCTTY,
    };
    let mut options = OpenOptions::new();
    let opened = options.read(true).custom_flags(flags.bits().cast_signed()).open(path);
    let file = opened.map_err(unreadable)?;
    let about = file.metadata().map_err(unreadable)?;
    if let Named::AsALayer(keeper) = named {
        refuse_strangers(path, &about, keeper)?;
    }
    refuse_irregular(about)?;
    let mut octets = Vec::new();
    file.take(LARGEST_POLICY + 1).read_to_end(&mut octets).map_err(unreadable)?;
    if octets.len() as u64 > LARGEST_POLICY {
        return Err(not_a_policy("it is larger than 1 MiB, which no policy is"));
    }
    String::from_utf8(octets).map_err(|_| not_a_policy("it is not UTF-8"))
}

/// Refuses an open layer to which somebody else may write, or in whose folder, in that of a link on the way, or in that to which links
/// lead, somebody else may put another.
fn refuse_strangers(path: &Path, about: &Metadata, keeper: Keeper) -> Result<(), Error> {
    let folder = path.parent().and_then(|folder| Some((folder, std::fs::metadata(folder).ok()?)));
    let places = folder.iter().map(|(folder, about)| (*folder, about)).chain([(path, about)]);
    let beside = places.filter_map(|(path, about)| Some((path.to_path_buf(), keeper.stranger(path, about)?)));
    let beside_links = folders_of_links(path).into_iter().filter_map(|folder| {
        let stranger = keeper.stranger_beside_link(&folder, &std::fs::metadata(&folder).ok()?)?;
        Some((folder, stranger))
    });
    beside.chain(beside_links).next().map_or(Ok(()), |(path, stranger)| {
        let source = io::Error::other(stranger);
        Err(Error::ReadLayer { path, source })
    })
}

/// Returns the folders of the links that a path leads through, and the one in which it ends.
fn folders_of_links(path: &Path) -> Vec<PathBuf> {
    let mut way = path.to_path_buf();
    let mut folders = Vec::new();
    while folders.len() < MOST_LINKS
        && let Some((link, target)) = first_link(&way)
    {
        let folder = link.parent().unwrap_or(link).to_path_buf();
        let mut further = folder.join(target);
        further.extend(way.strip_prefix(link).into_iter().flatten());
        folders.push(folder);
        way = further;
    }
    folders.extend(way.parent().map(Path::to_path_buf));
    folders
}

fn first_link(way: &Path) -> Option<(&Path, PathBuf)> {
    let places = way.ancestors().collect::<Vec<_>>();
    places.into_iter().rev().find_map(|place| Some((place, std::fs::read_link(place).ok()?)))
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use rustix::fs::{CWD, FileType, Mode};

    use super::*;

    #[test]
    fn only_regular_files_of_a_bounded_length_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("file"), "timeout = \"1m\"\n").unwrap();
        symlink(at("file"), at("link")).unwrap();
        symlink("/dev/zero", at("endless")).unwrap();
        symlink(at("none"), at("dangling")).unwrap();
        rustix::fs::mknodat(CWD, at("pipe"), FileType::Fifo, Mode::RWXU, 0).unwrap();
        std::fs::create_dir(at("folder")).unwrap();
        std::fs::write(at("largest"), vec![b'#'; 1 << 20]).unwrap();
        std::fs::write(at("large"), vec![b'#'; (1 << 20) + 1]).unwrap();
        std::fs::write(at("octets"), b"\xff").unwrap();
        for good in ["file", "link"] {
            assert_eq!(read_policy_if_there(&at(good)).unwrap().unwrap(), "timeout = \"1m\"\n", "{good}");
        }
        assert!(read_policy(&at("largest")).is_ok());
        std::fs::create_dir(at("full")).unwrap();
        std::fs::write(at("full/file"), "").unwrap();
        symlink(at("none"), at("nowhere")).unwrap();
        for absent in ["none", "file/none", "dangling", "folder"] {
            assert!(read_policy_if_there(&at(absent)).unwrap().is_none(), "{absent}");
            assert!(read_policy(&at(absent)).is_err(), "{absent}");
        }
        assert!(read_policy_if_there(&at("full")).is_err());
        assert!(
            is_empty_or_gone(&at("folder"))
                && is_empty_or_gone(&at("none"))
                && !is_empty_or_gone(&at("full"))
        );
        for (vanished, meant) in [
            ("file/none", "move it away"),
            ("dangling", "leads nowhere"),
            ("folder", "take away what has its name"),
            ("full", "take away what has its name"),
            ("nowhere/none", "leads nowhere"),
            ("nowhere/further/down/none", "leads nowhere"),
        ] {
            let error = read_layer_if_there(&at(vanished), Keeper::Person).unwrap_err();
            let remedy = error.remedy().unwrap();
            assert!(remedy.contains(meant) && error.to_string().contains(vanished), "{error}: {remedy}");
        }
        for absent in ["none", "none/none", "folder/none"] {
            assert!(read_layer_if_there(&at(absent), Keeper::Person).unwrap().is_none(), "{absent}");
        }
        for (bad, why) in [
            ("endless", "no regular file"),
            ("pipe", "no regular file"),
            ("large", "larger than 1 MiB"),
            ("octets", "not UTF-8"),
        ] {
            let error = read_policy_if_there(&at(bad)).unwrap_err();
            assert!(error.remedy().is_some(), "{error}");
            let error = error.to_string();
            assert!(error.contains(why) && error.contains(bad), "{error}");
        }
    }

    #[test]
    fn a_pipe_is_read_where_the_person_named_it() {
        let (reader, mut writer) = io::pipe().unwrap();
        std::io::Write::write_all(&mut writer, b"timeout = \"1m\"\n").unwrap();
        drop(writer);
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&reader));
        assert!(read_policy_if_there(Path::new(&path)).is_err());
        assert_eq!(read_policy(Path::new(&path)).unwrap(), "timeout = \"1m\"\n");
    }

    #[test]
    fn a_link_is_followed_only_into_a_folder_where_nobody_else_may_put_a_file() {
        let above = tempfile::tempdir().unwrap();
        let [own, target] = ["lockgate", "target"].map(|name| above.path().join(name));
        for folder in [&own, &target] {
            std::fs::create_dir(folder).unwrap();
        }
        let (file, link) = (target.join("file"), own.join("config.toml"));
        std::fs::write(&file, "timeout = \"1m\"\n").unwrap();
        std::fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
        std::fs::set_permissions(&own, Permissions::from_mode(0o755)).unwrap();
        symlink(&file, &link).unwrap();
        let refused = |keeper| read_layer_if_there(&link, keeper).err().map(|error| error.to_string());
        for (mode, is_refused) in [(0o755, false), (0o1775, false), (0o757, true), (0o1777, true)] {
            std::fs::set_permissions(&target, Permissions::from_mode(mode)).unwrap();
            for keeper in [Keeper::Person, Keeper::Machine] {
                let told = refused(keeper);
                assert_eq!(told.is_some(), is_refused, "{mode:o}: {told:?}");
                assert!(told.is_none_or(|told| told.contains("target: others may write to it")));
            }
        }
        if rustix::process::geteuid().is_root() {
            // As the store of Nix is.
            std::fs::set_permissions(&target, Permissions::from_mode(0o1775)).unwrap();
            chown(&target, Some(0), Some(4999)).unwrap();
            assert_eq!(refused(Keeper::Person), None);
            chown(&target, Some(4999), None).unwrap();
            assert!(refused(Keeper::Person).unwrap().contains("target: it belongs to user 4999"));
            assert_eq!(refused(Keeper::Machine), None);
        }
    }

    #[test]
    fn nobody_else_may_turn_a_link_on_the_way_elsewhere() {
        let above = tempfile::tempdir().unwrap();
        let [own, open, target] = ["lockgate", "open", "target"].map(|name| above.path().join(name));
        for folder in [&own, &open, &target] {
            std::fs::create_dir(folder).unwrap();
            std::fs::set_permissions(folder, Permissions::from_mode(0o755)).unwrap();
        }
        std::fs::write(target.join("file"), "timeout = \"1m\"\n").unwrap();
        std::fs::set_permissions(target.join("file"), Permissions::from_mode(0o644)).unwrap();
        symlink("../target", open.join("way")).unwrap();
        symlink("../open/way/file", own.join("config.toml")).unwrap();
        // A folder of the path itself is a link as well.
        symlink(open.join("../lockgate"), open.join("settings")).unwrap();
        for path in [own.join("config.toml"), open.join("settings/config.toml")] {
            for keeper in [Keeper::Person, Keeper::Machine] {
                for (mode, is_refused) in [(0o755, false), (0o775, false), (0o1777, true), (0o757, true)] {
                    std::fs::set_permissions(&open, Permissions::from_mode(mode)).unwrap();
                    let told = read_layer_if_there(&path, keeper).err().map(|error| error.to_string());
                    assert_eq!(told.is_some(), is_refused, "{mode:o}: {told:?}");
                    assert!(told.is_none_or(|told| told.contains("open: others may write to it")));
                }
            }
        }
        symlink("itself", own.join("itself")).unwrap();
        assert_eq!(folders_of_links(&own.join("itself")).len(), MOST_LINKS + 1);
    }

    #[test]
    fn no_layer_is_obeyed_that_somebody_else_may_have_written() {
        let above = tempfile::tempdir().unwrap();
        let folder = above.path().join("lockgate");
        std::fs::create_dir(&folder).unwrap();
        let (file, link) = (folder.join("file"), folder.join("config.toml"));
        std::fs::write(&file, "timeout = \"1m\"\n").unwrap();
        symlink(&file, &link).unwrap();
        let set =
            |path: &Path, mode: u32| std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        let refused = |keeper| read_layer_if_there(&link, keeper).err();
        for (of_folder, of_file, strange) in [
            (0o755, 0o644, None),
            (0o500, 0o400, None),
            (0o755, 0o646, Some("config.toml: others may write to it (mode 0646)")),
            (0o757, 0o644, Some("lockgate: others may write to it (mode 0757)")),
            (0o1777, 0o666, Some("lockgate: others may write to it (mode 1777)")),
        ] {
            set(&file, of_file);
            set(&folder, of_folder);
            for keeper in [Keeper::Person, Keeper::Machine] {
                let error = refused(keeper);
                let told = error.as_ref().map(ToString::to_string);
                assert_eq!(
                    told.as_ref().map(|told| told.ends_with(strange.unwrap_or("-"))),
                    strange.map(|_| true),
                    "{told:?}"
                );
                assert!(error.is_none_or(|error| error.remedy().unwrap().contains("chmod go-w ")));
            }
        }
        set(&folder, 0o755);
        set(&file, 0o664);
        // A group without a member, which is no private one; of one's own, it would be.
        if rustix::process::geteuid().is_root() {
            assert!(refused(Keeper::Person).is_none() && refused(Keeper::Machine).is_none());
            for (group, user, mode) in [(4999, 0, 0o664), (0, 4999, 0o644), (4999, 4999, 0o600)] {
                chown(&file, Some(user), Some(group)).unwrap();
                set(&file, mode);
                let error = refused(Keeper::Person).unwrap();
                assert_eq!(error.to_string().contains("belongs to user 4999"), user != 0, "{error}");
                assert_eq!(error.remedy().unwrap().contains("sudo -H"), user != 0);
                assert!(refused(Keeper::Machine).is_none());
            }
        }
    }
}
