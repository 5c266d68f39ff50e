//! Binds the sockets of a sidecar that serves alone, before its process is confined: an address that is taken is an error by name.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use egress::{GateError, Listeners, SocketName};

use super::{BoundAddresses, Standalone};
use crate::error::{Error, plumbing};

/// How long a killed sidecar's serving process may keep its addresses.
const LEFT_BEHIND: Duration = Duration::from_secs(2);
/// How often an address in use is tried again.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

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
    let began = Instant::now();
    let forward = patiently(began, || egress::bind(sidecar.forward))?;
    let mut addresses =
        BoundAddresses { forward: at(&forward)?, gateway: None, dns: None, transparent: None };
    let mut listeners = Listeners { forward: Some(forward), ..Listeners::default() };
    let mut socket_name = None;
    if let Some(address) = sidecar.gateway {
        let gateway = patiently(began, || egress::bind(address))?;
        addresses.gateway = Some(at(&gateway)?);
        listeners.gateway = Some(gateway);
    }
    if let Some(path) = &sidecar.gateway_socket {
        let socket = patiently(began, || egress::bind_socket(path))?;
        sandbox::refuse_descriptors(&socket)
            .map_err(plumbing("refuse descriptors at the gateway's socket"))?;
        listeners.gateway_socket = Some(socket);
        socket_name = Some(SocketName::of(path).map_err(plumbing("tell where a socket is bound"))?);
    }
    if let Some(address) = sidecar.dns {
        let tcp = patiently(began, || egress::bind(address))?;
        let address = at(&tcp)?;
        addresses.dns = Some(address);
        listeners.dns_tcp = Some(tcp);
        listeners.dns_udp = Some(patiently(began, || egress::bind_udp(address))?);
    }
    if let Some(address) = sidecar.transparent {
        let transparent = patiently(began, || egress::bind(address))?;
        addresses.transparent = Some(at(&transparent)?);
        listeners.transparent = Some(transparent);
    }
    Ok(Bound { listeners, addresses, socket_name })
}

/// Binds, and tries again while the address is in use: it may belong to a sidecar whose parent was killed a moment ago, and which is
/// about to end.
fn patiently(began: Instant, bind: impl Fn() -> Result<OwnedFd, GateError>) -> Result<OwnedFd, GateError> {
    loop {
        match bind() {
            Err(GateError::Bind { source, .. })
                if source.kind() == io::ErrorKind::AddrInUse && began.elapsed() < LEFT_BEHIND =>
            {
                std::thread::sleep(RETRY_INTERVAL);
            }
            bound => return bound,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn an_address_that_a_killed_sidecar_still_has_is_waited_for() {
        let left = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = left.local_addr().unwrap();
        let bind = || egress::bind(address);
        let long_ago = Instant::now().checked_sub(LEFT_BEHIND).unwrap();
        assert!(
            matches!(patiently(long_ago, bind), Err(GateError::Bind { .. })),
            "it is not waited for ever"
        );
        let ends = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            drop(left);
        });
        let bound = patiently(Instant::now(), bind).unwrap();
        assert_eq!(egress::bound(&bound).unwrap(), address);
        ends.join().unwrap();
    }
}
