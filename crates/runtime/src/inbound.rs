//! The ports of a run that may be reached from outside: opened here, and served by its sidecar. Where an engine publishes them,
//! they are opened in the sidecar's container; where it would hide who connects, here and there, and a porter hands connections on.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;

use credential::Secret;
use egress::{Entrance, InboundPorts, WhoConnects};
use policy::Inbound;
use sandbox::{EngineAt, Outward, SocketBroker};

use crate::error::Error;

/// Opens every declared port: on loopback where nobody else may connect, and on every address otherwise.
///
/// # Errors
/// When one is in use, or not for this caller to open.
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
        // One listener is for both families.
        false => match at(Ipv6Addr::UNSPECIFIED.into()) {
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

/// Whether an address cannot be had because this machine has no addresses of that family.
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

/// What the sidecar is given for them, and init's end of the way inside; nothing where no port is declared.
///
/// # Errors
/// Whatever `socketpair(2)` gives.
pub(crate) fn broker(ports: Vec<(OwnedFd, Inbound)>) -> io::Result<Option<(InboundPorts, OwnedFd)>> {
    if ports.is_empty() {
        return Ok(None);
    }
    let (broker, inside) = SocketBroker::pair()?;
    let entrance = Entrance::new(broker.into_line(), sandbox::ask_for_socket, sandbox::take_socket);
    Ok(Some((InboundPorts { ports, entrance, who: WhoConnects::Seen }, inside)))
}

/// What an engine is asked to publish: nothing of it is in use here, and it lets the sidecar see who connects. One that would not is
/// not asked: there this machine opens the ports.
///
/// # Errors
/// When what is declared cannot be held there.
pub(crate) fn published_by(declared: &[Inbound], engine: &EngineAt) -> Result<Vec<Inbound>, Error> {
    if declared.is_empty() {
        return Ok(Vec::new());
    }
    if !engine.publishes() {
        sandbox::refuse_unreachable(engine)?;
        return Ok(Vec::new());
    }
    // Opened here and let go of: the engine would say the same later, and in more words.
    match listen(declared) {
        // It is the engine that opens it, and may.
        Err(Error::Inbound { source, .. }) if source.kind() == io::ErrorKind::PermissionDenied => {}
        opened => drop(opened?),
    }
    if declared.iter().any(|inbound| !inbound.is_local()) {
        sandbox::refuse_hidden_sources(engine)?;
    }
    Ok(declared.to_vec())
}

/// What the sidecar at an engine serves, in its own container: at its address on the network of sidecars alone. Where a porter hands
/// connections on, it is known by a secret.
///
/// # Errors
/// When it is not on that network, or a port cannot be opened.
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
    let who = forwarder.map_or(WhoConnects::SeenBehind(machine.into()), WhoConnects::SidecarMessage);
    Ok(Some(InboundPorts { ports, entrance: Entrance::at(command), who }))
}
