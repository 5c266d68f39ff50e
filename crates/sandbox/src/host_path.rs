//! Finds what of the host must be seen inside for a name of it to lead to the same place there: the links on the way, and the place at its
//! end. Nothing is added that anybody but root could have chosen or changed, and nothing that lies in a home.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

/// The most links on a path that are followed, as by the kernel: path_resolution(7).
pub(crate) const MOST_LINKS: usize = 40;
/// Directories in which nothing of the host is seen.
const APART: &[&str] = &["/dev", "/home", "/proc", "/root", "/sys", "/tmp", "/var/tmp"];
/// A directory of the sandbox's own, in which the host's may be seen.
const RUN: &str = "/run";

/// What every sandbox sees of the host, read-only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SystemPath {
    /// A directory and what is in it, or a file.
    Tree(PathBuf),
    /// A link, such as `/bin` on a merged-usr host, and its target.
    Link(PathBuf, PathBuf),
}

/// What of the host is seen inside.
pub(crate) struct Seen {
    /// The host's root directory.
    machine: PathBuf,
    /// Whose directories and links there are followed.
    root: u32,
    /// The directories that are shown anyway.
    shown: Vec<PathBuf>,
    /// The caller's home, which may be anywhere.
    home: Option<PathBuf>,
    /// What is shown besides.
    added: Vec<SystemPath>,
}

impl Seen {
    pub(crate) fn new(shown: Vec<PathBuf>, home: Option<PathBuf>) -> Self {
        // A service's home is often the root directory, which is nobody's.
        let home = home.filter(|home| home.parent().is_some());
        Self { machine: "/".into(), root: 0, shown, home, added: Vec::new() }
    }

    /// Returns what is shown besides.
    pub(crate) fn added(self) -> Vec<SystemPath> {
        self.added
    }

    /// Adds what must be seen for a name of the host to lead inside to what it leads to outside.
    ///
    /// # Errors
    /// When the name leads nowhere, or to what may not be added. Nothing is added then.
    pub(crate) fn add(&mut self, name: &Path) -> io::Result<()> {
        let before = self.added.len();
        self.follow(name).inspect_err(|_| self.added.truncate(before))
    }

    fn follow(&mut self, name: &Path) -> io::Result<()> {
        let (mut at, mut rest, mut links) = (PathBuf::from("/"), parts(name), 0);
        // The first part that others could have chosen. Within what is shown anyway they may; they may not choose what is added.
        let mut open = None;
        while let Some(part) = rest.pop_front() {
            if part == ".." {
                at.pop();
                continue;
            }
            let next = at.join(part);
            let there = self.machine.join(next.strip_prefix("/").unwrap_or(&next));
            let about = std::fs::symlink_metadata(&there)?;
            let is_seen = self.has(&next);
            if open.is_none() && !self.is_roots(&about) {
                open = Some(next.clone());
            }
            if !is_seen {
                refuse_open(open.as_deref())?;
            }
            if !about.is_symlink() {
                at = next;
                continue;
            }
            links += 1;
            if links > MOST_LINKS {
                return Err(io::Error::other("too many links are on the way"));
            }
            let to = std::fs::read_link(&there)?;
            rest = ahead(&to, rest);
            if to.is_absolute() {
                at = "/".into();
            }
            if !is_seen {
                self.refuse_apart(&next)?;
                self.added.push(SystemPath::Link(next, to));
            }
        }
        if !self.has(&at) {
            refuse_open(open.as_deref())?;
            self.refuse_apart(&at)?;
            self.added.push(SystemPath::Tree(at));
        }
        Ok(())
    }

    fn has(&self, path: &Path) -> bool {
        self.shown.iter().any(|shown| path.starts_with(shown))
            || self.added.iter().any(|added| match added {
                SystemPath::Tree(tree) => path.starts_with(tree),
                SystemPath::Link(link, _) => path == link,
            })
    }

    /// Whether only root can change it. What root has in a directory that all may write to, as `/tmp`, nobody else can exchange.
    fn is_roots(&self, about: &Metadata) -> bool {
        const OTHERS_WRITE: u32 = 0o022;
        const STICKY: u32 = 0o1000;
        let is_closed = about.mode() & OTHERS_WRITE == 0 || about.is_dir() && about.mode() & STICKY != 0;
        (is_closed || about.is_symlink()) && [0, self.root].contains(&about.uid())
    }

    /// Refuses what the sandbox has of its own, a home, and what leads there.
    fn refuse_apart(&self, path: &Path) -> io::Result<()> {
        let is_apart = |apart: &Path| path.starts_with(apart) || apart.starts_with(path);
        let mut apart = APART.iter().map(Path::new).chain(self.home.as_deref());
        if apart.any(is_apart) || path == Path::new(RUN) {
            return Err(io::Error::other(format!("{} is another place inside", path.display())));
        }
        Ok(())
    }
}

/// Refuses to go where others than root lead to.
fn refuse_open(open: Option<&Path>) -> io::Result<()> {
    match open {
        Some(open) => Err(io::Error::other(format!("{} is not root's alone", open.display()))),
        None => Ok(()),
    }
}

/// Returns the names in a path.
pub(crate) fn parts(path: &Path) -> VecDeque<OsString> {
    let named = path.components().filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir));
    named.map(|part| part.as_os_str().to_owned()).collect()
}

