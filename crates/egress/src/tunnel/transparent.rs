//! Redirected connections. Where they were going is asked of the kernel; which name that is, of our own DNS.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

use policy::{Carriage, Denial, Guard, Host, Plane, Port, Scheme, View};
use rustix::io::Errno;
use tokio::net::TcpStream;

use super::refuse::{Spoken, refuse};
use super::sniff::{self, Carried};
use super::{carry, preface, terminate};
use crate::acceptor::Acceptor;
use crate::exchange::Exchange;
use crate::gate::Gate;
use crate::http::{AgentStream, Buffered, Via, serve_requests};

/// Ports whose clients speak first, so that nothing is dialled before it is clear what they say.
const CLIENT_FIRST: [u16; 2] = [80, 443];

/// The ports of the sidecar's own address. S0.15
const GATEWAY_PORT: u16 = 8080;
const FORWARD_PORT: u16 = 8081;

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
    stream.set_nodelay(true)?;
    let destination = original_destination(&stream)?;
    let to_sidecar = gate.names().borrow().is_sidecar(destination.ip());
    if to_sidecar {
        let via = match destination.port() {
            GATEWAY_PORT => Via::Gateway,
            FORWARD_PORT => Via::Proxy,
            _ => return stream.set_zero_linger(),
        };
        return requests(gate, via, Buffered::new(stream)).await;
    }
    let known = gate.names().borrow().name_of(destination.ip()).cloned();
    let host = known.map_or(Host::Address(destination.ip()), Host::Name);
    let Some(port) = Port::new(destination.port()) else { return Ok(()) };
    let target = format!("{host}:{port}");
    let asked = policy::Asked::connection(Plane::Transparent, host.clone(), port, View::Opaque);
    let mut agent = Buffered::new(stream);
    // The answer to the plain question tells whether to look at the first octets before anything else.
    let decided = gate.policy().decide(&asked);
    let must_look = match &decided {
        // Its ports alone decide, whatever is spoken there.
        Ok(grant) if grant.is_companion() => false,
        Ok(grant) => CLIENT_FIRST.contains(&port.number()) || grant.carriage() != Carriage::Any,
        Err(_) => CLIENT_FIRST.contains(&port.number()),
    };
    let exchange = Exchange::begin(&gate, "TCP", target, asked);
    if !must_look {
        return match exchange.pin(&gate).await {
            Ok(exchange) => carry::carry_any(&gate, exchange, agent).await,
            Err(denial) => refuse(agent, &denial, None).await,
        };
    }
    let carried = sniff::sniff(&mut agent, sniff::PATIENCE).await;
    let (exchange, spoken) = match &carried {
        Carried::Http => {
            exchange.into_requests();
            let via = Via::Bound { plane: Plane::Transparent, scheme: Scheme::Http, host, port };
            return requests(gate, via, agent).await;
        }
        Carried::Nothing => {
            // Clients open connections in advance and close them unused. One record, and a denial only where the policy
            // has one: nothing was asked for that a rule could be missing for.
            return match exchange.authorize(&gate) {
                Ok(granted) => {
                    granted.fail("the connection ended before it said what it carries");
                    agent.reader.set_zero_linger()
                }
                Err(denial) => refuse(agent, &denial, None).await,
            };
        }
        Carried::Tls(_) => (exchange.carries("TLS", View::Tls), Some(Spoken::Tls)),
        Carried::Other | Carried::Preface => (exchange, None),
    };
    let granted = match exchange.authorize(&gate) {
        Ok(granted) => granted,
        Err(denial) => return refuse(agent, &denial, spoken).await,
    };
    match (granted.grant().carriage(), carried) {
        (Carriage::Terminated, carried) => {
            Box::pin(terminate::open(&gate, Plane::Transparent, granted, agent, carried)).await
        }
        (_, Carried::Tls(name)) => match granted.pin(&gate).await {
            Ok(exchange) => carry::carry_tls(&gate, exchange, agent, &name).await,
            Err(denial) => refuse(agent, &denial, spoken).await,
        },
        (_, Carried::Preface) => {
            let denial = granted.refuse(preface());
            refuse(agent, &denial, spoken).await
        }
        (Carriage::Any, _) => match granted.pin(&gate).await {
            Ok(exchange) => carry::carry_other(&gate, exchange, agent).await,
            Err(denial) => refuse(agent, &denial, spoken).await,
        },
        _ => {
            let denial = granted.refuse(Denial::new(Guard::Protocol, "the rule is for TLS, and this is not"));
            refuse(agent, &denial, spoken).await
        }
    }
}

/// Boxed: most connections are carried, for as long as they like, and hold no room for this meanwhile.
async fn requests(gate: Rc<Gate>, via: Via, agent: Buffered<TcpStream>) -> io::Result<()> {
    let Buffered { ahead, reader } = agent;
    Box::pin(serve_requests(gate, via, AgentStream::Tcp(reader), ahead)).await
}

/// The address the agent dialled: the connection's own, where it was handed over as it was, and what the kernel has kept of it
/// where it was translated. Of one that was made to the listener itself nothing is kept, and nothing allows its address.
fn original_destination(stream: &TcpStream) -> io::Result<SocketAddr> {
    let local = stream.local_addr()?;
    let own = SocketAddr::new(local.ip().to_canonical(), local.port());
    let kept = if own.is_ipv4() {
        // Also of a socket of both families: IPv4's option has it.
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
