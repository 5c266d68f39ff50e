//! Detects what this host offers a sandbox, before planning, which changes nothing.

use std::path::{Path, PathBuf};

use policy::agreed::CA_BUNDLES;
use policy::{Backend, ByteSize, CpuCount, RunSpec};
use rustix::io::Errno;
use sys::cgroup::Host as Cgroups;
pub(crate) use sys::cgroup::Unavailable as LimitsUnavailable;
use sys::landlock::MOVES_FILES;

use crate::caller::Caller;
use crate::host_path::{Seen, SystemPath};
use crate::need::also_in_a_container;

/// The control groups that can enforce limits, or the reason why none can.
pub type LimitsHere = Result<Cgroups, LimitsUnavailable>;

/// The directories of programs and libraries. `/etc` is handled separately, because some of its files are replaced.
const SYSTEM: &[&str] = &[
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/opt",
    "/nix/store",
    "/gnu/store",
    // Where Debian keeps parts of what it installs: system-wide gems, GHC's package database, TeX's formats, dictionaries.
    "/var/lib/aspell",
    "/var/lib/gems",
    "/var/lib/ghc",
    "/var/lib/ispell",
    "/var/lib/mecab",
    "/var/lib/texmf",
];

/// OpenSSL's directory of authorities, indexed by a hash of their names.
pub(crate) const DIRECTORY: &str = "/etc/ssl/certs";

/// What planning needs to know of the host.
#[derive(Clone, Debug)]
pub struct Host {
    /// The system directories that exist here, and the places outside them that the names of the host's authorities lead to.
    pub system: Vec<SystemPath>,
    /// The memory of this machine.
    pub memory: ByteSize,
    /// Whether limits can be enforced.
    pub limits: LimitsHere,
    /// The kernel's Landlock version, or what was said in its place.
    pub landlock: Result<u32, Errno>,
    /// Whether tmpfs files can have the extended attributes that overlayfs needs.
    pub memory_attributes: bool,
    /// Whether this process can make links and packet filters in its network namespace.
    pub makes_links: bool,
    /// The capabilities that root lacks here to give a run private ids.
    pub root_lacks: Vec<&'static str>,
    /// The CA bundle of the host's programs, if there is one that can be seen inside.
    pub bundle: Option<PathBuf>,
}

impl Host {
    /// Returns the reason why root cannot make a sandbox here, and a remedy, if it cannot.
    pub(crate) fn half_root(&self) -> Option<(String, String)> {
        let lacks = (!self.root_lacks.is_empty()).then(|| self.root_lacks.join(" and "))?;
        Some((
            format!("root without {lacks} can give the command no id but its own, and nobody is root inside"),
            format!(
                "start it as a user who is not root, or with those capabilities{}",
                also_in_a_container()
            ),
        ))
    }

    /// Narrows the limits of a run to what the groups around the caller allow. The run's own group is not below those, so the kernel does
    /// not apply their limits to it.
    pub fn narrow(&self, spec: &mut RunSpec) {
        let Ok(groups) = self.limits.as_ref().map(Cgroups::bounds) else { return };
        if spec.backend == Backend::Docker {
            return;
        }
        let limits = &mut spec.limits;
        let mut narrowed = Vec::new();
        if let Some(memory) = groups.memory.map(ByteSize::from_bytes).filter(|most| *most < limits.memory) {
            limits.memory = memory;
            narrowed.push(format!("{memory} of memory"));
        }
        let milli =
            groups.cpu_milli.map(|milli| CpuCount::from_milli(u32::try_from(milli).unwrap_or(u32::MAX)));
        if let Some(cpus) = milli.filter(|most| *most < limits.cpus) {
            limits.cpus = cpus;
            narrowed.push(format!("{cpus} processors"));
        }
        if let Some(pids) =
            groups.pids.and_then(|most| u32::try_from(most).ok()).filter(|most| *most < limits.pids)
        {
            limits.pids = pids;
            narrowed.push(format!("{pids} processes"));
        }
        if !narrowed.is_empty() {
            let narrowed = narrowed.join(", ");
            spec.notices
                .push(format!("limited to {narrowed}: the unit in which this was started has no more"));
        }
    }

    /// Returns the Landlock version that restricts a command, or why none does.
    pub(crate) fn landlock_for_command(&self) -> Result<u32, NoLandlock> {
        match self.landlock {
            Ok(version) if version < MOVES_FILES => Err(NoLandlock {
                why: "this kernel's Landlock, version 1, would let no file be moved to another folder, so it is not used",
                remedy: "Linux 5.19 or later",
            }),
            Ok(version) => Ok(version),
            Err(errno) => Err(NoLandlock::of(errno, sys::seccomp::is_installed)),
        }
    }