/// Puts the names in a link's target before those that are left.
pub(crate) fn ahead(to: &Path, mut rest: VecDeque<OsString>) -> VecDeque<OsString> {
    let mut all = parts(to);
    all.append(&mut rest);
    all
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    /// Makes a machine in a directory: links where there is a target, otherwise files. Whoever runs this is its root.
    fn machine(entries: &[(&str, &str)]) -> (tempfile::TempDir, Seen) {
        let folder = tempfile::tempdir().unwrap();
        let shown = vec!["/etc".into(), "/usr".into()];
        let root = rustix::process::geteuid().as_raw();
        let home = Some("/srv/homes/me".into());
        let seen = Seen { machine: folder.path().into(), root, shown, home, added: Vec::new() };
        for (name, target) in entries {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            if target.is_empty() {
                fs::write(&path, "x").unwrap();
            } else {
                symlink(target, &path).unwrap();
            }
        }
        for (name, _) in entries {
            // Whatever the umask.
            for above in Path::new(name).ancestors().map(|above| folder.path().join(above)) {
                if !above.is_symlink() {
                    fs::set_permissions(above, Permissions::from_mode(0o755)).unwrap();
                }
            }
        }
        (folder, seen)
    }

    fn tree(path: &str) -> SystemPath {
        SystemPath::Tree(path.into())
    }

    fn link(path: &str, to: &str) -> SystemPath {
        SystemPath::Link(path.into(), to.into())
    }

    #[test]
    fn what_is_seen_anyway_needs_nothing() {
        let bundle = "etc/ssl/certs/ca-certificates.crt";
        let (_machine, mut seen) =
            machine(&[(bundle, "/usr/share/certs/bundle"), ("usr/share/certs/bundle", "")]);
        seen.add(&Path::new("/").join(bundle)).unwrap();
        assert_eq!(seen.added(), []);
    }

    #[test]
    fn the_places_that_links_lead_to_are_added_once() {
        // As of openSUSE: below `/var/lib`.
        let (_machine, mut seen) = machine(&[
            ("etc/ssl/certs", "../../var/lib/ca-certificates/pem"),
            ("etc/ssl/ca-bundle.pem", "/var/lib/ca-certificates/ca-bundle.pem"),
            ("var/lib/ca-certificates/pem/a.pem", ""),
            ("var/lib/ca-certificates/ca-bundle.pem", ""),
        ]);
        for name in ["/etc/ssl/certs", "/etc/ssl/ca-bundle.pem", "/etc/ssl/certs/a.pem"] {
            seen.add(Path::new(name)).unwrap();
        }
        let added = ["/var/lib/ca-certificates/pem", "/var/lib/ca-certificates/ca-bundle.pem"].map(tree);
        assert_eq!(seen.added(), added);
        // As of Guix: by way of a link in `/run`, in folders that are shown.
        let (_machine, mut seen) = machine(&[
            ("etc/ssl", "/run/current-system/etc/ssl"),
            ("run/current-system", "/usr/store/1"),
            ("usr/store/1/etc/ssl/certs/a.crt", ""),
        ]);
        seen.add(Path::new("/etc/ssl/certs/a.crt")).unwrap();
        assert_eq!(seen.added(), [link("/run/current-system", "/usr/store/1")]);
    }

    #[test]
    fn nothing_is_added_that_others_may_change_or_that_is_in_a_home() {
        for (target, mode) in [
            ("/var/lib/open/bundle", 0o777),
            ("/var/lib/open/bundle", 0o775),
            ("/home/me/bundle", 0o755),
            ("/root/bundle", 0o755),
            ("/tmp/bundle", 0o1777),
            ("/var", 0o755),
            ("/run", 0o755),
            ("/", 0o755),
            ("/etc/ssl/loop", 0o755),
            ("/nowhere", 0o755),
            ("/srv/homes/me/bundle", 0o755),
            ("/srv/homes", 0o755),
            ("/usr/open/bundle", 0o777),
        ] {
            let (machine, mut seen) = machine(&[
                ("etc/ssl/bundle", "loop"),
                ("etc/ssl/loop", "/run/link"),
                ("run/link", target),
                ("var/lib/open/bundle", ""),
                ("home/me/bundle", ""),
                ("root/bundle", ""),
                ("tmp/bundle", ""),
                ("srv/homes/me/bundle", ""),
                ("usr/open/bundle", "/var/log"),
                ("var/log/messages", ""),
            ]);
            for folder in ["var/lib/open", "tmp", "usr/open"] {
                fs::set_permissions(machine.path().join(folder), Permissions::from_mode(mode)).unwrap();
            }
            assert!(seen.add(Path::new("/etc/ssl/bundle")).is_err(), "{target}");
            assert_eq!(seen.added(), [], "{target}");
        }
    }
    #[test]
    fn a_way_that_others_may_change_may_lead_to_what_is_seen_anyway() {
        let (machine, mut seen) = machine(&[
            ("etc/ssl/bundle", "/usr/open/bundle"),
            ("usr/open/bundle", "/usr/share/bundle"),
            ("usr/share/bundle", ""),
        ]);
        fs::set_permissions(machine.path().join("usr/open"), Permissions::from_mode(0o777)).unwrap();
        seen.add(Path::new("/etc/ssl/bundle")).unwrap();
        assert_eq!(seen.added(), []);
    }
}
