//! Detects what this host offers a sandbox, before planning, so that planning is a pure function.

use std::path::PathBuf;

use policy::agreed::CA_BUNDLES;
use sys::cgroup::Host as Cgroups;
pub(crate) use sys::cgroup::Unavailable as LimitsUnavailable;

/// The control groups that can enforce limits, or the reason why none can.
pub type LimitsHere = Result<Cgroups, LimitsUnavailable>;

/// A directory of the host that every sandbox sees read-only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SystemPath {
    /// A directory.
    Directory(PathBuf),
    /// A link, such as `/bin` on a merged-usr host, and its target.
    Link(PathBuf, PathBuf),
}

/// The directories of programs and libraries. `/etc` is handled separately, because some of its files are replaced.
const SYSTEM: &[&str] =
    &["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/nix/store", "/gnu/store"];

/// What planning needs to know of the host.
#[derive(Clone, Debug)]
pub struct Host {
    /// The system directories that exist here.
    pub system: Vec<SystemPath>,
    /// Whether limits can be enforced.
    pub limits: LimitsHere,
    /// The kernel's Landlock version, if it has it.
    pub landlock: Option<u32>,
    /// Whether tmpfs files can have the extended attributes that overlayfs needs.
    pub memory_attributes: bool,
    /// Whether this process can make links and packet filters in its network namespace.
    pub makes_links: bool,
    /// The capabilities that root lacks here to give a run private ids.
    pub root_lacks: Vec<&'static str>,
    /// The CA bundle of the host's programs, if there is one.
    pub bundle: Option<PathBuf>,
}

impl Host {
    /// Returns the reason why root cannot make a sandbox here, and a remedy, if it cannot.
    pub(crate) fn half_root(&self) -> Option<(String, String)> {
        let lacks = (!self.root_lacks.is_empty()).then(|| self.root_lacks.join(" and "))?;
        Some((
            format!("root without {lacks} can give the command no id but its own, and nobody is root inside"),
            "start it as a user who is not root, or with those capabilities".into(),
        ))
    }

    /// Examines the running host.
    #[must_use]
    pub fn detect() -> Self {
        let system = SYSTEM.iter().filter_map(|path| {
            let path = PathBuf::from(path);
            let kind = std::fs::symlink_metadata(&path).ok()?.file_type();
            if kind.is_symlink() {
                let target = std::fs::read_link(&path).ok()?;
                Some(SystemPath::Link(path, target))
            } else {
                kind.is_dir().then_some(SystemPath::Directory(path))
            }
        });
        Self {
            system: system.collect(),
            limits: Cgroups::detect(),
            landlock: sys::landlock::version(),
            memory_attributes: sys::probe::memory_has_attributes(),
            makes_links: sys::privilege::may_configure_network(),
            root_lacks: sys::privilege::lacking_for_own_ids(),
            bundle: CA_BUNDLES.iter().map(PathBuf::from).find(|path| path.exists()),
        }
    }
}
