//! One scenario in a guest: its user, its lines of shell, and the check of its answer.

use crate::answer::Answer;

/// The user, and the user's control group. `init.sh` makes the groups, owned as systemd makes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caller {
    /// Root, in the scope of a session.
    Root,
    /// An unprivileged user, in a scope of a user's own service manager: `systemd-run --user --scope -p Delegate=yes`.
    Delegated,
    /// An unprivileged user in a child of a delegated service: `Delegate=yes`, `DelegateSubgroup=`.
    Subgroup,
    /// An unprivileged user in the delegated group itself, which therefore contains a process: `Delegate=yes` alone.
    Within,
    /// An unprivileged user with a delegation that leaves the processor out, as that of older systems does.
    NoProcessor,
    /// An unprivileged user who was given a group's directory, but not its files.
    HalfGiven,
    /// An unprivileged user in the scope of a session, without a delegation.
    Undelegated,
}

impl Caller {
    /// The user's name.
    pub(crate) fn user(self) -> &'static str {
        match self {
            Self::Root => "root",
            _ => "user",
        }
    }

    /// The control group, below the mount point.
    pub(crate) fn group(self) -> &'static str {
        match self {
            Self::Root => "user.slice/user-0.slice/session-1.scope",
            Self::Delegated => "user.slice/user-1000.slice/user@1000.service/app.slice/run-1.scope",
            Self::Subgroup => "system.slice/sub.service/main",
            Self::Within => "system.slice/within.service",
            Self::NoProcessor => "system.slice/old.slice/user.service/main",
            Self::HalfGiven => "system.slice/half.service/main",
            Self::Undelegated => "user.slice/user-1000.slice/session-2.scope",
        }
    }
}

/// One scenario.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// What the scenario shows.
    pub name: &'static str,
    /// The lines of shell. The working directory is a project's; `groups` lists the product's control groups, `hold FLAGS…`
    /// starts a run that holds and leaves its process id in `$run`.
    pub script: &'static str,
    /// Checks the answer, and panics if it is wrong.
    pub check: fn(&Answer),
}
