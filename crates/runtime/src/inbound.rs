//! Opens the ports of a run that may be reached from outside. The sidecar serves them: on this machine, or in its container where an
//! engine publishes them. Where an engine would hide who connects, they are opened on both, and a port forwarder connects the two.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;

use credential::Secret;
use egress::{Entrance, InboundPorts, WhoConnects};
use policy::Inbound;
use sandbox::{EngineAt, Outward, SocketBroker};

use crate::error::Error;

/// Opens every declared port: on loopback if nobody else may connect, otherwise on every address.
///
/// # Errors
/// When a port is in use, or the caller may not open it.
pub(crate) fn listen(declared: &[Inbound]) -> Result<Vec<(OwnedFd, Inbound)>, Error> {
    let mut ports = Vec::new();
    for inbound in declared {
        let listeners =
            open(inbound).map_err(|source| Error::Inbound { port: inbound.host_port.number(), source })?;
        ports.extend(listeners.into_iter().map(|listener| (listener, inbound.clone())));
    }
    Ok(ports)
}

fn open(inbound: &Inbound) -> io::Result<Vec<OwnedFd>> {
    let at = |address: IpAddr| bind(SocketAddr::new(address, inbound.host_port.number()));
    let (v4, v6): (IpAddr, IpAddr) = match inbound.is_local() {
        true => (Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()),
        false => match egress::bind_everywhere(inbound.host_port.number()) {
            Err(error) if has_no_family(&error) => {
                return at(Ipv4Addr::UNSPECIFIED.into()).map(|fd| vec![fd]);
            }
            both => return both.map(|fd| vec![fd]),
        },
    };
    match (at(v4)?, at(v6)) {
        (first, Ok(second)) => Ok(vec![first, second]),
        (only, Err(error)) if has_no_family(&error) => Ok(vec![only]),
        (_, Err(error)) => Err(error),
    }
}

/// Whether an address cannot be bound because this machine has no addresses of that family.
fn has_no_family(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(rustix::io::Errno::from_raw_os_error);
    matches!(errno, Some(rustix::io::Errno::ADDRNOTAVAIL | rustix::io::Errno::AFNOSUPPORT))
}

fn bind(address: SocketAddr) -> io::Result<OwnedFd> {
    egress::bind(address).map_err(|error| match error {
        egress::GateError::Bind { source, .. } => source,
        other => io::Error::other(other),
    })
}

/// Returns what the sidecar is given for the ports, and init's end of the socket broker; `None` if no port is declared.
///
/// # Errors
/// When socketpair(2) fails.
pub(crate) fn broker(ports: Vec<(OwnedFd, Inbound)>) -> io::Result<Option<(InboundPorts, OwnedFd)>> {
    if ports.is_empty() {
        return Ok(None);
    }
    let (broker, inside) = SocketBroker::pair()?;
    let entrance = Entrance::new(broker.into_line(), sandbox::ask_for_socket, sandbox::take_socket);
    Ok(Some((InboundPorts { ports, entrance, who: WhoConnects::Seen }, inside)))
}

/// Returns the ports that an engine is asked to publish, after checking that they are free and that the engine shows the sidecar who
/// connects. An engine that does not publish is not asked: this machine opens the ports.
///
/// # Errors
/// When the engine cannot hold the declared ports as declared.
pub(crate) fn published_by(declared: &[Inbound], engine: &EngineAt) -> Result<Vec<Inbound>, Error> {
    if declared.is_empty() {
        return Ok(Vec::new());
    }
    if !engine.publishes() {
        sandbox::refuse_unreachable(engine)?;
        return Ok(Vec::new());
    }
    // Opened and closed again: the engine would report the same later, and less clearly.
    match listen(declared) {
        // The engine opens the port, and may.
        Err(Error::Inbound { source, .. }) if source.kind() == io::ErrorKind::PermissionDenied => {}
        opened => drop(opened?),
    }
    if declared.iter().any(|inbound| !inbound.is_local()) {
        sandbox::refuse_hidden_sources(engine)?;
    }
    Ok(declared.to_vec())
}

/// Opens the ports that a sidecar serves in its own container: on its address on the network of sidecars only. A port forwarder
/// authenticates with `forwarder`.
///
/// # Errors
/// When the container is not on that network, or a port cannot be opened.
pub(crate) fn published(
    declared: Vec<Inbound>,
    command: Ipv4Addr,
    forwarder: Option<Secret>,
) -> io::Result<Option<InboundPorts>> {
    if declared.is_empty() {
        return Ok(None);
    }
    let Outward { own, machine } = sandbox::outward()?;
    let open = |inbound: Inbound| {
        bind(SocketAddr::from((own, inbound.host_port.number()))).map(|listener| (listener, inbound))
    };
    let ports = declared.into_iter().map(open).collect::<io::Result<_>>()?;
    let who = forwarder.map_or(WhoConnects::SeenBehind(machine.into()), WhoConnects::Forwarder);
    Ok(Some(InboundPorts { ports, entrance: Entrance::at(command), who }))
}
