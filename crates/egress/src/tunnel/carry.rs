//! Carrying a granted connection: what may be carried is checked against what is, then octets go both ways.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use policy::{Carriage, Denial, Guard, Plane, Scheme};
use tokio::net::TcpStream;

use super::client_hello::ServerName;
use super::refuse::{Spoken, refuse, unreachable};
use super::sniff::{self, Carried};
use super::{agree, copy, preface};
use crate::exchange::{Exchange, Pinned};
use crate::gate::Gate;
use crate::http::{AgentStream, Buffered, Via, serve_requests};
use crate::upstream::{self, Dialled};

/// How long a tunnel may be idle: interactive sessions rest for long.
pub(super) const IDLE: Duration = Duration::from_secs(3600);

/// A redirected connection that may carry any protocol, on a port where either side may speak first.
pub(super) async fn carry_any(
    gate: &Rc<Gate>,
    mut exchange: Exchange<Pinned>,
    agent: Buffered<TcpStream>,
) -> io::Result<()> {
    match upstream::dial(gate, &mut exchange).await {
        Ok(upstream) => carry_both(gate, Plane::Transparent, exchange, agent, upstream, IDLE).await,
        Err(error) => unreachable(exchange, agent, &error).await,
    }
}

/// A redirected connection that carries TLS.
pub(super) async fn carry_tls(
    gate: &Gate,
    exchange: Exchange<Pinned>,
    agent: Buffered<TcpStream>,
    name: &ServerName,
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
        Ok(upstream) => copy::both_ways(exchange, agent, upstream, IDLE).await,
        Err(error) => unreachable(exchange, agent, &error).await,
    }
}

/// Waits for whoever speaks first, and checks the agent's first octets before any of them goes on.
pub(super) async fn carry_both(
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
        Carried::Tls(name) => agree(exchange.grant().host(), &name).map_err(|d| (d, Some(Spoken::Tls))),
        Carried::Nothing => return Ok(()),
        Carried::Preface => Err((preface(), None)),
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
