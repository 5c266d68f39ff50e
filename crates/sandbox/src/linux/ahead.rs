//! Makes a sandbox's namespaces ahead, except the mount namespace, before its content is known. The network takes longest, and is made and
//! redirected while this process still reads its arguments and policy.

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;

use sys::enter;
use sys::holder::Holder;
use sys::process::{self, Child, Forked, Namespaces};

use super::wire;

/// Namespaces for one sandbox, made while this process goes on. If they cannot be made, or are not used within a minute, the sandbox makes
/// its own.
pub struct Ahead(Holder);

impl Ahead {
    /// Begins to make them. Returns `None` if the kernel refuses.
    #[must_use]
    pub fn begin() -> Option<Self> {
        Holder::begin(Namespaces::AHEAD, wire::messages().into()).ok().map(Self)
    }
}

impl fmt::Debug for Ahead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ahead")
    }
}

/// Starts init, in the namespaces that were made ahead if it can enter them. `init` receives the namespaces that are left to unshare.
pub(super) fn clone_init(
    ahead: Option<&Ahead>,
    cgroup: Option<BorrowedFd<'_>>,
    init: impl FnOnce(Namespaces, Forked) -> i32,
) -> io::Result<Child> {
    let Some(Ahead(holder)) = ahead else {
        return process::clone(Namespaces::USER_AND_PID, cgroup, |forked| init(Namespaces::REST, forked));
    };
    enter::clone_into(holder, cgroup, init)
        .or_else(|(_, init)| {
            process::clone(Namespaces::USER_AND_PID, cgroup, |forked| init(Namespaces::REST, forked))
        })
        .inspect(|_| holder.let_go())
}
