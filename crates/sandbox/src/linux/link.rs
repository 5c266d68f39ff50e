//! The `veth` wiring: a pair of links, and a wall around the host's end, behind which the sidecar's sockets are. What the
//! command sends goes there or nowhere. It is root's: the pair and the wall are in the host's own network.
//!
//! ```text
//! parent ◄── its network ── init          the other end is made there, in place
//!   note · pair · block · wall · sockets
//! parent ── the sockets ──► init ──► sidecar
//! ```
//! When the run ends, the kernel takes the pair away with the sandbox's network; the wall stays until then.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use policy::RunId;
use rustix::fs::{Mode, OFlags};
use sys::nftables::{self, Firewall};
use sys::{link, listener};

use super::block::Block;
use super::handover::{self, Laid};
use crate::error::Error;
use crate::handshake::ListenerSet;
use crate::plan::inside::GATEWAY_SOCKET;
use crate::undo::{Undo, UndoLog};

/// The port that all TCP goes to (S2), and that of questions for names, where nothing of the host's is in the way.
const PROXY: u16 = 9999;
const NAMES: u16 = 9953;

/// The name of a run's link at the host: with a run's twelve letters, the fifteen that the kernel allows.
fn host_link(run: &RunId) -> String {
    format!("vh-{run}")
}

fn sandbox_link(run: &RunId) -> String {
    format!("vs-{run}")
}

fn table(run: &RunId) -> String {
    format!("lockgate-{run}")
}

/// What keeps others from taking the wall down, where the kernel has that.
pub(super) type FirewallKey = Option<OwnedFd>;

/// The parent's side: makes the pair into the network that init offers, and all that stands around it.
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
    let key = nftables::install(&firewall).map_err(fail("put up its wall"))?;
    Ok((Laid { block, sockets: [proxy, names_udp, names_tcp] }, key))
}

/// The first block of the run's that leads nowhere yet and that nobody else takes at this moment.
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

/// Binds a socket to a port of an address; to whatever port there is where a program of the host's has that one at every
/// address.
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

/// Init's side: lets the parent make a link into the network that init has just made.
pub(super) fn offer_network(hand: &OwnedFd) -> io::Result<()> {
    let network = rustix::fs::open("/proc/self/ns/net", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    handover::offer_network(hand, network.as_fd())
}

/// Init's side: leads everything to the host's end, and hands what is bound there to the sidecar, with the gateway's socket.
pub(super) fn join(run: &RunId, laid: Laid, sidecar: BorrowedFd<'_>) -> io::Result<()> {
    let Laid { block, sockets: [proxy, names_udp, names_tcp] } = laid;
    let subnet = block.subnet();
    link::lead_everything(&sandbox_link(run), block.sandbox(), subnet.length, block.host())?;
    let listeners = ListenerSet {
        transparent: Some(proxy),
        // As with `redirect`: the proxy and the gateway are ports of an address that is led here like any other.
        forward: None,
        gateway: None,
        gateway_socket: Some(listener::unix(Path::new(GATEWAY_SOCKET))?),
        dns_udp: Some(names_udp),
        dns_tcp: Some(names_tcp),
        // Nobody holds them beside init: they are taken apart as it ends.
        mounts: None,
    };
    listeners.send(sidecar)
}

/// Takes a run's link away, and with it the sandbox's way to anywhere.
pub(crate) fn remove_link(run: &RunId) -> io::Result<()> {
    link::remove(&host_link(run))
}

/// Takes a run's wall away: only when there is no link any more, or nobody at its other end.
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
