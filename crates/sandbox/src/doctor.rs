//! Examines what this machine offers a sandbox. Features are tried, and never derived from a version number.

use sys::probe::{Feature, try_feature};

use crate::caller::Caller;
use crate::error::{ENOSYS, NONE_INSIDE};
use crate::failure::Need;
use crate::host::Host;
use crate::linux::within_subordinate_ids;
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
}

/// Examines the kernel, the network and the backends.
#[must_use]
pub fn examine(caller: &Caller) -> Vec<Check> {
    let host = Host::detect();
    let mut checks: Vec<Check> = Vec::new();
    let (mut all_work, mut overlay) = (true, true);
    for feature in Feature::ALL {
        let check = feature_check(feature);
        match check.verdict {
            Verdict::Works => {}
            Verdict::Weaker => overlay = false,
            Verdict::Missing => all_work = false,
        }
        checks.push(check);
    }
    if let Some((detail, remedy)) = host.half_root().filter(|_| caller.superuser) {
        all_work = false;
        checks.push(Check::lacks("kernel", "ids of a run's own", Verdict::Missing, detail, Some(remedy)));
    }
    checks.push(Check::works("kernel", "system-call filter", "seccomp, an allowlist"));
    checks.push(landlock_check(&host));
    checks.push(limits_check(&host));
    checks.push(linux_check(all_work));
    checks.push(container_check(all_work, overlay));
    checks.push(Check::works(
        "backends",
        "process",
        "always there, and no isolation: only the proxy checks requests",
    ));
    checks
}

/// Tries a feature. Without overlays only images cannot be run, so that verdict is [`Verdict::Weaker`].
fn feature_check(feature: Feature) -> Check {
    let (group, what) = describe(feature);
    match try_feature(feature) {
        Ok(()) => Check::works(group, what, "works"),
        Err(error) if feature == Feature::Overlay => {
            let remedy = "have `overlay` loaded; in memory it takes a kernel of 6.6 or later".to_owned();
            Check::lacks(group, what, Verdict::Weaker, error.to_string(), Some(remedy))
        }
        Err(error) => {
            let remedy = match error.raw_os_error() {
                Some(ENOSYS) => NONE_INSIDE.to_owned(),
                _ => need(feature).means().into_owned(),
            };
            Check::lacks(group, what, Verdict::Missing, error.to_string(), Some(remedy))
        }
    }
}

fn landlock_check(host: &Host) -> Check {
    match host.landlock {
        Some(version) => Check::works("kernel", "Landlock", format!("version {version}")),
        None => Check::lacks(
            "kernel",
            "Landlock",
            Verdict::Weaker,
            "the kernel has none; mounts alone keep files apart".into(),
            Some("boot with `lsm=landlock,…`, on a kernel of 5.13 or later".into()),
        ),
    }
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

fn linux_check(all_work: bool) -> Check {
    if all_work {
        return Check::works("backends", "linux", "rootless; the default");
    }
    let detail = "something it is made of is missing, see above".into();
    Check::lacks("backends", "linux", Verdict::Missing, detail, Some("mend what is marked above".into()))
}

fn container_check(all_work: bool, overlay: bool) -> Check {
    let lacks = |detail: &str, remedy: Option<&str>| {
        let remedy = remedy.map(str::to_owned);
        Check::lacks("backends", "container", Verdict::Weaker, detail.into(), remedy)
    };
    match (all_work, overlay) {
        (true, true) => Check::works("backends", "container", "rootless; on the files of an image"),
        (true, false) => lacks(
            "overlays cannot be mounted without root, so images cannot be run",
            Some("a kernel of 6.6 or later"),
        ),
        (false, _) => lacks("something it is made of is missing, see above", None),
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

/// Returns the requirement of a missing feature.
fn need(feature: Feature) -> Need {
    match feature {
        Feature::UserNamespace | Feature::OtherNamespaces => Need::UserNamespaces,
        Feature::Proc => Need::UncoveredProc,
        Feature::Overlay => Need::Overlay,
        Feature::Redirect => Need::Redirect,
    }
}

fn describe(feature: Feature) -> (&'static str, &'static str) {
    match feature {
        Feature::UserNamespace => ("kernel", "user namespace"),
        Feature::OtherNamespaces => ("kernel", "other namespaces"),
        Feature::Proc => ("kernel", "a /proc of its own"),
        Feature::Overlay => ("kernel", "overlay in a user namespace"),
        Feature::Redirect => ("network", "redirect of all network traffic"),
    }
}
