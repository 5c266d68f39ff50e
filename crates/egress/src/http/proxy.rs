//! Requests in the clear, from the explicit proxy and from redirected connections: each is a new exchange, whatever
//! the connection carried before (C21).

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use policy::{Authority, Denial, Guard, Host, Method, Plane, Port, Scheme, Target};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};

use super::body::{self, ChunkScanner, From};
use super::head::{BodyLength, Buffered, RequestHead, has_token, parse_request_head};
use super::problem::{self, After};
use super::response::{ResponseBody, ResponseHead};
use crate::exchange::{Asked, Exchange, Flow, Pinned, PinnedAddr};
use crate::gate::Gate;
use crate::tunnel;
use crate::upstream::Upstream;

/// REQUIREMENTS: 120 s idle, and a head must come within ten.
const IDLE: Duration = Duration::from_secs(120);
const WHOLE_HEAD: Duration = Duration::from_secs(10);

/// Fields that concern one connection only, and are never passed on (RFC 9110 §7.6.1, and the existing sidecar's list).
const HOP_BY_HOP: &[&str] = &[
    "connection",
    "keep-alive",
    "proxy-connection",
    "transfer-encoding",
    "te",
    "trailer",
    "upgrade",
    "proxy-authorization",
    "proxy-authenticate",
    "host",
    "content-length",
];

