//! Lowers the resource limits of this process and its children, which any process may do.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The limit of a core file, in octets. 1 and not 0: with 0 the kernel would still start a host's crash handler behind a pipe, core(5).
pub(crate) const CORE: u64 = 1;

/// Lowers both limits of a resource to `most`. One that is lower stays.
pub(crate) fn lower(resource: Resource, most: u64) -> io::Result<()> {
    let now = getrlimit(resource);
    let at_most = |now: Option<u64>| Some(now.map_or(most, |now| now.min(most)));
    let limit = Rlimit { current: at_most(now.current), maximum: at_most(now.maximum) };
    Ok(setrlimit(resource, limit)?)
}

/// Sets both limits of a resource to `most`, or as near to it as the hard limit allows. A lower soft limit is raised to that.
pub(crate) fn set(resource: Resource, most: u64) -> io::Result<()> {
    let most = Some(getrlimit(resource).maximum.map_or(most, |maximum| maximum.min(most)));
    Ok(setrlimit(resource, Rlimit { current: most, maximum: most })?)
}

/// Has no core files written of any size worth it.
pub(crate) fn set_cores() -> io::Result<()> {
    set(Resource::Core, CORE)
}
