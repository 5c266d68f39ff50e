//! Finds a second name of what is protected in a workspace: a bind mount of the workspace, of a folder above it or of one in it, or its file
//! system mounted once more. A cover is a mount on one name, so by the other one the command could write.
//!
//! What has neither the same numbers nor the same place in a file system is not found: the layers of an overlay, another server's view.

use std::cell::OnceCell;
use std::path::{Path, PathBuf};

use crate::mounted::{Mounts, Place};
use crate::path_identity::{PathIdentity, identity};
use crate::protect;

/// A workspace whose other names are looked for.
pub(crate) struct Aliases<'a> {
    workspace: &'a Path,
    /// Its protected paths that the command may write all the same.
    open: &'a [PathBuf],
    mounts: &'a Mounts,
    /// Looked up once something is to be compared with it.
    known: OnceCell<Known>,
}

/// All by which a workspace is known under another name.
struct Known {
    identity: PathIdentity,
    /// The workspace and what is protected in it: the path within, and the numbers.
    numbers: Vec<(&'static Path, (u64, u64))>,
    place: Option<Place>,
}

impl<'a> Aliases<'a> {
    pub(crate) fn of(workspace: &'a Path, open: &'a [PathBuf], mounts: &'a Mounts) -> Self {
        Self { workspace, open, mounts, known: OnceCell::new() }
    }

    /// Returns the first writable mount below a folder by which something protected could be written.
    pub(crate) fn first_below(&self, folder: &Path) -> Option<&Path> {
        let writable = self.mounts.seen_below(folder).filter(|mount| !mount.is_read_only);
        writable.map(|mount| mount.at.as_path()).find(|at| self.shows_protected(at))
    }

    /// Whether a path shows what is protected in the workspace, by another name than its own there.
    pub(crate) fn shows_protected(&self, path: &Path) -> bool {
        let known = self.known.get_or_init(|| self.look_up());
        known.identity.is_in(path) || self.is_by_number(known, path) || self.is_by_place(known, path)
    }

    fn look_up(&self) -> Known {
        let paths = std::iter::once(Path::new("")).chain(protect::listed_paths());
        let found = |within| Some((within, identity(&self.workspace.join(within))?));
        Known {
            identity: PathIdentity::of(self.workspace),
            numbers: paths.filter_map(found).collect(),
            place: self.mounts.place_of(self.workspace),
        }
    }

    /// Whether the path, or a folder above it, is the workspace or something protected in it.
    fn is_by_number(&self, known: &Known, path: &Path) -> bool {
        path.ancestors().any(|above| {
            let Some(found) = identity(above) else { return false };
            let rest = path.strip_prefix(above).unwrap_or(Path::new(""));
            let same = known.numbers.iter().filter(|(_, number)| *number == found);
            same.map(|(within, _)| joined(within, rest)).any(|within| self.is_another(&within, path))
        })
    }

    /// Whether the path is, in its file system, at or above the workspace, or something protected in it.
    fn is_by_place(&self, known: &Known, path: &Path) -> bool {
        let (Some(own), Some(other)) = (&known.place, self.mounts.place_of(path)) else { return false };
        if own.device != other.device {
            return false;
        }
        let within = other.path.strip_prefix(&own.path);
        own.path.starts_with(&other.path) && path != self.workspace
            || within.is_ok_and(|within| self.is_another(within, path))
    }

    /// Whether a path within the workspace is protected, and this is another name of it.
    fn is_another(&self, within: &Path, path: &Path) -> bool {
        joined(self.workspace, within) != path && protect::shows_protected(within, self.open)
    }
}

/// Joins two paths, of which either may be empty.
fn joined(above: &Path, rest: &Path) -> PathBuf {
    if rest.as_os_str().is_empty() { above.into() } else { above.join(rest) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_protected_is_known_by_any_name_but_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().canonicalize().unwrap();
        let at = |name: &str| folder.join(name);
        for made in ["above/w/.git/hooks", "above/w/.git/annex", "above/w/src", "above/beside"] {
            std::fs::create_dir_all(at(made)).unwrap();
        }
        // As a bind mount does, a link gives a folder a second name.
        for (name, target) in
            [("top", "above"), ("same", "above/w"), ("git", "above/w/.git"), ("in", "above/w/src")]
        {
            std::os::unix::fs::symlink(target, at(name)).unwrap();
        }
        let workspace = at("above/w");
        let mounts = Mounts::read().unwrap();
        let aliases = Aliases::of(&workspace, &[], &mounts);
        for shown in
            ["top", "same", "same/.git", "same/.git/hooks", "git", "git/hooks", "top/w/.git/hooks", "above"]
        {
            assert!(aliases.shows_protected(&at(shown)), "{shown}");
        }
        for other in
            ["in", "same/src", "top/beside", "above/beside", "above/w/src", "above/w/.git/hooks", "absent"]
        {
            assert!(!aliases.shows_protected(&at(other)), "{other}");
        }
        let open = [PathBuf::from(".git")];
        assert!(aliases.shows_protected(&at("git/annex")));
        assert!(!Aliases::of(&workspace, &open, &mounts).shows_protected(&at("git/annex")));
    }

    #[test]
    fn a_mount_under_another_shows_nothing() {
        let real = Mounts::read().unwrap();
        assert!(real.seen_below(Path::new("/")).next().is_some());
        let under = Mounts::parse(b"1 1 0:1 / /proc rw - proc proc rw\n");
        assert_eq!((under.below(Path::new("/")).count(), under.seen_below(Path::new("/")).count()), (1, 0));
    }

    #[test]
    fn one_place_of_a_file_system_is_known_wherever_it_is_mounted() {
        let list = b"22 1 8:1 / / rw - ext4 /dev/x rw\n\
            23 22 8:2 / /srv rw - xfs /dev/y rw\n\
            24 22 8:2 /w/.git/modules/sub /srv/w/in rw - xfs /dev/y rw\n\
            25 22 8:2 /w/.git /srv/w/shown ro - xfs /dev/y rw\n\
            26 22 8:2 /w/src /srv/w/other rw - xfs /dev/y rw\n";
        let mounts = Mounts::parse(list);
        let workspace = Path::new("/srv/w");
        let place = mounts.place(23, workspace);
        assert_eq!(place, Some(Place { device: "8:2".into(), path: "/w".into() }));
        let below =
            mounts.below(workspace).filter(|it| !it.is_read_only).map(|it| mounts.place(it.id, &it.at));
        let below: Vec<_> = below.map(|place| place.unwrap().path).collect();
        assert_eq!(below, [Path::new("/w/.git/modules/sub"), Path::new("/w/src")]);
        // NFS tells `/` of whatever is mounted.
        assert_eq!(Mounts::parse(b"9 1 0:9 / /n rw - nfs4 a:/b rw\n").place(9, Path::new("/n/a")), None);
    }
}
