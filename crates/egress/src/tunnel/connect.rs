//! Carrying a granted connection: what may be carried is checked against what is, then octets go both ways.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use policy::{Carriage, Denial, Guard, Plane, Scheme};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::sniff::{self, Carried};
use super::{agree, copy, open, transparent};
use crate::exchange::{Exchange, Granted, Pinned};
use crate::gate::Gate;
use crate::http::{After, AgentStream, Buffered, Via, serve_requests};
use crate::upstream::{self, Dialled};

/// What the agent has spoken so far, which decides how it is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spoken {
    /// TLS: it understands an alert.
    Tls,
}

/// The answer to a granted `CONNECT`.
const ESTABLISHED: &[u8] = b"HTTP/1.1 200 Connection established\r\n\r\n";
/// A fatal TLS alert, `access_denied` (RFC 8446 §6.2).
const ACCESS_DENIED: [u8; 7] = [0x15, 3, 3, 0, 2, 2, 49];
/// How long a tunnel of the explicit proxy may be idle (REQUIREMENTS, literal behaviour of 8081).
const REQUIREMENTS_IDLE: Duration = Duration::from_secs(120);

/// Refuses a connection at once (E20).
pub(super) async fn refuse(
    mut agent: Buffered<TcpStream>,
    _denial: &Denial,
    spoken: Option<Spoken>,
) -> io::Result<()> {
    if spoken == Some(Spoken::Tls) {
        agent.reader.write_all(&ACCESS_DENIED).await?;
        return agent.reader.shutdown().await;
    }
    agent.reader.set_zero_linger()?; // closing now resets
    Ok(())
}

/// After a granted `CONNECT`: connects, answers, and carries what the rule allows.
pub(crate) async fn after_connect(
    gate: &Rc<Gate>,
    mut exchange: Exchange<Pinned>,
    mut agent: Buffered<TcpStream>,
    target: &str,
) -> io::Result<()> {
    let upstream = match upstream::dial(gate, &mut exchange).await {
        Ok(upstream) => upstream,
        Err(error) => {
            exchange.record().fail(&error.to_string());
            let status = if error.kind() == io::ErrorKind::TimedOut { 504 } else { 502 };
            let title = "The upstream cannot be reached";
            let reply = crate::http::failed(status, title, &error.to_string(), target, gate.run());
            agent.reader.write_all(&reply.to_version_1(After::Close)).await?;
            return agent.reader.shutdown().await;
        }
    };
    agent.reader.write_all(ESTABLISHED).await?;
    carry_both(gate, Plane::Forward, exchange, agent, upstream, REQUIREMENTS_IDLE).await
}

/// After a granted `CONNECT` to where requests are asked for one by one: answers, and opens what comes.
pub(crate) async fn open_after_connect(
    gate: &Rc<Gate>,
    exchange: Exchange<Granted>,
    mut agent: Buffered<TcpStream>,
) -> io::Result<()> {
    agent.reader.write_all(ESTABLISHED).await?;
    let carried = sniff::sniff(&mut agent, REQUIREMENTS_IDLE).await;
    open::open(gate, Plane::Forward, exchange, agent, carried).await
}

/// A redirected connection that may carry any protocol, on a port where either side may speak first.
pub(super) async fn carry_any(
    gate: &Rc<Gate>,
    mut exchange: Exchange<Pinned>,
    agent: Buffered<TcpStream>,
) -> io::Result<()> {
    match upstream::dial(gate, &mut exchange).await {
        Ok(upstream) => {
            carry_both(gate, Plane::Transparent, exchange, agent, upstream, transparent::IDLE).await
        }
        Err(error) => unreachable(exchange, agent, &error).await,
    }
}

/// A redirected connection that carries TLS.
pub(super) async fn carry_tls(
    gate: &Gate,
    exchange: Exchange<Pinned>,
    agent: Buffered<TcpStream>,
    name: Option<&str>,
) -> io::Result<()> {
    if let Err(denial) = agree(exchange.grant().host(), name) {
        let denial = exchange.refuse(denial);
        return refuse(agent, &denial, Some(Spoken::Tls)).await;
    }
    carry_other(gate, exchange, agent).await
}

/// A redirected connection whose first octets have been judged.
pub(super) async fn carry_other(
    gate: &Gate,
    mut exchange: Exchange<Pinned>,
    agent: Buffered<TcpStream>,
) -> io::Result<()> {
    match upstream::dial(gate, &mut exchange).await {
        Ok(upstream) => copy::both_ways(exchange, agent, upstream, transparent::IDLE).await,
        Err(error) => unreachable(exchange, agent, &error).await,
    }
}

async fn unreachable(
    mut exchange: Exchange<Pinned>,
    agent: Buffered<TcpStream>,
    error: &io::Error,
) -> io::Result<()> {
    exchange.record().fail(&error.to_string());
    agent.reader.set_zero_linger()
}

/// Waits for whoever speaks first, and checks the agent's first octets before any of them goes on.
async fn carry_both(
    gate: &Rc<Gate>,
    plane: Plane,
    exchange: Exchange<Pinned>,
    mut agent: Buffered<TcpStream>,
    upstream: Dialled,
    idle: Duration,
) -> io::Result<()> {
    if exchange.grant().is_companion() {
        // No neighbour could be named in what it carries, and no credential is bound to it.
        return copy::both_ways(exchange, agent, upstream, idle).await;
    }
    let only_tls = exchange.grant().carriage() == Carriage::Tls;
    let carried = tokio::select! {
        biased;
        carried = sniff::sniff(&mut agent, idle) => carried,
        // The upstream speaks first: SSH, SMTP, MySQL. A rule that is for TLS waits for the agent.
        _ = upstream.readable(), if !only_tls => Carried::Other,
    };
    let checked = match carried {
        Carried::Tls(name) => {
            agree(exchange.grant().host(), name.as_deref()).map_err(|d| (d, Some(Spoken::Tls)))
        }
        Carried::Nothing => return Ok(()),
        Carried::Http | Carried::Other if only_tls => {
            Err((Denial::new(Guard::Protocol, "the rule is for TLS, and this is not"), None))
        }
        // Requests in the clear are judged one by one, or `Host` could name a neighbour of the granted host (E10).
        Carried::Http => {
            drop(upstream);
            let grant = exchange.grant();
            let (host, port) = (grant.host().clone(), grant.port());
            let via = Via::Bound { plane, scheme: Scheme::Http, host, port };
            drop(exchange);
            let Buffered { ahead, reader } = agent;
            return Box::pin(serve_requests(Rc::clone(gate), via, AgentStream::Tcp(reader), ahead)).await;
        }
        Carried::Other => Ok(()),
    };
    match checked {
        Ok(()) => copy::both_ways(exchange, agent, upstream, idle).await,
        Err((denial, spoken)) => {
            let denial = exchange.refuse(denial);
            refuse(agent, &denial, spoken).await
        }
    }
}
