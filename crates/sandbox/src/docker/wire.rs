//! Wires the network of a run inside the sidecar's container: every address that stands for a name is local there, all TCP of the
//! agent goes to one port, and its DNS queries to another, whatever their destination. The sidecar's sockets are bound to its
//! address on that network only, and nothing is forwarded.

use std::io;
use std::net::SocketAddr;

use policy::agreed::{DNS_PORT, TRANSPARENT_PORT};
use sys::{listener, network, nftables};

use crate::handshake::ListenerSet;
use crate::run_network::RunNetwork;

/// Wires the network of the calling process, and binds the sidecar's sockets.
///
/// # Errors
/// When the kernel refuses a route, a rule or a socket.
pub fn wire_run_network(run: RunNetwork) -> io::Result<ListenerSet> {
    let blocks: Vec<_> = run.blocks().collect();
    network::make_local(&blocks)?;
    nftables::redirect_from(run.agent(), TRANSPARENT_PORT)?;
    let own = |port| SocketAddr::from((run.sidecar(), port));
    Ok(ListenerSet {
        // The proxy and the gateway are ports of the sidecar's address, as in a sandbox of ours.
        transparent: Some(listener::tcp(own(TRANSPARENT_PORT))?),
        dns_udp: Some(listener::udp(run.sidecar().to_ipv6_mapped(), DNS_PORT)?),
        dns_tcp: Some(listener::tcp(own(DNS_PORT))?),
        ..ListenerSet::default()
    })
}
