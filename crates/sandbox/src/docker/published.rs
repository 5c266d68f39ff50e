//! The command's ports that an engine publishes: on the sidecar's container, which accepts connections only at its address on the
//! network of sidecars.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};

use bollard::models::{PortBinding, PortMap};
use policy::Inbound;

use super::apart::{LONGEST, apart};
use super::engine::Engine;
use super::engine_error::error_text;
use crate::error::Error;
use crate::plan::engine::EngineAt;
use crate::run_network::RunNetwork;

/// Returns the exposed ports and the bindings of the sidecar's container: on loopback if only this machine may connect. Without
/// IPv6: an engine forwards that from an address of its own, which hides the client.
pub(super) fn bindings(published: &[Inbound]) -> (Option<Vec<String>>, Option<PortMap>) {
    let name = |inbound: &Inbound| format!("{}/tcp", inbound.host_port);
    let bind = |inbound: &Inbound| {
        let address = if inbound.is_local() { Ipv4Addr::LOCALHOST } else { Ipv4Addr::UNSPECIFIED };
        let binding = PortBinding {
            host_ip: Some(address.to_string()),
            host_port: Some(inbound.host_port.to_string()),
        };
        (name(inbound), Some(vec![binding]))
    };
    (Some(published.iter().map(name).collect()), Some(published.iter().map(bind).collect::<HashMap<_, _>>()))
}

/// A sidecar's addresses on the network of sidecars.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outward {
    /// The sidecar's own address.
    pub own: Ipv4Addr,
    /// The host's address: connections to ports published on loopback come from there.
    pub machine: Ipv4Addr,
}

/// Returns the addresses of the calling process on the network of sidecars.
///
/// # Errors
/// When the process is not on that network, or the engine gave it other addresses.
pub fn outward() -> io::Result<Outward> {
    let on = |network: RunNetwork| {
        let own = own_towards(network.gateway()).ok().filter(|own| network.has_place(*own))?;
        Some(Outward { own, machine: network.gateway() })
    };
    let found = RunNetwork::all_of_sidecars().find_map(on);
    found.ok_or_else(|| io::Error::other("this container has no address on the network of sidecars"))
}

/// Whether an address can be a sidecar's on the network of sidecars.
#[must_use]
pub fn is_of_sidecars(address: Ipv4Addr) -> bool {
    RunNetwork::all_of_sidecars().any(|network| network.has_place(address))
}

/// Whether the calling process is on the engine's machine, by its route to a sidecar's address.
///
/// # Errors
/// When there is no route.
pub fn is_beside_sidecars(sidecar: Ipv4Addr) -> io::Result<bool> {
    let own = own_towards(sidecar)?;
    Ok(RunNetwork::all_of_sidecars().any(|network| network.holds(sidecar) && own == network.gateway()))
}

/// Returns the source address of the calling process for a destination. The kernel picks it on connect(2); nothing is sent.
fn own_towards(other: Ipv4Addr) -> io::Result<Ipv4Addr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.connect((other, 9))?;
    match socket.local_addr()? {
        SocketAddr::V4(own) => Ok(*own.ip()),
        SocketAddr::V6(other) => Err(io::Error::other(format!("{} is not of IPv4", other.ip()))),
    }
}

/// Refuses inbound ports at a Podman without root, whose containers this machine cannot reach.
///
/// # Errors
/// When it is such an engine.
pub fn refuse_unreachable(at: &EngineAt) -> Result<(), Error> {
    match at.publishes() || !at.rootless {
        true => Ok(()),
        false => Err(Error::Refused {
            what: "[[inbound]] is not for Podman's service without root: this machine does not reach its containers".into(),
            remedy: Some("use --backend container, or an engine that root runs".into()),
        }),
    }
}

/// Refuses an engine that hides the clients of published ports from a container, for ports that other machines may use: one without
/// root, and a variant of Podman that is not recognised by its ping.
///
/// # Errors
/// When it is such an engine, or does not answer.
pub fn refuse_hidden_sources(at: &EngineAt) -> Result<(), Error> {
    let refused = |what: &str, remedy: &str| Error::Refused {
        what: what.to_owned(),
        remedy: (!remedy.is_empty()).then(|| remedy.to_owned()),
    };
    let hides = at.rootless
        || apart(LONGEST, || async {
            let fail = |error| Error::Refused { what: error_text(&error), remedy: None };
            let engine = Engine::at(at).map_err(fail)?;
            let (rootless, version) = tokio::join!(engine.is_rootless(), engine.api.version());
            let parts = version.map_err(fail)?.components.unwrap_or_default();
            Ok(rootless.map_err(fail)?
                || parts.iter().any(|part| part.name.to_lowercase().contains("podman")))
        })?;
    match hides {
        false => Ok(()),
        true => Err(refused(
            "this engine hides who connects, so `allowed_sources` beyond this machine cannot be held",
            "leave `allowed_sources` out of each [[inbound]], or use --backend container",
        )),
    }
}

#[cfg(test)]
mod tests {
    use policy::{Layers, Origin};

    use super::*;

    #[test]
    fn only_what_is_for_others_is_published_beyond_loopback() {
        let mut layers = Layers::default();
        let config = "[[inbound]]\ncontainer_port = 8000\n[[inbound]]\ncontainer_port = 8000\nhost_port = 80\n\
                      allowed_sources = [\"10.0.0.0/8\", \"127.0.0.1\"]\n";
        layers.push(Origin::Flags, toml::from_str(config).unwrap());
        let spec = layers.compile().unwrap();
        let (exposed, bound) = bindings(&spec.inbound);
        assert_eq!(exposed.unwrap(), ["8000/tcp", "80/tcp"]);
        let bound = bound.unwrap();
        let at = |name: &str| {
            let list = bound[name].clone().unwrap();
            assert_eq!(list.len(), 1);
            (list[0].host_ip.clone().unwrap(), list[0].host_port.clone().unwrap())
        };
        assert_eq!(at("8000/tcp"), ("127.0.0.1".into(), "8000".into()));
        assert_eq!(at("80/tcp"), ("0.0.0.0".into(), "80".into()));
    }
}
