//! Carries a granted connection: checks that what it carries is what the rule allows, then copies octets both ways.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use policy::{Carriage, Plane, Scheme};
use tokio::net::TcpStream;

use super::clear::serve_clear;
use super::client_hello::ServerName;
use super::refuse::{RefuseBy, refuse, unreachable};
use super::second_hello::{self, Judged};
use super::sniff::{self, Carried};
use super::{agree, copy, not_tls, preface};
use crate::exchange::{Exchange, Flow, Pinned};
use crate::gate::Gate;
use crate::http::{Buffered, Via};
use crate::opened::Opened;
use crate::upstream::{self, Dialled};

/// How long a tunnel may be idle. Interactive sessions pause for long.
pub(super) const IDLE: Duration = Duration::from_secs(3600);

/// Carries a redirected connection of any protocol, on a port where either side may speak first.
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

/// Carries a redirected TLS connection, if its ClientHello names the granted host.
pub(super) async fn carry_tls(
    gate: &Gate,
    mut exchange: Exchange<Pinned>,
    agent: Buffered<TcpStream>,
    name: &ServerName,
) -> io::Result<()> {
    if let Err(denial) = agree(exchange.grant().host(), name) {
        exchange.refuse(denial);
        return refuse(agent, RefuseBy::TlsAlert).await;
    }
    match upstream::dial(gate, &mut exchange).await {
        Ok(upstream) => splice_tls(exchange, agent, upstream, IDLE).await,
        Err(error) => unreachable(exchange, agent, &error).await,
    }
}

/// Carries a redirected connection that is not TLS.
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

/// Waits for either side to speak, and judges the agent's first octets before it forwards any of them.
pub(super) async fn carry_both(
    gate: &Rc<Gate>,
    plane: Plane,
    mut exchange: Exchange<Pinned>,
    mut agent: Buffered<TcpStream>,
    mut upstream: Dialled,
    idle: Duration,
) -> io::Result<()> {
    if exchange.grant().is_companion() {
        // A companion serves one host, so the octets cannot name a neighbour of it, and no credential is bound to it.
        return copy::both_ways(exchange, agent, upstream, idle).await;
    }
    let only_tls = exchange.grant().carriage() == Carriage::Tls;
    let carried = tokio::select! {
        biased;
        carried = sniff::sniff(&mut agent, idle) => carried,
        // The upstream speaks first: SSH, SMTP, MySQL. A rule for TLS waits for the agent.
        spoken = upstream.has_spoken(), if !only_tls => match spoken {
            Ok(true) => Carried::Other,
            Ok(false) | Err(_) => Carried::Nothing,
        },
    };
    let checked = match carried {
        Carried::Tls(name) => match agree(exchange.grant().host(), &name) {
            Ok(()) => return splice_tls(exchange, agent, upstream, idle).await,
            Err(denial) => Err((denial, RefuseBy::TlsAlert)),
        },
        // A client that only listens, as to a server that speaks first.
        Carried::End if !only_tls => Ok(()),
        Carried::End | Carried::Nothing | Carried::Late(_) => {
            exchange.record().fail(&carried.unsaid());
            return Ok(());
        }
        Carried::Preface => Err((preface(), RefuseBy::Reset)),
        Carried::Http | Carried::Other if only_tls => Err((not_tls(), RefuseBy::Reset)),
        Carried::Http => {
            drop(upstream);
            return serve_clear_requests(gate, plane, exchange, agent).await;
        }
        Carried::Other => Ok(()),
    };
    match checked {
        Ok(()) => copy::both_ways(exchange, agent, upstream, idle).await,
        Err((denial, by)) => {
            exchange.refuse(denial);
            refuse(agent, by).await
        }
    }
}

/// Carries TLS whose ClientHello agrees with the grant, if a second one does as well.
async fn splice_tls(
    mut exchange: Exchange<Pinned>,
    mut agent: Buffered<TcpStream>,
    mut upstream: Dialled,
    idle: Duration,
) -> io::Result<()> {
    let granted = exchange.grant().host().clone();
    let flow = Flow::of(exchange.record(), 0);
    // In a box, so that a connection that goes on does not hold the room for this.
    let judged = Box::pin(second_hello::judge(&granted, &mut agent, &mut upstream, &flow)).await;
    drop(flow);
    match judged? {
        Judged::Agreed => copy::both_ways(exchange, agent, upstream, idle).await,
        Judged::Denied(denial) => {
            exchange.refuse(denial);
            refuse(agent, RefuseBy::TlsAlert).await
        }
        Judged::Silent => {
            exchange.record().note("nothing moved for too long");
            Ok(())
        }
    }
}

/// Serves requests in the clear. Each is judged by itself, or `Host` could name a neighbour of the granted host (E10).
async fn serve_clear_requests(
    gate: &Rc<Gate>,
    plane: Plane,
    exchange: Exchange<Pinned>,
    agent: Buffered<TcpStream>,
) -> io::Result<()> {
    let grant = exchange.grant();
    let (host, port) = (grant.host().clone(), grant.port());
    let via = Via::Bound { plane, scheme: Scheme::Http, host, port };
    serve_clear(gate, Opened::reached(exchange), via, agent).await
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use policy::{Host, Port};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::fixture::{gate_for, records_in};
    use crate::upstream::Entrance;

    #[tokio::test(flavor = "current_thread")]
    async fn a_request_in_the_clear_has_the_only_record() {
        let upstream = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = upstream.local_addr().unwrap().port();
        let rule =
            format!("[egress]\nallow = [{{ host = \"a.example:{port}\", addresses = [\"127.0.0.1\"] }}]\n");
        let mut audit = tempfile::tempfile().unwrap();
        let gate = gate_for(&rule, Vec::new(), Some(audit.try_clone().unwrap()));
        let agents = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let at = Port::new(agents.local_addr().unwrap().port()).unwrap();
        let mut client = Entrance::at([127, 0, 0, 1].into()).connect(at).await.unwrap();
        let agent = Buffered::new(agents.accept().await.unwrap().0);
        let (host, port) = (Host::parse("a.example").unwrap(), Port::new(port).unwrap());
        let target = format!("{host}:{port}");
        let granted = super::super::ask(&gate, "CONNECT", target, host, port).unwrap();
        let exchange = granted.pin(&gate).await.unwrap();
        // A neighbour of the granted host.
        client.write_all(b"GET /x HTTP/1.1\r\nHost: b.example\r\nConnection: close\r\n\r\n").await.unwrap();
        let mut answer = Vec::new();
        let served = carry_any(&gate, exchange, agent);
        let (served, read) = tokio::join!(served, client.read_to_end(&mut answer));
        served.and(read.map(drop)).unwrap();
        assert!(answer.starts_with(b"HTTP/1.1 4"), "{}", String::from_utf8_lossy(&answer));
        gate.close().unwrap();
        let records = records_in(&mut audit);
        let told: Vec<&str> = records.lines().filter(|line| line.contains(".example")).collect();
        assert!(
            matches!(told[..], [only] if only.contains("\"denied\"") && only.contains("/x")),
            "{told:#?}"
        );
    }
}