    /// Examines the running host, of which a caller's home is shown to no run.
    #[must_use]
    pub fn detect(caller: &Caller) -> Self {
        let system = SYSTEM.iter().filter_map(|path| {
            let path = PathBuf::from(path);
            let kind = std::fs::symlink_metadata(&path).ok()?.file_type();
            if kind.is_symlink() {
                let target = std::fs::read_link(&path).ok()?;
                Some(SystemPath::Link(path, target))
            } else {
                kind.is_dir().then_some(SystemPath::Tree(path))
            }
        });
        let Authorities { bundle, places, .. } = Authorities::detect(caller);
        Self {
            system: system.chain(places).collect(),
            memory: memory(),
            limits: Cgroups::detect(),
            landlock: sys::landlock::version(),
            memory_attributes: sys::probe::memory_has_attributes(),
            makes_links: sys::privilege::may_configure_network(),
            root_lacks: sys::privilege::lacking_for_own_ids(),
            bundle,
        }
    }
}

/// Why no Landlock restricts a command, and what would help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoLandlock {
    pub(crate) why: &'static str,
    pub(crate) remedy: &'static str,
}

impl NoLandlock {
    /// A kernel says `ENOSYS` or `EOPNOTSUPP`, landlock_create_ruleset(2), and a filter says what it likes.
    fn of(errno: Errno, is_filtered: fn() -> bool) -> Self {
        match errno {
            Errno::NOSYS if !is_filtered() => Self {
                why: "this kernel has no Landlock",
                remedy: "boot with `lsm=landlock,…`, on Linux 5.19 or later",
            },
            Errno::OPNOTSUPP => Self {
                why: "Landlock is switched off on this machine",
                remedy: "boot with `lsm=landlock,…`",
            },
            _ => Self {
                why: "a filter of system calls, a container's or a service's, hides Landlock here",
                remedy: "have the filter allow `landlock_create_ruleset`, `landlock_add_rule` and `landlock_restrict_self`",
            },
        }
    }
}

/// Returns the memory of this machine. By sysinfo(2): to read `/proc/meminfo` would cost each start 20 µs.
fn memory() -> ByteSize {
    let info = rustix::system::sysinfo();
    ByteSize::from_bytes(info.totalram.saturating_mul(info.mem_unit.into()))
}

/// The authorities of the host's programs.
pub(crate) struct Authorities {
    /// The first of the usual bundles that can be seen inside.
    bundle: Option<PathBuf>,
    /// What must be shown for that, besides the system directories and `/etc`.
    places: Vec<SystemPath>,
    /// Why there is one that cannot be seen inside.
    pub(crate) hidden: Option<String>,
}

impl Authorities {
    pub(crate) fn detect(caller: &Caller) -> Self {
        let shown = SYSTEM.iter().chain(&["/etc"]).map(PathBuf::from).collect();
        let mut seen = Seen::new(shown, caller.home.clone());
        // Where it cannot be added, the bundle remains.
        let _ = seen.add(Path::new(DIRECTORY));
        let (mut bundle, mut hidden) = (None, None);
        for path in CA_BUNDLES.iter().map(PathBuf::from).filter(|path| path.exists()) {
            match seen.add(&path) {
                Ok(()) => {
                    bundle = Some(path);
                    break;
                }
                Err(why) => hidden = Some(format!("{} cannot be seen inside: {why}", path.display())),
            }
        }
        Self { hidden: hidden.filter(|_| bundle.is_none()), bundle, places: seen.added() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn landlock_that_a_filter_hides_takes_no_reboot() {
        for (errno, is_filtered, hides) in [
            (Errno::NOSYS, false, false),
            (Errno::NOSYS, true, true),
            (Errno::PERM, true, true),
            (Errno::OPNOTSUPP, true, false),
        ] {
            let none = NoLandlock::of(errno, if is_filtered { || true } else { || false });
            assert_eq!(none.why.contains("filter"), hides, "{errno}: {}", none.why);
            assert_eq!(none.remedy.contains("boot with"), !hides, "{errno}: {}", none.remedy);
        }
    }

    #[test]
    fn the_memory_of_this_machine_is_counted_in_octets() {
        assert!(memory() > ByteSize::from_mib(64), "{}", memory());
    }
}
