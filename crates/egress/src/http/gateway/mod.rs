//! The gateway, 8080: for agents that name their target and provider instead of dialling. Its paths, headers and statuses are
//! those of the sidecar that existing clients know (REQUIREMENTS, S0 and S1); what it enforces is what every plane enforces.
//!
//! A request with an absolute target is answered as on 8081, so that either port may be named as the proxy.

mod ask;
mod configure;
mod llm;
mod proxy;
mod template;

use std::io;
use std::rc::Rc;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use serde::Serialize;
use serde_json::json;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::answer::Answer;
use super::head::{BodyLength, RequestHead};
use super::incoming::Incoming;
use super::problem::{After, PROBLEM, Reply};
use super::request::Request;
use super::stream::AgentReader;
use crate::exchange::{Asked, Exchange};
use crate::gate::Gate;

/// How long a question to the platform about earlier runs may be.
const LONGEST_QUERY: usize = 1024;

/// Answers a request for one of the gateway's own paths.
pub(super) async fn route(gate: &Rc<Gate>, request: Request<'_>, answer: Answer<'_>) -> io::Result<After> {
    let target = request.head.target.clone();
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    match (request.head.method.as_str(), path) {
        ("GET" | "HEAD", "/health") => answer.reply(health(gate), left(&request)).await,
        (_, "/proxy") => proxy::proxy(gate, request, answer).await,
        ("POST", "/configure") => configure::configure(gate, request, answer).await,
        ("GET" | "HEAD", "/run-history") => {
            let reply = noted(gate, &request.head, run_history(gate, query).await);
            answer.reply(reply, left(&request)).await
        }
        (_, path) if path == "/llm" || path.starts_with("/llm/") => llm::llm(gate, request, answer).await,
        _ => {
            let why = "the gateway has /proxy, /llm/*, /run-history, /configure and /health";
            let reply = noted(gate, &request.head, refusal(404, "not_found", why));
            answer.reply(reply, left(&request)).await
        }
    }
}

/// S1: 200 while requests can be served and recorded.
fn health(gate: &Gate) -> Reply {
    match gate.audit().borrow_mut().is_broken() {
        false => Reply::json(200, "application/json", &json!({"status": "ok"})),
        true => {
            Reply::json(503, "application/json", &json!({"status": "degraded", "audit": "cannot be written"}))
        }
    }
}

/// Earlier runs, as the platform tells them.
async fn run_history(gate: &Gate, query: &str) -> Reply {
    match query.len() <= LONGEST_QUERY {
        false => refusal(400, "target_syntax", "the query is too long"),
        true => match gate.credentials().run_history(query).await {
            Ok((status, body)) => {
                // No platform should tell a credential there; one that does tells it to nobody.
                let needles = gate.credentials().needles();
                let body = needles.scrub_text(&body).map_or(body, |(masked, _)| masked);
                let fields = super::Fields::from_iter([("content-type", &b"application/json"[..])]);
                Reply { status, fields, body }
            }
            Err(why) => refusal(502, "platform", &format!("the platform cannot tell: {why}")),
        },
    }
}

/// An answer of the gateway's own to a request, once it is recorded. Questions after its health are not: they come all the
/// time.
fn noted(gate: &Rc<Gate>, head: &RequestHead, reply: Reply) -> Reply {
    Exchange::<Asked>::answered(gate, head.method.as_str(), &head.target, reply.status);
    reply
}

/// Whether the connection goes on after an answer that did not read the request's body.
fn left(request: &Request<'_>) -> After {
    if request.head.body == BodyLength::None { After::KeepAlive } else { After::Close }
}

/// A refusal that no policy made.
#[derive(Serialize)]
struct Refusal<'a> {
    error: &'a str,
    title: &'a str,
    status: u16,
    detail: &'a str,
}

fn refusal(status: u16, code: &str, why: &str) -> Reply {
    let refusal = Refusal { error: why, title: code, status, detail: why };
    Reply::json(status, PROBLEM, &refusal)
}

/// How much of requests the gateway holds in memory at once, in KiB.
const MOST_HELD: usize = 64 * 1024;

thread_local! {
    static ROOM: Arc<Semaphore> = Arc::new(Semaphore::new(MOST_HELD));
}

/// What a body that does not say how long it is takes at a time, in octets.
const AT_A_TIME: usize = 64 * 1024;

/// Room for a body of a request, given back when this is dropped.
struct Room {
    permit: OwnedSemaphorePermit,
    octets: usize,
}

impl Room {
    /// As much as a body says it has; one that does not say takes more as it comes. Nothing if others take all there is.
    fn take(length: BodyLength, most: usize) -> Option<Self> {
        let octets = match length {
            BodyLength::None => 0,
            BodyLength::Sized(size) => usize::try_from(size).unwrap_or(usize::MAX).min(most),
            BodyLength::Chunked => AT_A_TIME.min(most),
        };
        Some(Self { permit: permit(octets)?, octets })
    }

    /// Takes more, where a body needs it.
    fn grow_to(&mut self, octets: usize) -> Option<()> {
        while self.octets < octets {
            self.permit.merge(permit(AT_A_TIME)?);
            self.octets += AT_A_TIME;
        }
        Some(())
    }
}

fn permit(octets: usize) -> Option<OwnedSemaphorePermit> {
    let kibibytes = u32::try_from(octets.div_ceil(1024)).unwrap_or(u32::MAX);
    ROOM.with(Arc::clone).try_acquire_many_owned(kibibytes).ok()
}

/// The answer where there is no room.
fn no_room() -> Reply {
    refusal(429, "http_framing", "the gateway holds as many requests as it has room for; try again")
}

/// The answer to a body that is larger than it may be.
fn too_large() -> Reply {
    refusal(413, "http_framing", "Request body too large")
}

/// A whole body with its room, or the answer where it is larger than `most` or there is no room. Who waits to be told to send it is
/// told.
async fn whole(
    head: &RequestHead,
    body: &mut Incoming<'_, AgentReader>,
    answer: &mut Answer<'_>,
    most: usize,
) -> io::Result<Result<(Bytes, Room), Reply>> {
    let Some(mut room) = Room::take(head.body, most) else { return Ok(Err(no_room())) };
    if head.waits_to_go_on() {
        answer.go_on().await?;
    }
    let mut all = BytesMut::new();
    while let Some(piece) = body.next().await? {
        if all.len() + piece.len() > most {
            return Ok(Err(too_large()));
        }
        if room.grow_to(all.len() + piece.len()).is_none() {
            return Ok(Err(no_room()));
        }
        all.extend_from_slice(&piece);
    }
    Ok(Ok((all.freeze(), room)))
}
