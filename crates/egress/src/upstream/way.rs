//! The way to a host: straight, to a companion, or through a proxy.

use std::io;

use policy::Host;

use super::cascade;
use super::dial::{CONNECT, Dialled, dial_each};
use crate::exchange::{Exchange, Reach};
use crate::gate::Gate;

/// Opens a connection to the first pinned address that answers, or through the proxy on the way.
pub(crate) async fn dial<S: Reach>(gate: &Gate, exchange: &mut Exchange<S>) -> io::Result<Dialled> {
    if let Some(proxy) = exchange.proxy().cloned() {
        let (host, port) = (exchange.grant().host().clone(), exchange.grant().port());
        let through = cascade::through(gate, &proxy, &host, port);
        let stream = tokio::time::timeout(CONNECT, through)
            .await
            .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        exchange.reach_through(&proxy.id);
        return Ok(stream);
    }
    let (stream, address) = match (exchange.addresses(), exchange.grant().host()) {
        ([companion], Host::Name(name)) if let Err(port) = companion.place() => {
            (gate.companions().connect(name, port).await?, *companion)
        }
        (addresses, _) => dial_each(addresses).await?,
    };
    exchange.reach(address);
    Ok(Dialled::Tcp(stream))
}
