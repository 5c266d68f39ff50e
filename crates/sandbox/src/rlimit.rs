//! Lowers the resource limits of this process and its children, which any process may do.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The limit of a core file, in octets. 1 and not 0: with 0 the kernel would still start a host's crash handler behind a pipe, core(5).
pub(crate) const CORE: u64 = 1;

/// Lowers a limit to `most`. A lower one stays.
pub(crate) fn lower(resource: Resource, most: u64) -> io::Result<()> {
    let now = getrlimit(resource);
    let at_most = |now: Option<u64>| Some(now.map_or(most, |now| now.min(most)));
    let limit = Rlimit { current: at_most(now.current), maximum: at_most(now.maximum) };
    Ok(setrlimit(resource, limit)?)
}

/// Has no core files written of any size worth it. Raises a limit of 0 where the hard limit allows it.
pub(crate) fn lower_cores() -> io::Result<()> {
    let most = getrlimit(Resource::Core).maximum.map_or(CORE, |most| most.min(CORE));
    Ok(setrlimit(Resource::Core, Rlimit { current: Some(most), maximum: Some(most) })?)
}
