//! The listeners of a sandbox: init binds them inside, and hands them to the sidecar.

use std::io;
use std::net::{Ipv6Addr, SocketAddr};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;

use policy::agreed::{DNS_PORT, TRANSPARENT_PORT};
use sys::{listener, undelivered};

use super::root::Root;
use crate::handshake::ListenerSet;
use crate::plan::inside::GATEWAY_SOCKET;

/// Binds the listeners, one of them in the root, and hands them to the sidecar.
pub(super) fn hand_out(root: &Root, sidecar: BorrowedFd<'_>) -> io::Result<()> {
    let listeners = ListenerSet {
        transparent: Some(listener::tcp_for_any_address(TRANSPARENT_PORT)?),
        // The proxy and the gateway are ports of an address that is redirected like any other, so the agent loses no port.
        forward: None,
        gateway: None,
        gateway_socket: Some(root.listen(Path::new(GATEWAY_SOCKET))?),
        dns_udp: Some(listener::udp_on_every_address(DNS_PORT)?),
        dns_tcp: Some(listener::tcp(SocketAddr::from((Ipv6Addr::UNSPECIFIED, DNS_PORT)))?),
        undelivered_v4: Some(undelivered::v4()?),
        undelivered_v6: undelivered::v6()?,
    };
    listeners.send(sidecar)
}

impl Root {
    /// Makes a listener on a Unix socket at a path of the private root. bind(2) takes a name only, so this changes the process's current
    /// directory, until the process enters the root.
    fn listen(&self, path: &Path) -> io::Result<OwnedFd> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        rustix::process::fchdir(self.open(parent)?)?;
        listener::unix(Path::new(name))
    }
}
