//! Serves redirected TCP connections. The kernel gives the address they went to, and our own DNS the name that it stands for.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

use policy::agreed::{FORWARD_PORT, GATEWAY_PORT};
use policy::{Carriage, Plane, Policy, Port, Scheme, View};
use rustix::io::Errno;
use tokio::net::TcpStream;

use super::clear::serve_clear;
use super::refuse::{RefuseBy, refuse};
use super::sniff::{self, Carried};
use super::terminate::terminate;
use super::{carry, not_tls, preface};
use crate::acceptor::Acceptor;
use crate::audit;
use crate::exchange::{Asked, Exchange, Granted};
use crate::gate::Gate;
use crate::http::{Buffered, Via};
use crate::opened::Opened;

/// Ports whose clients speak first, so nothing is dialled before their first octets are judged.
const CLIENT_FIRST: [u16; 2] = [80, 443];

/// Serves redirected connections until the listener fails.
pub(crate) async fn serve_transparent(gate: Rc<Gate>, acceptor: Acceptor) -> io::Result<()> {
    loop {
        let (stream, permit) = acceptor.accept().await?;
        let gate = Rc::clone(&gate);
        tokio::task::spawn_local(async move {
            let _ = serve_one(gate, stream).await;
            drop(permit);
        });
    }
}

async fn serve_one(gate: Rc<Gate>, stream: TcpStream) -> io::Result<()> {
    let destination = original_destination(&stream)?;
    let to_sidecar = gate.names().borrow().is_sidecar(destination.ip());
    if to_sidecar {
        return serve_sidecar_port(gate, stream, destination.port()).await;
    }
    let host = gate.names().borrow().host_at(destination.ip());
    let Some(port) = Port::new(destination.port()) else { return Ok(()) };
    let target = format!("{host}:{port}");
    let asked = policy::Asked::connection(Plane::Transparent, host.clone(), port, View::Opaque);
    let mut agent = Buffered::new(stream);
    let must_look = must_look_first(gate.policy(), &asked);
    let exchange = Exchange::begin(&gate, "TCP", target, asked);
    if !must_look {
        return match exchange.pin(&gate).await {
            Ok(exchange) => carry::carry_any(&gate, exchange, agent).await,
            Err(_) => refuse(agent, RefuseBy::Reset).await,
        };
    }
    let carried = sniff::sniff(&mut agent, sniff::PATIENCE).await;
    let (exchange, by) = match &carried {
        Carried::Http => {
            let opened = Opened::asked(&gate, exchange);
            let via = Via::Bound { plane: Plane::Transparent, scheme: Scheme::Http, host, port };
            return serve_clear(&gate, opened, via, agent).await;
        }
        Carried::End | Carried::Nothing | Carried::Late(_) => {
            return nothing_said(&gate, exchange, agent, &carried).await;
        }
        Carried::Tls(_) => (exchange.carries("TLS", View::Tls), RefuseBy::TlsAlert),
        Carried::Other | Carried::Preface => (exchange, RefuseBy::Reset),
    };
    match exchange.authorize(&gate) {
        Ok(granted) => carry_granted(&gate, granted, agent, carried).await,
        Err(_) => refuse(agent, by).await,
    }
}

/// Serves a connection to the sidecar's own address, whose ports are the explicit planes.
async fn serve_sidecar_port(gate: Rc<Gate>, stream: TcpStream, port: u16) -> io::Result<()> {
    let Some(via) = plane_at(port, gate.has_gateway()) else {
        audit::record_own_port(&gate, port);
        return stream.set_zero_linger();
    };
    serve_clear(&gate, Opened::unrecorded(), via, Buffered::new(stream)).await
}

/// Whether the agent's first octets must be judged before anything is dialled, by the answer to the question without them.
pub(crate) fn must_look_first(policy: &Policy, asked: &policy::Asked) -> bool {
    let is_client_first = CLIENT_FIRST.contains(&asked.port.number());
    match policy.decide(asked) {
        // The rule of a companion names ports alone, whatever protocol is spoken there.
        Ok(grant) if grant.is_companion() => false,
        Ok(grant) => is_client_first || grant.carriage() != Carriage::Any,
        Err(_) => is_client_first,
    }
}

/// Ends a connection that said nothing, or too little, as those that clients open in advance.
///
/// It leaves one record, and a denial only where the policy has one: nothing was asked for that a rule could be missing for.
async fn nothing_said(
    gate: &Gate,
    exchange: Exchange<Asked>,
    agent: Buffered<TcpStream>,
    carried: &Carried,
) -> io::Result<()> {
    match exchange.authorize(gate) {
        Ok(granted) => {
            granted.fail(&carried.unsaid());
            agent.reader.set_zero_linger()
        }
        Err(_) => refuse(agent, RefuseBy::Reset).await,
    }
}

