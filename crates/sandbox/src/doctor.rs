//! Examines what this machine offers a sandbox. Features are tried, and never derived from a version number.

use std::io;

use rustix::io::Errno;
use sys::probe::{Feature, try_child, try_feature};

use crate::caller::Caller;
use crate::error::{Error, THE_SUPERVISOR};
use crate::host::{Authorities, Host, NoLandlock};
use crate::linux::within_subordinate_ids;
use crate::need::Need;
use crate::process_files;
use crate::subordinate::SubordinateIds;

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It works.
    Works,
    /// It is missing, and a run goes on without it.
    Weaker,
    /// It is missing, and a default run is refused.
    Missing,
}

/// One line of an examination.
#[derive(Clone, Debug)]
pub struct Check {
    /// The group it belongs to.
    pub group: &'static str,
    /// What was checked.
    pub what: String,
    /// The result.
    pub verdict: Verdict,
    /// What was found.
    pub detail: String,
    /// The remedy, if one is known.
    pub remedy: Option<String>,
}

impl Check {
    /// Returns a passed check.
    #[must_use]
    pub fn works(group: &'static str, what: &str, detail: impl Into<String>) -> Self {
        Self { group, what: what.into(), verdict: Verdict::Works, detail: detail.into(), remedy: None }
    }

    /// Returns a failed check and its remedy.
    #[must_use]
    pub fn lacks(
        group: &'static str,
        what: &str,
        verdict: Verdict,
        detail: String,
        remedy: Option<String>,
    ) -> Self {
        Self { group, what: what.into(), verdict, detail, remedy }
    }

    /// Whether a default run is refused for it. Not every backend has to work for that.
    #[must_use]
    pub fn prevents_a_run(&self) -> bool {
        self.verdict == Verdict::Missing && self.group != "backends"
    }
}

/// Whether the kernel has everything that a sandbox is made of.
#[derive(Clone, Copy)]
enum Kernel {
    Whole,
    Lacking,
}

/// Where what is written over an image's files can go.
#[derive(Clone, Copy)]
enum Overlays {
    /// Nowhere: overlays cannot be mounted.
    None,
    /// To disk alone: memory keeps no attributes of an overlay.
    OnDisk,
    InMemory,
}

/// Examines the kernel, the network and the backends.
#[must_use]
pub fn examine(caller: &Caller) -> Vec<Check> {
    let host = Host::detect(caller);
    let mut checks: Vec<Check> = Vec::new();
    let mountable = if host.memory_attributes { Overlays::InMemory } else { Overlays::OnDisk };
    let (mut kernel, mut overlays, mut is_based) = (Kernel::Whole, mountable, true);
    for feature in Feature::ALL {
        let check = if is_based { feature_check(feature, try_feature(feature)) } else { not_tried(feature) };
        is_based &= !feature.is_basic() || check.verdict == Verdict::Works;
        match check.verdict {
            Verdict::Works => {}
            Verdict::Weaker => overlays = Overlays::None,
            Verdict::Missing => kernel = Kernel::Lacking,
        }
        checks.push(check);
    }
    if !process_files::are_of_this_namespace() {
        kernel = Kernel::Lacking;
        let (detail, remedy) = (process_files::FOREIGN.to_owned(), Need::ProcessFiles.means().into_owned());
        checks.push(Check::lacks("kernel", "process files", Verdict::Missing, detail, Some(remedy)));
    }
    if let Some((detail, remedy)) = host.half_root().filter(|_| caller.superuser) {
        kernel = Kernel::Lacking;
        checks.push(Check::lacks("kernel", "ids of a run's own", Verdict::Missing, detail, Some(remedy)));
    }
    checks.push(Check::works("kernel", "system-call filter", "seccomp, an allowlist"));
    checks.push(landlock_check(&host));
    checks.push(limits_check(&host));
    checks.extend(Authorities::detect(caller).hidden.map(hidden_authorities_check));
    checks.push(linux_check(kernel));
    checks.push(container_check(kernel, overlays));
    checks.push(process_check(try_child()));
    checks
}

