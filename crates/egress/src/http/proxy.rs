//! Requests in the clear, from the explicit proxy and from redirected connections: each is a new exchange, whatever
//! the connection carried before (C21).

use std::io;
use std::rc::Rc;
use std::time::Duration;

use policy::{Authority, Denial, Guard, Host, Plane, Port, Scheme, Target};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};

use super::body::{ChunkScanner, From};
use super::forward::forward;
use super::head::{BodyLength, Buffered, RequestHead, parse_request_head};
use super::problem::{self, After};
use crate::exchange::{Asked, Exchange};
use crate::gate::Gate;
use crate::tunnel;

/// REQUIREMENTS: 120 s idle, and a head must come within ten.
const IDLE: Duration = Duration::from_secs(120);
const WHOLE_HEAD: Duration = Duration::from_secs(10);

/// How a connection's requests say where they go.
#[derive(Clone, Debug)]
pub(crate) enum Via {
    /// By an absolute target, or `CONNECT`.
    Proxy,
    /// The connection was made to this host and port on a plane; `Host` must agree.
    Bound(Plane, Host, Port),
}

impl Via {
    fn plane(&self) -> Plane {
        match self {
            Self::Proxy => Plane::Forward,
            Self::Bound(plane, ..) => *plane,
        }
    }
}

/// Serves the explicit proxy until its listener fails.
pub(crate) async fn serve_forward(gate: Rc<Gate>, listener: TcpListener) -> io::Result<()> {
    loop {
        let (stream, place) = crate::serve::accept(&listener).await?;
        let gate = Rc::clone(&gate);
        tokio::task::spawn_local(async move {
            let _ = serve_requests(gate, Via::Proxy, stream, Vec::new()).await;
            drop(place);
        });
    }
}

/// What a connection does next.
pub(super) enum Next {
    Request,
    End,
}

/// Serves the requests of one connection, `ahead` being what was already read of it.
pub(crate) async fn serve_requests(
    gate: Rc<Gate>,
    via: Via,
    stream: TcpStream,
    ahead: Vec<u8>,
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut connection = Some(Buffered { ahead, reader: stream });
    while let Some(mut agent) = connection.take() {
        let Some(bytes) = agent.read_head(IDLE, WHOLE_HEAD).await? else { return Ok(()) };
        let head = match parse_request_head(&bytes) {
            Ok(head) => head,
            Err(why) => {
                let denial =
                    Denial::new(Guard::Framing, format!("the request cannot be read beyond doubt: {why}"));
                return answer_unreadable(&gate, &via, &mut agent.reader, denial).await;
            }
        };
        if head.method.as_str() == "CONNECT" {
            return match via {
                Via::Proxy => connect(&gate, head, agent).await,
                Via::Bound(..) => {
                    let denial = Denial::new(Guard::Framing, "CONNECT is for the proxy at port 8081");
                    answer_unreadable(&gate, &via, &mut agent.reader, denial).await
                }
            };
        }
        if let Next::Request = request(&gate, &via, &head, &mut agent).await? {
            connection = Some(agent);
        }
    }
    Ok(())
}

/// A head that is refused before anybody knows where it wants to go: one record, one answer, and the end.
async fn answer_unreadable(
    gate: &Rc<Gate>,
    via: &Via,
    stream: &mut TcpStream,
    denial: Denial,
) -> io::Result<()> {
    let denial = Exchange::<Asked>::refuse_unreadable(gate, via.plane(), "unreadable request", denial);
    stream.write_all(&problem::denied(&denial, "", gate.run(), 400, After::Close)).await?;
    stream.shutdown().await
}

/// `CONNECT host:port` (RFC 9110 §9.3.6): a tunnel to where the policy allows one.
async fn connect(gate: &Rc<Gate>, head: RequestHead, mut agent: Buffered<TcpStream>) -> io::Result<()> {
    let target = head.target.clone();
    let pinned = match connect_target(&head) {
        Ok((host, port)) => tunnel::pin(gate, Plane::Forward, "CONNECT", target.clone(), host, port).await,
        Err(denial) => Err(Exchange::<Asked>::refuse_unreadable(gate, Plane::Forward, &target, denial)),
    };
    let exchange = match pinned {
        Ok(exchange) => exchange,
        Err(denial) => {
            let status = if denial.guard == Guard::NoAddress { 502 } else { gate.policy().denied_status() };
            agent
                .reader
                .write_all(&problem::denied(&denial, &target, gate.run(), status, After::Close))
                .await?;
            return agent.reader.shutdown().await;
        }
    };
    tunnel::after_connect(gate, exchange, agent, &target).await
}

