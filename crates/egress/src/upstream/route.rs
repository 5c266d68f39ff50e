//! Connects to the destination of an exchange: pinned addresses, a companion, or a proxy.

use std::io;

use policy::{Host, Scheme};
use rustls::pki_types::ServerName;
use tokio_rustls::TlsConnector;

use super::cascade;
use super::dial::{Dialled, dial_each};
use super::race::CONNECT;
use super::stream::Upstream;
use super::trust::Offer;
use crate::destination::{Destination, Peer};
use crate::exchange::{Exchange, HasDestination, Ready};
use crate::gate::Gate;

/// Opens a connection for requests to the destination of an exchange. With `https` the upstream's certificate is verified for the granted
/// host before one octet of a request is sent (C04).
pub(crate) async fn open(
    gate: &Gate,
    exchange: &mut Exchange<Ready>,
    scheme: Scheme,
    offer: Offer,
) -> io::Result<Upstream> {
    let stream = dial(gate, exchange).await?;
    if scheme == Scheme::Http {
        return Ok(Upstream::Plain(stream));
    }
    let name = match exchange.grant().host() {
        Host::Name(name) => ServerName::try_from(name.as_str().to_owned()).map_err(io::Error::other)?,
        Host::Address(address) => ServerName::from(*address),
    };
    let connector = TlsConnector::from(gate.trust().config(offer)?);
    let tls = tokio::time::timeout(CONNECT, connector.connect(name, stream)).await;
    Ok(Upstream::Tls(Box::new(tls??)))
}

/// Connects to the destination of an exchange, and records which peer was reached.
pub(crate) async fn dial<S: HasDestination>(gate: &Gate, exchange: &mut Exchange<S>) -> io::Result<Dialled> {
    let (stream, peer) = match exchange.destination() {
        Destination::Dial(addresses) => {
            let (stream, address) = dial_each(addresses).await?;
            (stream, Peer::Address(address))
        }
        Destination::Companion(name, port) => {
            (gate.companions().connect(name, *port).await?, Peer::Companion(*port))
        }
        Destination::Proxy(proxy) => {
            let (proxy, grant) = (proxy.clone(), exchange.grant());
            let stream = cascade::through(gate, &proxy, grant.host(), grant.port()).await?;
            exchange.reach_through(&proxy.id);
            return Ok(stream);
        }
    };
    exchange.reach(peer);
    Ok(Dialled::Tcp(stream))
}
