//! What a sidecar's container does with the network of its run: every address that stands for a name is its own there, all TCP
//! of the agent's goes to one port and its questions for names to another, whatever they are for. What the sidecar serves is
//! bound to its address on that network and no other, and nothing is passed on.

use std::io;
use std::net::SocketAddr;

use sys::{listener, network, nftables};

use crate::handshake::ListenerSet;
use crate::plan::inside::{DNS_PORT, TRANSPARENT_PORT};
use crate::run_network::RunNetwork;

/// Wires the calling process's network, and binds what the sidecar serves.
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
