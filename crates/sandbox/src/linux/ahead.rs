//! What can be made of a sandbox before anybody knows what is to be in it: its namespaces but for the mounts. The network is
//! the dearest of them, and whoever begins early has it made, and redirected, while arguments and policy are read.

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;

use sys::enter;
use sys::held::Held;
use sys::process::{self, Child, Namespaces};

use super::wire;

/// Namespaces for one sandbox, made while this process goes on. Where none can be made, or they are not used within a minute,
/// the sandbox makes its own.
pub struct Ahead(Held);

impl Ahead {
    /// Begins to make them; nothing where that is refused.
    #[must_use]
    pub fn begin() -> Option<Self> {
        Held::begin(Namespaces::AHEAD, wire::messages().into()).ok().map(Self)
    }
}

impl fmt::Debug for Ahead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ahead")
    }
}

/// Starts init, in the namespaces that were made ahead where it can enter them. It is told what is left for it to unshare.
pub(super) fn clone_init(
    ahead: Option<&Ahead>,
    cgroup: Option<BorrowedFd<'_>>,
    init: impl FnOnce(Namespaces) -> i32,
) -> io::Result<Child> {
    let Some(Ahead(held)) = ahead else {
        return process::clone(Namespaces::USER_AND_PID, cgroup, || init(Namespaces::REST));
    };
    enter::clone_into(held, cgroup, init)
        .or_else(|(_, init)| process::clone(Namespaces::USER_AND_PID, cgroup, || init(Namespaces::REST)))
        .inspect(|_| held.let_go())
}
