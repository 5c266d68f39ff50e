//! Finds the control groups of this host, and a place where the caller can make one.

use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::Access;

use super::bounds::Bounds;
use super::{Limits, ROOT, own, v2};
use crate::kernel_file;

/// The version whose controllers limit memory, processors and processes on this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// One hierarchy for all controllers.
    V2,
    /// One hierarchy per controller. A hybrid host keeps its controllers here.
    V1,
}

/// The places on this host where groups can be made.
#[derive(Clone, Debug)]
pub struct Host {
    version: Version,
    parents: Vec<PathBuf>,
    /// Whether the parent is the caller's own group, which the caller has to leave first.
    is_own: bool,
    bounds: Bounds,
}

/// The reason why no group can be made, and its remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unavailable {
    /// What is missing.
    pub why: String,
    /// What to do about it.
    pub remedy: String,
}

/// The controllers of version 1 that limits need, in the order [`super::v1`] expects them.
pub(super) const CONTROLLERS: [&str; 3] = ["memory", "cpu", "pids"];

impl Host {
    /// Finds a place where the caller can make groups.
    ///
    /// # Errors
    /// When there is none.
    pub fn detect() -> Result<Self, Unavailable> {
        let own = kernel_file::read("/proc/self/cgroup").unwrap_or_default();
        if Path::new(ROOT).join("cgroup.controllers").exists() {
            return Self::detect_v2(&own);
        }
        Self::detect_v1(&own, Path::new(ROOT))
    }

    /// Finds a place in the hierarchy of each controller, of which those that are mounted are below `mounted`.
    fn detect_v1(own: &str, mounted: &Path) -> Result<Self, Unavailable> {
        let parents = CONTROLLERS.iter().map(|controller| {
            let root = mounted.join(controller);
            let path = v1_path(own, controller).map(|p| root.join(p.trim_start_matches('/')));
            let mut places = path.into_iter().chain([root]);
            places.find(|p| is_writable(p) && is_group(p)).ok_or_else(|| closed(mounted, controller))
        });
        let parents = parents.collect::<Result<_, _>>()?;
        Ok(Self { version: Version::V1, parents, is_own: false, bounds: Bounds::default() })
    }

    /// Finds the nearest group, from the caller's own on, that is delegated to the caller and enables the controllers for its children. A
    /// group that holds processes cannot, so the caller's own is suitable only if the caller can leave it empty.
    fn detect_v2(own: &str) -> Result<Self, Unavailable> {
        let path = own.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or("/");
        let own = Path::new(ROOT).join(path.trim_start_matches('/'));
        if own::is_delegated(&own)
            && is_given(&own)
            && lacking(&own, "cgroup.controllers").is_empty()
            && own::holds_nobody_else(&own)
        {
            let bounds = Bounds::default();
            return Ok(Self { version: Version::V2, parents: vec![own], is_own: true, bounds });
        }
        Self::climb(own)
    }

    /// Finds the nearest group, from one on, that holds no process.
    fn climb(mut directory: PathBuf) -> Result<Self, Unavailable> {
        let mut bounds = Bounds::default();
        let mut unavailable = Unavailable {
            why: "no control group above this process was delegated to you".into(),
            remedy: "start it as `systemd-run --user --scope -p Delegate=yes lockgate …`".into(),
        };
        loop {
            if is_given(&directory) {
                match hand_down(&directory) {
                    Ok(()) => {
                        let parents = vec![directory];
                        return Ok(Self { version: Version::V2, parents, is_own: false, bounds });
                    }
                    // Report the outermost group's lack: it limits everything delegated below it.
                    Err(lack) => unavailable = lack,
                }
            }
            bounds = bounds.and(v2::bounds(&directory));
            if directory == Path::new(ROOT) || !directory.pop() {
                // For callers other than root, a read-only mount looks like a missing delegation.
                return Err(if is_read_only(Path::new(ROOT)) {
                    read_only(Path::new(ROOT))
                } else {
                    unavailable
                });
            }
        }
    }

    /// Returns the version.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// Returns what the groups around the caller allow, if a new group is not in them.
    #[must_use]
    pub fn bounds(&self) -> Bounds {
        self.bounds
    }

