//! Where a sidecar alone listens: its sockets, bound on the addresses that it was told.

use std::os::fd::OwnedFd;

use egress::{Listeners, SocketName};

use super::{BoundAddresses, Standalone};
use crate::error::{Error, plumbing};

/// Sockets are bound before anything is shut in, so that an address that is taken is an error by name.
pub(super) fn bind(sidecar: &Standalone) -> Result<(Listeners, BoundAddresses, Option<SocketName>), Error> {
    let at = |listener: &OwnedFd| egress::bound(listener).map_err(plumbing("tell where a socket is bound"));
    let forward = egress::bind(sidecar.forward)?;
    let mut places = BoundAddresses { forward: at(&forward)?, gateway: None, dns: None, transparent: None };
    let mut listeners = Listeners { forward: Some(forward), ..Listeners::default() };
    let mut name = None;
    if let Some(address) = sidecar.gateway {
        let gateway = egress::bind(address)?;
        places.gateway = Some(at(&gateway)?);
        listeners.gateway = Some(gateway);
    }
    if let Some(path) = &sidecar.gateway_socket {
        listeners.gateway_socket = Some(egress::bind_socket(path)?);
        name = Some(SocketName::of(path).map_err(plumbing("tell where a socket is bound"))?);
    }
    if let Some(address) = sidecar.dns {
        let tcp = egress::bind(address)?;
        let address = at(&tcp)?;
        places.dns = Some(address);
        listeners.dns_tcp = Some(tcp);
        listeners.dns_udp = Some(egress::bind_udp(address)?);
    }
    if let Some(address) = sidecar.transparent {
        let transparent = egress::bind(address)?;
        places.transparent = Some(at(&transparent)?);
        listeners.transparent = Some(transparent);
    }
    Ok((listeners, places, name))
}