/// Judges the trial of a feature. Without overlays only images cannot be run, so that verdict is [`Verdict::Weaker`].
fn feature_check(feature: Feature, tried: io::Result<()>) -> Check {
    let (group, what) = describe(feature);
    let Err(error) = tried else { return Check::works(group, what, "works") };
    let lacks = |verdict, remedy| Check::lacks(group, what, verdict, error.to_string(), remedy);
    let means = |need: Need| need.means().into_owned();
    match feature {
        Feature::Overlay => {
            let is_absent = error.raw_os_error() == Some(Errno::NODEV.raw_os_error());
            let need = if is_absent { Some(Need::OverlayModule) } else { Need::of_mounts(&error) };
            lacks(Verdict::Weaker, Some(means(need.unwrap_or(Need::Overlay))))
        }
        Feature::UserNamespace | Feature::OtherNamespaces => {
            lacks(Verdict::Missing, Need::of_namespaces(&error).map(means))
        }
        Feature::Mounts => lacks(Verdict::Missing, Need::of_mounts(&error).map(means)),
        Feature::Proc => lacks(Verdict::Missing, Some(means(Need::UncoveredProc))),
        Feature::Redirect => {
            lacks(Verdict::Missing, Some(means(Need::of_redirect(Errno::from_io_error(&error)))))
        }
    }
}

/// The check of a feature that needs one that is missing.
fn not_tried(feature: Feature) -> Check {
    let (group, what) = describe(feature);
    let verdict = if feature == Feature::Overlay { Verdict::Weaker } else { Verdict::Missing };
    Check::lacks(group, what, verdict, "not tried, for it needs what is missing above".into(), None)
}

fn landlock_check(host: &Host) -> Check {
    match host.landlock_for_command() {
        Ok(version) => Check::works("kernel", "Landlock", format!("version {version}")),
        Err(NoLandlock { why, remedy }) => {
            let detail = format!("{why}; mounts alone keep files apart");
            Check::lacks("kernel", "Landlock", Verdict::Weaker, detail, Some(remedy.into()))
        }
    }
}

fn hidden_authorities_check(why: String) -> Check {
    let remedy = "have it, and every folder and link on the way, be root's and writable by root alone";
    let detail = format!("{why}; programs inside trust no authority but the run's own");
    Check::lacks("certificates", "authorities inside", Verdict::Weaker, detail, Some(remedy.into()))
}

fn limits_check(host: &Host) -> Check {
    match &host.limits {
        Ok(groups) => {
            Check::works("kernel", "limits", format!("control groups {:?}", groups.version()).to_lowercase())
        }
        Err(missing) => Check::lacks(
            "kernel",
            "limits",
            Verdict::Weaker,
            format!("{}; a run that asks for a limit is refused", missing.why),
            Some(missing.remedy.clone()),
        ),
    }
}

fn linux_check(kernel: Kernel) -> Check {
    match kernel {
        Kernel::Whole => Check::works("backends", "linux", "rootless; the default"),
        Kernel::Lacking => {
            let detail = "something it is made of is missing, see above".into();
            let remedy = "mend what is marked above".into();
            Check::lacks("backends", "linux", Verdict::Missing, detail, Some(remedy))
        }
    }
}

fn container_check(kernel: Kernel, overlays: Overlays) -> Check {
    let lacks = |detail: &str, remedy: Option<&str>| {
        let remedy = remedy.map(str::to_owned);
        Check::lacks("backends", "container", Verdict::Weaker, detail.into(), remedy)
    };
    match (kernel, overlays) {
        (Kernel::Whole, Overlays::OnDisk) => Check::works(
            "backends",
            "container",
            "works; before Linux 6.6 what is written goes to the state directory's disk",
        ),
        (Kernel::Whole, Overlays::InMemory) => {
            Check::works("backends", "container", "rootless; on the files of an image")
        }
        (Kernel::Whole, Overlays::None) => lacks(
            "overlays cannot be mounted in a user namespace, so images cannot be run",
            Some("mend what is marked above"),
        ),
        (Kernel::Lacking, _) => lacks("something it is made of is missing, see above", None),
    }
}

fn process_check(tried: io::Result<()>) -> Check {
    let (group, what) = ("backends", "process");
    match tried.map_err(|source| Error::Start { what: THE_SUPERVISOR, source }) {
        Ok(()) => Check::works(group, what, "no isolation: only the proxy checks requests"),
        Err(error) => {
            Check::lacks(group, what, Verdict::Missing, format!("failed to {error}"), error.remedy())
        }
    }
}