/// Carries a granted connection by what its rule allows and what its first octets are.
async fn carry_granted(
    gate: &Rc<Gate>,
    granted: Exchange<Granted>,
    agent: Buffered<TcpStream>,
    carried: Carried,
) -> io::Result<()> {
    match (granted.grant().carriage(), carried) {
        (Carriage::Terminated, carried) => {
            Box::pin(terminate(gate, Plane::Transparent, granted, agent, carried)).await
        }
        (_, Carried::Tls(name)) => match granted.pin(gate).await {
            Ok(exchange) => carry::carry_tls(gate, exchange, agent, &name).await,
            Err(denial) => refuse(agent, RefuseBy::after_hello(&denial)).await,
        },
        (_, Carried::Preface) => {
            granted.refuse(preface());
            refuse(agent, RefuseBy::Reset).await
        }
        (Carriage::Any, _) => match granted.pin(gate).await {
            Ok(exchange) => carry::carry_other(gate, exchange, agent).await,
            Err(_) => refuse(agent, RefuseBy::Reset).await,
        },
        _ => {
            granted.refuse(not_tls());
            refuse(agent, RefuseBy::Reset).await
        }
    }
}

/// The explicit plane that is served at a port of the sidecar's own address.
fn plane_at(port: u16, has_gateway: bool) -> Option<Via> {
    match port {
        GATEWAY_PORT => has_gateway.then_some(Via::Gateway),
        FORWARD_PORT => Some(Via::Proxy),
        _ => None,
    }
}

/// Returns the address the agent dialled: the translated one that the kernel kept, or else the socket's own (`tproxy`). For a
/// connection made to the listener itself the kernel keeps none, and no rule allows the listener's address.
fn original_destination(stream: &TcpStream) -> io::Result<SocketAddr> {
    let local = stream.local_addr()?;
    let own = SocketAddr::new(local.ip().to_canonical(), local.port());
    let kept = if own.is_ipv4() {
        // A dual-stack socket has it in the IPv4 option too.
        rustix::net::sockopt::ip_original_dst(stream).map(SocketAddr::V4)
    } else {
        rustix::net::sockopt::ipv6_original_dst(stream).map(SocketAddr::V6)
    };
    match kept {
        Ok(translated) => Ok(translated),
        Err(Errno::NOENT | Errno::NOPROTOOPT) => Ok(own),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;
    use crate::fixture::{gate_for, records_in};
    use crate::opened::NoRequest;
    use crate::upstream::Entrance;

    #[test]
    fn the_gateway_is_served_where_there_is_one() {
        assert!(matches!(plane_at(GATEWAY_PORT, true), Some(Via::Gateway)));
        assert!(plane_at(GATEWAY_PORT, false).is_none());
        for has_gateway in [true, false] {
            assert!(matches!(plane_at(FORWARD_PORT, has_gateway), Some(Via::Proxy)));
            assert!(plane_at(443, has_gateway).is_none());
        }
    }
    #[tokio::test(start_paused = true)]
    async fn a_connection_whose_first_head_never_ends_is_recorded() {
        let whole = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
        for (octets, ends, counts) in [
            (&b"GET / HTTP/1.1\r\nHost: x\r\n"[..], true, true),
            (b"GET / HTTP/1.1\r\nHost: x\r\n", false, true),
            (&[b'A'; 9000], true, true),
            (&[b' '; 9000], true, true),
            (whole, true, false),
        ] {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let at = listener.local_addr().unwrap();
            let mut audit = tempfile::tempfile().unwrap();
            let rule = format!("[egress]\nallow = [{{ url = \"http://{at}/*\" }}]\n");
            let gate = gate_for(&rule, Vec::new(), Some(audit.try_clone().unwrap()));
            let here = Entrance::at([127, 0, 0, 1].into());
            let mut agent = here.connect(Port::new(at.port()).unwrap()).await.unwrap();
            let ours = listener.accept().await.unwrap().0;
            agent.write_all(octets).await.unwrap();
            if ends {
                agent.shutdown().await.unwrap();
            }
            let _ = serve_one(Rc::clone(&gate), ours).await;
            gate.close().unwrap();
            let records = records_in(&mut audit);
            let own = records.lines().find(|line| line.contains("\"TCP\""));
            assert_eq!(own.is_some(), counts, "{}: {records}", octets.escape_ascii());
            let is_told = |it: &str| it.contains("\"failed\"") && it.contains(NoRequest::NoHead.text());
            assert!(own.is_none_or(is_told), "{}: {records}", octets.escape_ascii());
        }
    }
}