/// Fields that speak to a sidecar, and never to an upstream (REQUIREMENTS, literal behaviour).
const CONTROL: &[&str] = &["x-provider", "x-target", "x-proxy", "x-substitute-body", "x-max-response-size"];

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
enum Next {
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

/// Sends the request on and relays its answer.
async fn forward(
    gate: &Rc<Gate>,
    mut exchange: Exchange<Pinned>,
    target: &Target,
    head: &RequestHead,
    agent: &mut Buffered<TcpStream>,
) -> io::Result<Next> {
    let repeatable =
        head.body == BodyLength::None && matches!(head.method.as_str(), "GET" | "HEAD" | "OPTIONS");
    let wire = request_head(target, head);
    // A kept connection may have been closed by now; that is only found out where asking again does no harm.
    let kept = if repeatable { gate.idle().take(&mut exchange, target.scheme()) } else { None };
    if let Some(upstream) = kept {
        let (mut reader, mut writer) = halves(upstream);
        if writer.write_all(&wire).await.is_ok()
            && writer.flush().await.is_ok()
            && reader.fill(IDLE).await.is_ok_and(|n| n > 0)
        {
            exchange.record().count(wire.len() as u64, 0);
            return relay(gate, exchange, target, head, agent, (reader, writer)).await;
        }
    }
    let opened = Upstream::open(&mut exchange, target.scheme(), gate.trust()).await;
    let (reader, mut writer) = match opened {
        Ok(upstream) => halves(upstream),
        Err(error) => return unreachable(gate, exchange, agent, target, &error).await,
    };
    if let Err(error) = writer.write_all(&wire).await {
        return unreachable(gate, exchange, agent, target, &error).await;
    }
    writer.flush().await?;
    exchange.record().count(wire.len() as u64, 0);
    relay(gate, exchange, target, head, agent, (reader, writer)).await
}

type Halves = (Buffered<ReadHalf<Upstream>>, WriteHalf<Upstream>);

fn halves(upstream: Upstream) -> Halves {
    let (reader, writer) = tokio::io::split(upstream);
    (Buffered { ahead: Vec::new(), reader }, writer)
}

async fn unreachable(
    gate: &Gate,
    mut exchange: Exchange<Pinned>,
    agent: &mut Buffered<TcpStream>,
    target: &Target,
    error: &io::Error,
) -> io::Result<Next> {
    let (status, title) = match error.kind() {
        io::ErrorKind::TimedOut => (504, "The upstream did not answer in time"),
        _ => (502, "The upstream cannot be reached"),
    };
    exchange.record().fail(&error.to_string());
    let response = problem::failed(status, title, &error.to_string(), &target.to_string(), gate.run());
    agent.reader.write_all(&response).await?;
    agent.reader.shutdown().await?;
    Ok(Next::End)
}

/// Relays body and answer at the same time: an upstream may answer before it has read everything.
async fn relay(
    gate: &Rc<Gate>,
    mut exchange: Exchange<Pinned>,
    target: &Target,
    head: &RequestHead,
    agent: &mut Buffered<TcpStream>,
    (mut from_upstream, mut to_upstream): Halves,
) -> io::Result<Next> {
    let Buffered { ahead, reader: stream } = agent;
    let (agent_reader, mut agent_writer) = stream.split();
    let mut from_agent = Buffered { ahead: std::mem::take(ahead), reader: agent_reader };
    let mut sent: io::Result<()> = Ok(());
    let flow = Flow::of(&mut exchange, 0);
    let answer = {
        let pump = async {
            body::copy(&mut from_agent, &mut to_upstream, head.body, From::Agent, &flow.sent).await?;
            to_upstream.flush().await
        };
        let answer = relay_answer(&mut from_upstream, &mut agent_writer, head, &flow.received);
        tokio::pin!(pump, answer);
        let mut pumping = head.body != BodyLength::None;
        loop {
            tokio::select! {
                copied = &mut pump, if pumping => {
                    pumping = false;
                    sent = copied;
                    if sent.is_err() {
                        break Err(io::Error::from(io::ErrorKind::InvalidData));
                    }
                }
                answer = &mut answer => {
                    if pumping {
                        sent = Err(io::ErrorKind::BrokenPipe.into()); // the rest of the body was not wanted
                    }
                    break answer;
                }
            }
        }
    };
    *ahead = std::mem::take(&mut from_agent.ahead);
    drop(flow);
    let reached = exchange.reached();
    match answer {
        Ok(answer) => {
            exchange.record().status(answer.status);
            let whole = sent.is_ok();
            if let Some(address) =
                reached.filter(|_| answer.reusable && whole && from_upstream.ahead.is_empty())
            {
                keep(gate, &exchange, target.scheme(), (from_upstream, to_upstream), address);
            }
            let goes_on = head.keep_alive && answer.framed && whole;
            Ok(if goes_on { Next::Request } else { Next::End })
        }
        Err(error) => {
            exchange.record().fail(&error.to_string());
            Err(error)
        }
    }
}

fn keep(
    gate: &Gate,
    exchange: &Exchange<Pinned>,
    scheme: Scheme,
    (reader, writer): Halves,
    reached: PinnedAddr,
) {
    if reader.reader.is_pair_of(&writer) {
        gate.idle().keep(exchange, scheme, reader.reader.unsplit(writer), reached);
    }
}

/// What became of an answer.
struct Answered {
    status: u16,
    /// The agent can tell where it ended.
    framed: bool,
    /// The upstream connection can carry another request.
    reusable: bool,
}

async fn relay_answer<R, W>(
    upstream: &mut Buffered<R>,
    agent: &mut W,
    request: &RequestHead,
    received: &Cell<u64>,
) -> io::Result<Answered>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    loop {
        let head = ResponseHead::read(upstream).await?;
        if head.status == 101 {
            return Err(io::Error::other("the upstream switched protocols without being asked"));
        }
        let body = head.body(request.method.as_str()).map_err(io::Error::other)?;
        let framed = body != ResponseBody::ToEnd;
        agent.write_all(&head.write(framed && request.keep_alive)).await?;
        if head.status < 200 {
            continue; // 100 Continue, 103 Early Hints
        }
        match body {
            ResponseBody::Framed(length) => {
                body::copy(upstream, agent, length, From::Upstream, received).await?
            }
            ResponseBody::ToEnd => body::copy_to_end(upstream, agent, received).await?,
        }
        return Ok(Answered { status: head.status, framed, reusable: framed && head.keep_alive });
    }
}

/// The request head in its one form: origin-form, our `Host`, no hop-by-hop fields, one statement of length.
fn request_head(target: &Target, head: &RequestHead) -> Vec<u8> {
    let method: &Method = &head.method;
    let mut out = format!("{method} {} HTTP/1.1\r\nhost: {}\r\n", target.origin_form(), target.host_header())
        .into_bytes();
    for (name, value) in &head.fields {
        let ours = HOP_BY_HOP.contains(&name.as_str())
            || CONTROL.contains(&name.as_str())
            || name.starts_with("x-lockgate-");
        if ours || has_token(&head.fields, "connection", name) {
            continue;
        }
        out.extend(name.bytes());
        out.extend(b": ");
        out.extend(value);
        out.extend(b"\r\n");
    }
    match head.body {
        BodyLength::None if matches!(method.as_str(), "POST" | "PUT" | "PATCH") => {
            out.extend(b"content-length: 0\r\n")
        }
        BodyLength::None => {}
        BodyLength::Sized(size) => out.extend(format!("content-length: {size}\r\n").bytes()),
        BodyLength::Chunked => out.extend(b"transfer-encoding: chunked\r\n"),
    }
    out.extend(b"\r\n");
    out
}