    /// Empties the place of new groups, if it is the caller's own. Returns the place to use: if somebody else has come into that group
    /// meanwhile, one above it.
    ///
    /// # Errors
    /// When there is none.
    pub fn with_room(&self) -> io::Result<Self> {
        let [own] = &self.parents[..] else { return Ok(self.clone()) };
        match self.is_own.then(|| own::step_below(own)) {
            None | Some(Ok(())) => Ok(self.clone()),
            Some(Err(error)) => {
                own::step_back(own);
                Self::climb(own.clone()).map_err(|_| error)
            }
        }
    }

    /// Returns the directories of a group with these limits, outer before inner. With version 1 the `cpu` controller is left out if it limits nothing.
    #[must_use]
    pub fn directories(&self, name: &str, limits: &Limits) -> Vec<PathBuf> {
        let needless =
            |at: usize| self.version == Version::V1 && CONTROLLERS[at] == "cpu" && limits.cpu_milli.is_none();
        let parents = self.parents.iter().enumerate().filter(|(at, _)| !needless(*at));
        match self.version {
            Version::V1 => parents.map(|(_, parent)| parent.join(name)).collect(),
            Version::V2 => parents.flat_map(|(_, parent)| v2::directories(parent, name)).collect(),
        }
    }
}

/// Returns the number of processors that this machine can have, hot-pluggable ones included.
#[must_use]
pub fn processors() -> Option<u32> {
    last_processor(&kernel_file::read("/sys/devices/system/cpu/possible").ok()?)?.checked_add(1)
}

/// Returns the last processor of a kernel's list, such as `0-3`, `0` or `0,2-7`.
fn last_processor(list: &str) -> Option<u32> {
    list.trim().rsplit([',', '-']).next()?.parse().ok()
}

/// Enables the controllers for the children of a group, if the group has them and holds no process.
fn hand_down(directory: &Path) -> Result<(), Unavailable> {
    if lacking(directory, "cgroup.subtree_control").is_empty() || super::hand_down_all(directory).is_ok() {
        return Ok(());
    }
    let lacking = lacking(directory, "cgroup.controllers");
    if lacking.is_empty() {
        return Err(Unavailable {
            why: "the control group that was delegated to you holds processes itself".into(),
            remedy: "start it in a group below: `DelegateSubgroup=` beside `Delegate=yes` in the unit, or \
                     `systemd-run --user --scope -p Delegate=yes lockgate …`"
                .into(),
        });
    }
    Err(without(&lacking, Path::new(ROOT)))
}

/// Explains why a group is without controllers. At `mounted` is the root of all groups, or the root of this process's namespace.
fn without(controllers: &[&str], mounted: &Path) -> Unavailable {
    let absent = lacking(mounted, "cgroup.controllers");
    // Every group but the root of all has a type.
    if absent.is_empty() || mounted.join("cgroup.type").exists() {
        let without = controllers.join(", ");
        return Unavailable {
            why: format!("control groups were delegated to you without the controller {without}"),
            remedy: "have all delegated: `Delegate=cpu memory pids` by `systemctl edit user@.service`".into(),
        };
    }
    let options =
        |option| absent.iter().map(move |name| format!("{option}={name}")).collect::<Vec<_>>().join(" ");
    Unavailable {
        why: format!(
            "this kernel lacks the controller {}, or has it switched off (`cgroup_disable=`)",
            absent.join(", ")
        ),
        remedy: format!(
            "boot with `{}`, and without `{}`",
            options("cgroup_enable"),
            options("cgroup_disable")
        ),
    }
}

/// Returns the controllers that limits need and that a group's list does not name.
fn lacking(directory: &Path, file: &str) -> Vec<&'static str> {
    let named = kernel_file::read(directory.join(file)).unwrap_or_default();
    CONTROLLERS.into_iter().filter(|c| named.split_whitespace().all(|name| name != *c)).collect()
}

/// Whether a group of version 2 is delegated to the caller. Owning the directory is not enough to start a process below it: the
/// kernel also checks write access to the common ancestor's `cgroup.procs` (cgroups(7), "Delegation").
fn is_given(directory: &Path) -> bool {
    is_writable(directory) && rustix::fs::access(directory.join("cgroup.procs"), Access::WRITE_OK).is_ok()
}

