//! Where a sidecar alone listens: its sockets, bound on the addresses that it was told.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use egress::{GateError, Listeners, SocketName};

use super::{BoundAddresses, Standalone};
use crate::error::{Error, plumbing};

/// How long the process that served may go on after the one that started it was killed.
const LEFT_BEHIND: Duration = Duration::from_secs(2);
/// How often it is looked whether it has gone.
const AGAIN: Duration = Duration::from_millis(20);

/// Sockets are bound before anything is shut in, so that an address that is taken is an error by name.
pub(super) fn bind(sidecar: &Standalone) -> Result<(Listeners, BoundAddresses, Option<SocketName>), Error> {
    let at = |listener: &OwnedFd| egress::bound(listener).map_err(plumbing("tell where a socket is bound"));
    let began = Instant::now();
    let forward = patiently(began, || egress::bind(sidecar.forward))?;
    let mut places = BoundAddresses { forward: at(&forward)?, gateway: None, dns: None, transparent: None };
    let mut listeners = Listeners { forward: Some(forward), ..Listeners::default() };
    let mut name = None;
    if let Some(address) = sidecar.gateway {
        let gateway = patiently(began, || egress::bind(address))?;
        places.gateway = Some(at(&gateway)?);
        listeners.gateway = Some(gateway);
    }
    if let Some(path) = &sidecar.gateway_socket {
        listeners.gateway_socket = Some(patiently(began, || egress::bind_socket(path))?);
        name = Some(SocketName::of(path).map_err(plumbing("tell where a socket is bound"))?);
    }
    if let Some(address) = sidecar.dns {
        let tcp = patiently(began, || egress::bind(address))?;
        let address = at(&tcp)?;
        places.dns = Some(address);
        listeners.dns_tcp = Some(tcp);
        listeners.dns_udp = Some(patiently(began, || egress::bind_udp(address))?);
    }
    if let Some(address) = sidecar.transparent {
        let transparent = patiently(began, || egress::bind(address))?;
        places.transparent = Some(at(&transparent)?);
        listeners.transparent = Some(transparent);
    }
    Ok((listeners, places, name))
}

/// Binds. Where something has the address it may be a sidecar whose parent was killed a moment ago, and which is about to end.
fn patiently(began: Instant, bind: impl Fn() -> Result<OwnedFd, GateError>) -> Result<OwnedFd, GateError> {
    loop {
        match bind() {
            Err(GateError::Bind { source, .. })
                if source.kind() == io::ErrorKind::AddrInUse && began.elapsed() < LEFT_BEHIND =>
            {
                std::thread::sleep(AGAIN);
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
