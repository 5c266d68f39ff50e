//! A granted request on its way: sent on in its one form, body and answer relayed at the same time.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use policy::{Method, Scheme, Target};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::net::TcpStream;

use super::body::{self, From};
use super::head::{BodyLength, Buffered, RequestHead, has_token};
use super::problem;
use super::proxy::Next;
use super::response::{ResponseBody, ResponseHead};
use crate::exchange::{Exchange, Flow, Pinned, PinnedAddr};
use crate::gate::Gate;
use crate::upstream::Upstream;

/// How long a kept connection may take to answer before another is opened.
const IDLE: Duration = Duration::from_secs(120);

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

/// Sends the request on and relays its answer.
pub(super) async fn forward(
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
