//! Dials the destination of an exchange: pinned addresses, a companion, or a proxy.

use std::io;

use super::cascade;
use super::dial::{CONNECT, Dialled, dial_each};
use crate::destination::{Destination, Peer};
use crate::exchange::{Exchange, HasDestination};
use crate::gate::Gate;

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
            let through = cascade::through(gate, &proxy, grant.host(), grant.port());
            let stream = tokio::time::timeout(CONNECT, through).await.map_err(|_| {
                let why = format!("proxy {} did not answer in {} s", proxy.id, CONNECT.as_secs());
                io::Error::new(io::ErrorKind::TimedOut, why)
            })??;
            exchange.reach_through(&proxy.id);
            return Ok(stream);
        }
    };
    exchange.reach(peer);
    Ok(Dialled::Tcp(stream))
}
