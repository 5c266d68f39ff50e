//! The `veth` wiring: a veth pair, and a firewall around the host's end, at which the sidecar listens. Everything that the command
//! sends goes there or is dropped. It takes root, because the pair and the firewall are in the host's network.
//!
//! ```text
//! parent ◄── its network ── init          the other end is made there, in place
//!   undo · pair · block · sockets · firewall
//! parent ── the sockets ──► init ──► sidecar
//! ```
//! When the run ends, the kernel removes the pair with the sandbox's network; the firewall stays until then.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use policy::RunId;
use rustix::fs::{Mode, OFlags};
use sys::nftables::{self, Firewall};
use sys::{link, listener, undelivered};

use super::block::Block;
use super::handover::{self, Laid};
use crate::error::Error;
use crate::handshake::ListenerSet;
use crate::plan::inside::GATEWAY_SOCKET;
use crate::undo::{Undo, UndoLog};

/// The preferred ports of the sidecar: for all TCP (S2), and for DNS questions. Others are used if the host has these in use.
const PROXY: u16 = 9999;
const NAMES: u16 = 9953;

/// The name of a run's link at the host. With the run id's twelve letters it has the fifteen that the kernel allows.
fn host_link(run: &RunId) -> String {
    format!("vh-{run}")
}

fn sandbox_link(run: &RunId) -> String {
    format!("vs-{run}")
}

fn table(run: &RunId) -> String {
    format!("lockgate-{run}")
}

/// The socket that owns the firewall, so that nobody else can remove it, if the kernel supports that.
pub(super) type FirewallKey = Option<OwnedFd>;

/// The parent's side: makes the pair, its host end's addresses, sockets and firewall, with the other end in the network that init offers.
pub(super) fn lay(hand: &OwnedFd, run: &RunId, undo: &mut UndoLog) -> Result<(Laid, FirewallKey), Error> {
    let network = handover::take_network(hand).map_err(|source| Error::Handshake { whom: "init", source })?;
    let fail = |what| move |source| Error::Link { what, source };
    undo.push(Undo::Firewall(run.clone()));
    undo.push(Undo::Link(run.clone()));
    let name = host_link(run);
    link::make_pair(&name, &sandbox_link(run), network.as_fd()).map_err(fail("make a pair of links"))?;
    link::raise(&name).map_err(fail("raise the link"))?;
    let block = take_block(&name, run)?;
    let (proxy, at_proxy) = bind(block.host(), PROXY, listener::tcp).map_err(fail("listen for it"))?;
    let (names_tcp, at_names_tcp) =
        bind(block.host(), NAMES, listener::tcp).map_err(fail("listen for it"))?;
    let udp = |at: SocketAddr| listener::udp(block.host().to_ipv6_mapped(), at.port());
    let (names_udp, at_names_udp) = bind(block.host(), NAMES, udp).map_err(fail("listen for it"))?;
    let firewall = Firewall {
        table: &table(run),
        link: &name,
        here: block.host(),
        there: block.sandbox(),
        proxy: at_proxy,
        names: (at_names_udp, at_names_tcp),
    };
    let key = nftables::install(&firewall).map_err(fail("install its firewall"))?;
    Ok((Laid { block, sockets: [proxy, names_udp, names_tcp] }, key))
}

/// Takes the first candidate block that is not routed and not taken by another run at this moment.
fn take_block(name: &str, run: &RunId) -> Result<Block, Error> {
    let fail = |source| Error::Link { what: "take a block of addresses", source };
    for block in Block::candidates(run) {
        if !(link::is_free(block.host()).map_err(fail)? && link::is_free(block.sandbox()).map_err(fail)?) {
            continue;
        }
        match link::take(name, block.subnet(), block.host()) {
            Ok(()) => return Ok(block),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(fail(error)),
        }
    }
    Err(Error::Refused {
        what: "240.76.0.0/16, where links to sandboxes have their addresses, is in use here".into(),
        remedy: Some("route it elsewhere; or use --wiring redirect, which needs no addresses".into()),
    })
}

/// Binds a socket to a port of an address, or to any free port if a host's program has that port at every address.
fn bind(
    address: Ipv4Addr,
    port: u16,
    make: impl Fn(SocketAddr) -> io::Result<OwnedFd>,
) -> io::Result<(OwnedFd, u16)> {
    let socket = match make(SocketAddr::from((address, port))) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => make(SocketAddr::from((address, 0))),
        made => made,
    }?;
    let at = SocketAddr::try_from(rustix::net::getsockname(&socket)?).map_err(io::Error::other)?;
    Ok((socket, at.port()))
}

/// Init's side: hands its new network namespace to the parent, which makes the pair into it.
pub(super) fn offer_network(hand: &OwnedFd) -> io::Result<()> {
    let network = rustix::fs::open("/proc/self/ns/net", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    handover::offer_network(hand, network.as_fd())
}

/// Init's side: routes everything to the host's end, and hands the sockets bound there to the sidecar, with the gateway's socket.
pub(super) fn join(run: &RunId, laid: Laid, sidecar: BorrowedFd<'_>) -> io::Result<()> {
    let Laid { block, sockets: [proxy, names_udp, names_tcp] } = laid;
    let subnet = block.subnet();
    link::lead_everything(&sandbox_link(run), block.sandbox(), subnet.length, block.host())?;
    let listeners = ListenerSet {
        transparent: Some(proxy),
        // As with `redirect`: the proxy and the gateway are ports of an address that is routed here like any other.
        forward: None,
        gateway: None,
        gateway_socket: Some(listener::unix(Path::new(GATEWAY_SOCKET))?),
        dns_udp: Some(names_udp),
        dns_tcp: Some(names_tcp),
        // The firewall rejects datagrams.
        undelivered_v4: Some(undelivered::v4()?),
        undelivered_v6: None, // the link has no IPv6
    };
    listeners.send(sidecar)
}

/// Removes a run's link, and with it the sandbox's only way out.
pub(crate) fn remove_link(run: &RunId) -> io::Result<()> {
    link::remove(&host_link(run))
}

/// Removes a run's firewall. Only when the link is gone, or nobody is at its other end.
pub(crate) fn remove_firewall(run: &RunId) -> io::Result<()> {
    nftables::remove_table(&table(run))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_of_links_are_as_long_as_they_may_be() {
        let run = "abcdefghjkmn".parse().unwrap();
        for name in [host_link(&run), sandbox_link(&run)] {
            assert_eq!(name.len(), 15, "IFNAMSIZ, with its end"); // S2.12
        }
    }
}