fn connect_target(head: &RequestHead) -> Result<(Host, Port), Denial> {
    let authority = Authority::parse(&head.target)?;
    let port = authority.port.ok_or_else(|| Denial::new(Guard::Port, "CONNECT names a host and a port"))?;
    if head.body != BodyLength::None {
        return Err(Denial::new(Guard::Framing, "CONNECT has no body"));
    }
    Ok((authority.host, port))
}

/// One request with a target in the clear.
async fn request(
    gate: &Rc<Gate>,
    via: &Via,
    head: &RequestHead,
    agent: &mut Buffered<TcpStream>,
) -> io::Result<Next> {
    let shown = head.target.clone();
    let target = match target_of(via, head) {
        Ok(target) => target,
        Err(denial) => {
            let denial = Exchange::<Asked>::refuse_unreadable(gate, via.plane(), &shown, denial);
            return deny(gate, head, agent, &denial, &shown).await;
        }
    };
    let asked = policy::Asked::request(via.plane(), head.method.clone(), &target);
    let text = target.to_string();
    if let Err(why) = first_chunks(head, agent).await {
        let denial = Denial::new(Guard::Framing, why);
        let denial = Exchange::<Asked>::refuse_unreadable(gate, via.plane(), &text, denial);
        return deny(gate, head, agent, &denial, &text).await;
    }
    match crate::exchange::pin(gate, head.method.as_str(), text.clone(), asked).await {
        Ok(exchange) => forward(gate, exchange, &target, head, agent).await,
        Err(denial) => deny(gate, head, agent, &denial, &text).await,
    }
}

/// Reads what there is of a chunked body before anything of the request goes on: one that begins malformed is refused as
/// a whole. An agent that waits to be told to continue has sent nothing yet.
async fn first_chunks(head: &RequestHead, agent: &mut Buffered<TcpStream>) -> Result<(), &'static str> {
    if head.body != BodyLength::Chunked || head.values("expect").next().is_some() {
        return Ok(());
    }
    if agent.ahead.is_empty() {
        agent.fill(WHOLE_HEAD).await.map_err(|_| "the body did not begin in time")?;
    }
    ChunkScanner::new(From::Agent).scan(&agent.ahead, &mut Vec::new()).map(drop)
}

async fn deny(
    gate: &Rc<Gate>,
    head: &RequestHead,
    agent: &mut Buffered<TcpStream>,
    denial: &Denial,
    target: &str,
) -> io::Result<Next> {
    let status = match denial.guard {
        Guard::NoAddress => 502,
        Guard::Framing | Guard::Syntax => 400,
        _ => gate.policy().denied_status(),
    };
    // A body that was not read would be taken for the next request.
    let goes_on = head.keep_alive && head.body == BodyLength::None;
    let after = if goes_on { After::KeepAlive } else { After::Close };
    agent.reader.write_all(&problem::denied(denial, target, gate.run(), status, after)).await?;
    if goes_on {
        return Ok(Next::Request);
    }
    agent.reader.shutdown().await?;
    Ok(Next::End)
}

/// Where a request goes: the target and `Host` must agree, and so must the connection it came over (C02, E10).
fn target_of(via: &Via, head: &RequestHead) -> Result<Target, Denial> {
    let named = match head.values("host").next() {
        Some(value) => {
            let text =
                std::str::from_utf8(value).map_err(|_| Denial::new(Guard::HostForm, "Host is not text"))?;
            Some(Authority::parse(text)?)
        }
        None => None,
    };
    let target = match via {
        Via::Proxy if head.target.starts_with('/') || head.target == "*" => {
            return Err(Denial::new(
                Guard::Syntax,
                "this is a proxy: give the whole target, http://host/path",
            )
            .with_hint("set HTTP_PROXY, or connect to the host itself: it is redirected here"));
        }
        Via::Proxy => Target::parse(&head.target)?,
        Via::Bound(_, host, port) if head.target.starts_with('/') => {
            Target::from_origin_form(Scheme::Http, host.clone(), *port, &head.target)?
        }
        Via::Bound(_, host, port) => {
            let target = Target::parse(&head.target)?;
            if target.host() != host || target.port() != *port || target.scheme() != Scheme::Http {
                return Err(mismatch(&target.to_string(), host));
            }
            target
        }
    };
    // An absolute target overrides Host (RFC 9112 §3.2.2); two different names are an attempt to be read two ways.
    if let Some(named) = named {
        let port = named.port.unwrap_or_else(|| target.scheme().default_port());
        if named.host != *target.host() || (named.port.is_some() && port != target.port()) {
            return Err(mismatch(&named.host.to_string(), target.host()));
        }
    }
    Ok(target)
}

fn mismatch(said: &str, host: &Host) -> Denial {
    Denial::new(Guard::AuthorityMismatch, format!("the request names {said} and goes to {host}"))
}