/// Examines the subordinate ids of a caller, for the owners of an image's files. Root needs none.
#[must_use]
pub fn examine_subordinate_ids(caller: &Caller) -> Option<Check> {
    const WHAT: &str = "subordinate ids";
    if caller.superuser {
        return None;
    }
    let lacks = |why: String, remedy: Option<String>| {
        let detail = format!("{why}; every file of an image belongs to its command's own user");
        Check::lacks("backends", WHAT, Verdict::Weaker, detail, remedy)
    };
    // The programs that map them have their rights by a set-user-id bit.
    if rustix::thread::no_new_privs().unwrap_or_default() {
        let why = "no program may gain rights here (`no_new_privs`), and those that map them must".to_owned();
        let remedy = "start outside what set that: `bwrap`, a service with `NoNewPrivileges=`";
        return Some(lacks(why, Some(remedy.to_owned())));
    }
    Some(match SubordinateIds::of(caller) {
        Err(none) => lacks(none.why, Some(none.remedy)),
        Ok(ids) => match within_subordinate_ids(ids, || 0) {
            Ok(_) => {
                let SubordinateIds { users, groups } = ids;
                Check::works("backends", WHAT, format!("users from {users} on, groups from {groups} on"))
            }
            Err(error) => lacks(error.to_string(), None),
        },
    })
}

fn describe(feature: Feature) -> (&'static str, &'static str) {
    match feature {
        Feature::UserNamespace => ("kernel", "user namespace"),
        Feature::OtherNamespaces => ("kernel", "other namespaces"),
        Feature::Mounts => ("kernel", "mounts of its own"),
        Feature::Proc => ("kernel", "a /proc of its own"),
        Feature::Overlay => ("kernel", "overlay in a user namespace"),
        Feature::Redirect => ("network", "redirect of all network traffic"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_feature_has_the_remedy_of_a_run_that_lacks_it() {
        for (feature, errno, says) in [
            (Feature::UserNamespace, Errno::NOSPC, "user.max_"),
            (Feature::UserNamespace, Errno::NOENT, "mount -t proc"),
            (Feature::OtherNamespaces, Errno::INVAL, "CONFIG_NET_NS"),
            (Feature::Mounts, Errno::ACCESS, "apparmor=unconfined"),
            (Feature::Proc, Errno::PERM, "systempaths=unconfined"),
            (Feature::Redirect, Errno::ACCESS, "netlink"),
            (Feature::Redirect, Errno::NOENT, "modprobe"),
        ] {
            let check = feature_check(feature, Err(errno.into()));
            let remedy = check.remedy.unwrap_or_default();
            assert!(check.verdict == Verdict::Missing && remedy.contains(says), "{feature:?}: {remedy}");
        }
        assert!(feature_check(Feature::Mounts, Ok(())).verdict == Verdict::Works);
        let not_tried = not_tried(Feature::Redirect);
        assert!(not_tried.verdict == Verdict::Missing && not_tried.remedy.is_none(), "{}", not_tried.detail);
    }

    #[test]
    fn a_backend_without_isolation_is_tried_as_well() {
        assert!(process_check(Ok(())).verdict == Verdict::Works);
        let refused = process_check(Err(Errno::NOSYS.into()));
        assert!(refused.verdict == Verdict::Missing && !refused.prevents_a_run());
        assert_eq!(refused.remedy, Some(Need::NewerKernel.remedy()));
    }

    #[test]
    fn images_can_be_run_wherever_an_overlay_can_be_mounted() {
        let absent = feature_check(Feature::Overlay, Err(Errno::NODEV.into()));
        assert!(absent.verdict == Verdict::Weaker && absent.remedy.unwrap().ends_with("`modprobe overlay`"));
        let on_disk = container_check(Kernel::Whole, Overlays::OnDisk);
        assert!(on_disk.verdict == Verdict::Works && on_disk.detail.contains("disk"), "{}", on_disk.detail);
        let in_memory = container_check(Kernel::Whole, Overlays::InMemory);
        assert!(in_memory.verdict == Verdict::Works && !in_memory.detail.contains("disk"));
        let none = container_check(Kernel::Whole, Overlays::None);
        assert!(none.verdict == Verdict::Weaker && !none.remedy.unwrap().contains("6.6"));
    }
}
