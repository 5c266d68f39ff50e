//! Binds the sockets of a sidecar that serves alone, before its process is confined: an address that is taken is an error by name.

use std::os::fd::OwnedFd;

use egress::{Listeners, SocketName};

use super::{BoundAddresses, Standalone};
use crate::error::{Error, plumbing};

/// The sockets that were bound.
pub(super) struct Bound {
    pub(super) listeners: Listeners,
    pub(super) addresses: BoundAddresses,
    /// Removes the path of the gateway's Unix socket when it is dropped.
    pub(super) socket_name: Option<SocketName>,
}

/// Binds every socket that was asked for.
pub(super) fn bind(sidecar: &Standalone) -> Result<Bound, Error> {
    let at = |listener: &OwnedFd| egress::bound(listener).map_err(plumbing("tell where a socket is bound"));
    let forward = egress::bind(sidecar.forward)?;
    let mut addresses =
        BoundAddresses { forward: at(&forward)?, gateway: None, dns: None, transparent: None };
    let mut listeners = Listeners { forward: Some(forward), ..Listeners::default() };
    let mut socket_name = None;
    if let Some(address) = sidecar.gateway {
        let gateway = egress::bind(address)?;
        addresses.gateway = Some(at(&gateway)?);
        listeners.gateway = Some(gateway);
    }
    if let Some(path) = &sidecar.gateway_socket {
        listeners.gateway_socket = Some(egress::bind_socket(path)?);
        socket_name = Some(SocketName::of(path).map_err(plumbing("tell where a socket is bound"))?);
    }
    if let Some(address) = sidecar.dns {
        let tcp = egress::bind(address)?;
        let address = at(&tcp)?;
        addresses.dns = Some(address);
        listeners.dns_tcp = Some(tcp);
        listeners.dns_udp = Some(egress::bind_udp(address)?);
    }
    if let Some(address) = sidecar.transparent {
        let transparent = egress::bind(address)?;
        addresses.transparent = Some(at(&transparent)?);
        listeners.transparent = Some(transparent);
    }
    Ok(Bound { listeners, addresses, socket_name })
}
