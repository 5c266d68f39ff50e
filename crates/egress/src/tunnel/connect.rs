//! Answers a granted `CONNECT`, and hands its tunnel on.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use policy::Plane;
use tokio::net::TcpStream;

use super::carry::carry_both;
use super::sniff;
use super::terminate::terminate;
use crate::exchange::{Exchange, Granted, Pinned};
use crate::gate::Gate;
use crate::http::{After, Buffered, TOO_SLOW, unreachable, write_last_within_limit, write_within_limit};
use crate::upstream;

/// The answer to a granted `CONNECT`.
const ESTABLISHED: &[u8] = b"HTTP/1.1 200 Connection established\r\n\r\n";

/// How long a tunnel of the explicit proxy may be idle (REQUIREMENTS, literal behaviour of 8081).
const CONNECT_IDLE: Duration = Duration::from_secs(120);

/// Dials the destination, answers the `CONNECT`, and carries what the rule allows.
pub(crate) async fn after_connect(
    gate: &Rc<Gate>,
    mut exchange: Exchange<Pinned>,
    mut agent: Buffered<TcpStream>,
    target: &str,
) -> io::Result<()> {
    let upstream = match upstream::dial(gate, &mut exchange).await {
        Ok(upstream) => upstream,
        Err(error) => {
            exchange.record().upstream_failed(&error);
            let reply = unreachable(&error, TOO_SLOW, target, gate.run());
            return write_last_within_limit(&mut agent.reader, &reply.to_version_1(After::Close)).await;
        }
    };
    write_within_limit(&mut agent.reader, ESTABLISHED).await?;
    carry_both(gate, Plane::Forward, exchange, agent, upstream, CONNECT_IDLE).await
}

/// Answers a `CONNECT` to a destination whose requests are judged one by one, and terminates the TLS in its tunnel.
pub(crate) async fn terminate_after_connect(
    gate: &Rc<Gate>,
    exchange: Exchange<Granted>,
    mut agent: Buffered<TcpStream>,
) -> io::Result<()> {
    write_within_limit(&mut agent.reader, ESTABLISHED).await?;
    let carried = sniff::sniff(&mut agent, CONNECT_IDLE).await;
    terminate(gate, Plane::Forward, exchange, agent, carried).await
}
