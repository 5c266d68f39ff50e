//! The sockets of a sandbox behind which its sidecar serves: bound inside, by init, and handed out.

use std::io;
use std::net::{Ipv6Addr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use sys::listener;

use super::root::Root;
use crate::handshake::ListenerSet;
use crate::plan::inside::{DNS_PORT, GATEWAY_SOCKET, TRANSPARENT_PORT};

/// Binds the listeners, one of them in the root, and hands them to the sidecar, with a hold on the mounts: the kernel takes half a
/// millisecond to take them apart, and init, for whose end the parent may wait, does not have to.
pub(super) fn hand_out(root: &Root, sidecar: BorrowedFd<'_>) -> io::Result<()> {
    let listeners = ListenerSet {
        transparent: Some(listener::tcp_for_any_address(TRANSPARENT_PORT)?),
        // The proxy and the gateway are ports of an address that is led here like any other: none is taken from the agent.
        forward: None,
        gateway: None,
        gateway_socket: Some(root.listen(Path::new(GATEWAY_SOCKET))?),
        dns_udp: Some(listener::udp_on_every_address(DNS_PORT)?),
        dns_tcp: Some(listener::tcp(SocketAddr::from((Ipv6Addr::UNSPECIFIED, DNS_PORT)))?),
        mounts: Some(rustix::fs::open("/proc/self/ns/mnt", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?),
    };
    listeners.send(sidecar)
}