/// Whether only a read-only mount keeps the caller from writing, as in most containers. faccessat(2) checks the file modes first.
fn is_read_only(directory: &Path) -> bool {
    rustix::fs::access(directory, Access::WRITE_OK) == Err(rustix::io::Errno::ROFS)
}

fn read_only(place: &Path) -> Unavailable {
    Unavailable {
        why: format!("the control groups at {} are mounted read-only", place.display()),
        remedy: "mount them writable, as by starting the container that this is in with them so".into(),
    }
}

/// Explains why no group can be made in the hierarchy of a controller of version 1.
fn closed(mounted: &Path, controller: &str) -> Unavailable {
    let hierarchy = mounted.join(controller);
    let place = hierarchy.display();
    if !CONTROLLERS.iter().any(|controller| is_group(&mounted.join(controller))) {
        return Unavailable {
            why: format!("no control groups are mounted at {}", mounted.display()),
            remedy: "mount the cgroup2 file system there".into(),
        };
    }
    if !is_group(&hierarchy) {
        return Unavailable {
            why: format!("no control groups of the controller {controller} are mounted at {place}"),
            remedy: format!(
                "mount them: `mkdir -p {place} && mount -t cgroup -o {controller} none {place}`; a kernel that refuses lacks that \
                 controller, or has it switched off (`cgroup_disable=`)"
            ),
        };
    }
    if is_read_only(&hierarchy) {
        return read_only(&hierarchy);
    }
    Unavailable {
        why: format!("only root can make control groups of version 1, as at {place}"),
        remedy: "run as root, or boot with `systemd.unified_cgroup_hierarchy=1`".into(),
    }
}

/// Whether a directory is a group of version 1, and not one in which a hierarchy could be mounted.
fn is_group(directory: &Path) -> bool {
    rustix::fs::access(directory.join("tasks"), Access::EXISTS).is_ok()
}

fn is_writable(directory: &Path) -> bool {
    rustix::fs::access(directory, Access::WRITE_OK | Access::EXEC_OK).is_ok()
}

/// Returns the caller's group in a hierarchy of version 1. A line is `4:memory:/path`, with several controllers joined by commas.
fn v1_path<'a>(own: &'a str, controller: &str) -> Option<&'a str> {
    own.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let names = parts.next()?;
        let path = parts.next()?;
        names.split(',').any(|name| name == controller).then_some(path)
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_controller_that_the_kernel_lacks_was_not_left_out_by_who_delegates() {
        let mounted = tempfile::tempdir().unwrap();
        let lacks = |controllers: &str| {
            fs::write(mounted.path().join("cgroup.controllers"), controllers).unwrap();
            without(&["memory"], mounted.path())
        };
        let absent = lacks("cpuset cpu io pids\n");
        assert!(absent.why.contains("this kernel lacks the controller memory,"), "{}", absent.why);
        assert!(absent.remedy.contains("cgroup_enable=memory") && !absent.remedy.contains("systemctl"));
        assert!(lacks("cpu memory pids\n").why.contains("delegated to you without"));
        // A container's, which has what it was given.
        fs::write(mounted.path().join("cgroup.type"), "domain\n").unwrap();
        assert!(lacks("cpu pids\n").why.contains("delegated to you without"));
    }

    #[test]
    fn a_controller_of_version_1_without_a_place_is_named() {
        let mounted = tempfile::tempdir().unwrap();
        let detect = || Host::detect_v1("4:memory:/own\n5:cpu,cpuacct:/\n", mounted.path());
        assert!(detect().unwrap_err().why.starts_with("no control groups are mounted at"));
        for directory in ["memory", "memory/own", "cpu", "pids"] {
            fs::create_dir(mounted.path().join(directory)).unwrap();
        }
        for group in ["memory", "memory/own", "cpu"] {
            fs::write(mounted.path().join(group).join("tasks"), "").unwrap();
        }
        let bare = detect().unwrap_err();
        assert!(bare.why.contains("controller pids") && bare.remedy.contains("-o pids"), "{bare:?}");
        fs::write(mounted.path().join("pids/tasks"), "").unwrap();
        let parents = ["memory/own", "cpu", "pids"].map(|group| mounted.path().join(group));
        assert_eq!(detect().unwrap().parents, parents);
    }
}
