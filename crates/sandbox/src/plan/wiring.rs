//! Whether a run may have the wiring that it asks for.

use policy::{Backend, RunSpec, Wiring};

use crate::caller::Caller;
use crate::error::Error;
use crate::host::Host;

/// Refuses wiring `veth` if the caller or the backend cannot have it. Only root can make a veth pair, and only a sandbox of this kernel has
/// a place for its other end.
pub(super) fn refuse_link(spec: &RunSpec, caller: &Caller, host: &Host) -> Result<(), Error> {
    if spec.wiring == Wiring::Redirect {
        return Ok(());
    }
    let remedy = "use --wiring redirect, which needs no root and no link";
    let refused = |what: &str| Error::Refused { what: what.into(), remedy: Some(remedy.into()) };
    match spec.backend {
        Backend::Docker | Backend::Process => Err(Error::Impossible {
            what: format!("wiring `veth` is of `linux` and `container`, not of `{}`", spec.backend),
            remedy: remedy.into(),
        }),
        Backend::Linux | Backend::Container if !caller.superuser => {
            Err(refused("wiring `veth` makes a link in this machine's network, which only root may"))
        }
        Backend::Linux | Backend::Container if !host.makes_links => Err(refused(
            "wiring `veth` makes a link in this machine's network, and CAP_NET_ADMIN is missing here",
        )),
        Backend::Linux | Backend::Container => Ok(()),
    }
}
