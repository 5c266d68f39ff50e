//! What this host gives a sandbox: read before the plan, so that the plan is a pure function.

use std::path::PathBuf;

use sys::cgroup::Host as Cgroups;
pub(crate) use sys::cgroup::Unavailable as LimitsUnavailable;

/// Whether limits can be enforced here.
pub type LimitsHere = Result<Cgroups, LimitsUnavailable>;

/// A directory of the host that every sandbox sees read-only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SystemPath {
    /// A directory of its own.
    Directory(PathBuf),
    /// A link, as `/bin` is on a merged-usr host, and where it points.
    Link(PathBuf, PathBuf),
}

/// Where programs and libraries live. `/etc` is handled apart: single files of it are replaced.
const SYSTEM: &[&str] =
    &["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/nix/store", "/gnu/store"];

/// Where a bundle of certification authorities may lie, most usual first.
pub(crate) const BUNDLES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// What the plan needs to know of the host.
#[derive(Clone, Debug)]
pub struct Host {
    /// The system directories that exist here.
    pub system: Vec<SystemPath>,
    /// Whether limits can be enforced.
    pub limits: LimitsHere,
    /// The kernel's Landlock version, if it has it.
    pub landlock: Option<u32>,
    /// Whether files in memory can have the attributes that overlayfs needs.
    pub memory_attributes: bool,
    /// Whether links and packet filters can be made in the network this process is in.
    pub makes_links: bool,
    /// What root would need here to give a run ids of its own, and lacks.
    pub root_lacks: Vec<&'static str>,
    /// The bundle of certification authorities that programs here look at, if there is one.
    pub bundle: Option<PathBuf>,
}

impl Host {
    /// Why root can make no sandbox here, and what would help; nothing where it can.
    pub(crate) fn half_root(&self) -> Option<(String, String)> {
        let lacks = (!self.root_lacks.is_empty()).then(|| self.root_lacks.join(" and "))?;
        Some((
            format!("root without {lacks} can give the command no id but its own, and nobody is root inside"),
            "start it as a user who is not root, or with those capabilities".into(),
        ))
    }

    /// Looks at the running host.
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
            bundle: BUNDLES.iter().map(PathBuf::from).find(|path| path.exists()),
        }
    }
}
