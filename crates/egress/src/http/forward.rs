//! A request on its way: sent on in its one form, body and answer relayed at the same time.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use policy::{Provider, Target};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;

use super::abandoned::GivenUp;
use super::answer::Answer;
use super::filter::Unsearchable;
use super::head::{BodyLength, Version};
use super::incoming::Incoming;
use super::outgoing::Outgoing;
use super::problem::{self, After};
use super::refuse::{TOO_SLOW, unreachable};
use super::replay::Again;
use super::request::Request;
use super::respond::{Failure, Handling, Responded, UNAUTHORIZED, by, respond};
use super::stream::AgentReader;
use super::upgrade;
use super::upstream::{self, Coming, Kept, Sent};
use super::version2;
use crate::credentials::FetchedCredential;
use crate::exchange::{Exchange, Flow, Ready};
use crate::gate::Gate;
use crate::inject::{Sending, inject_again, tells_who_asks};
use crate::upstream::Offer;

/// What is asked of an exchange beside its request.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Terms {
    /// How much of the answer is given back: then it is gathered first, and cut (S0.53).
    pub(super) most: Option<usize>,
    /// How long all of it may take.
    pub(super) within: Option<Duration>,
    /// Whether its body holds a credential, and is not to be sent again beside another.
    pub(super) filled: bool,
}

impl Terms {
    /// What is answered where the upstream is too slow. Clients of `/proxy` know one status for every upstream that failed.
    fn late(&self) -> u16 {
        if self.most.is_some() { 502 } else { TOO_SLOW }
    }
}

/// Sends the request on and relays its answer.
pub(super) async fn forward(
    gate: &Rc<Gate>,
    mut exchange: Exchange<Ready>,
    target: &Target,
    mut sending: Sending,
    request: Request<'_>,
    mut answer: Answer<'_>,
    terms: Terms,
) -> io::Result<After> {
    // Of who gave it up while it waited for its turn nothing is asked.
    tokio::select! {
        biased;
        error = answer.given_up() => {
            exchange.record().fail(&error.to_string());
            return Err(error);
        }
        () = std::future::ready(()) => {}
    }
    if exchange.is_counted() && gate.ledger().lets_wait() && answer.has_hung_up() {
        let error = GivenUp::because(&"its connection has ended");
        exchange.record().fail(&error.to_string());
        return Err(error);
    }
    let late = terms.late();
    let until = terms.within.map(|within| Instant::now() + within);
    let Request { head, mut body } = request;
    // As it was judged, and not only as it came: the agent may have named the key as one that ends here.
    if head.asks_for_websocket() && sending.fields.values("sec-websocket-key").count() == 1 {
        return upgrade::websocket(gate, exchange, target, &sending, body, answer).await;
    }
    let repeatable =
        head.body == BodyLength::None && matches!(head.method.as_str(), "GET" | "HEAD" | "OPTIONS");
    let kept = if repeatable { Kept::Allowed } else { Kept::Not };
    // Those who speak HTTP/2 may need it all the way: gRPC does.
    let offer = if head.version == Version::Http2 { Offer::Version2 } else { Offer::Version1 };
    let again = match body.again() {
        _ if terms.filled => Again::gone(),
        Some(whole) => Again::whole(whole),
        // Without a credential no other is tried.
        None if exchange.held().is_none() => Again::gone(),
        None => Again::coming(head.body),
    };
    let (mut renewed, mut unread) = (false, false);
    loop {
        let send = upstream::send(gate, &mut exchange, &sending, head.body, offer, kept);
        let sent = match by(until, send).await {
            Ok(sent) => sent,
            Err(error) => {
                let after = unreachable(gate, exchange, target, &error, answer, late).await;
                body.settle().await;
                return after;
            }
        };
        exchange.mark_sent();
        let job = Job {
            sending: &sending,
            length: head.body,
            again: &again,
            refresh: !renewed,
            repeat: !unread,
            most: terms.most,
            until,
            late,
        };
        let held = exchange.held().cloned();
        match relay(gate, exchange, target, job, body, sent, answer).await? {
            Relayed::Answered { after, status } => {
                match held.filter(|_| status == UNAUTHORIZED) {
                    Some(held) if renewed => gate.credentials().report_refused(held.provider()).await,
                    // Its body has gone by: what is new counts from the next request on.
                    Some(held) if !again.is_at_hand() => gate.credentials().renew(&held).await,
                    _ => {}
                }
                return Ok(after);
            }
            Relayed::Unread(back) => {
                (answer, exchange) = *back;
                gate.pool().forget(&exchange, sending.scheme);
                unread = true;
            }
            // Refused with 401, and there is another credential by now: once more.
            Relayed::Refused(back) => {
                let new;
                (answer, exchange, new) = *back;
                renewed = true;
                if let Some(anew) = inject_again(&mut exchange, new, target) {
                    sending = anew;
                }
            }
        }
        sending.fields.remove("expect"); // it has been met: the body is at hand
        body = Incoming::Whole(again.body());
    }
}

/// One sending of a request.
#[derive(Clone, Copy)]
struct Job<'a> {
    sending: &'a Sending,
    length: BodyLength,
    /// Its body, as far as it can be sent again.
    again: &'a Again,
    /// Whether a 401 may be answered by trying another credential.
    refresh: bool,
    /// Whether it may be made again where it comes back unread.
    repeat: bool,
    most: Option<usize>,
    until: Option<Instant>,
    late: u16,
}

/// What came of it.
enum Relayed<'a> {
    Answered {
        after: After,
        status: u16,
    },
    /// The upstream refused the credential, nothing has been answered yet, and there is this one.
    Refused(Box<(Answer<'a>, Exchange<Ready>, Rc<FetchedCredential>)>),
    /// The upstream gave the request back unread, and nothing has been answered yet.
    Unread(Box<(Answer<'a>, Exchange<Ready>)>),
}

/// Relays body and answer at the same time: an upstream may answer before it has read everything.
async fn relay<'a>(
    gate: &Rc<Gate>,
    mut exchange: Exchange<Ready>,
    target: &Target,
    job: Job<'_>,
    mut body: Incoming<'_, AgentReader>,
    sent: Sent,
    answer: Answer<'a>,
) -> io::Result<Relayed<'a>> {
    let needles = gate.credentials().needles();
    let held = exchange.held().cloned();
    let bound = held.is_some();
    let handling = Handling {
        method: job.sending.method.as_str(),
        needles: (!needles.is_empty()).then_some(&needles),
        // An answer to a request that held no credential can hardly hold one: it is not refused for its packing.
        unsearchable: if bound { gate.unsearchable() } else { Unsearchable::Note },
        bound,
        again: job.again,
        refresh: held.as_deref().filter(|_| job.refresh).map(|held| (&**gate, held)),
        most: job.most,
        until: job.until,
        meter: exchange.grant().provider().and_then(|p| Some((p.llm()?, exchange.usage()))),
        ledger: gate.ledger(),
    };
    let provider = exchange.grant().provider().cloned();
    let flow = Flow::of(exchange.record(), 0);
    let mut halves = None;
    let (mut outgoing, coming) = match sent {
        Sent::Version1 { reader, writer, waiting } => {
            let (reader, writer) = halves.insert((reader, writer));
            (upstream::outgoing(writer, job.length, waiting), Coming::Version1(reader))
        }
        Sent::Version2 { body: Some(stream), response } => {
            (Outgoing::Version2(stream), Coming::Version2(response))
        }
        Sent::Version2 { body: None, response } => (Outgoing::Nothing, Coming::Version2(response)),
    };
    let over_session = matches!(coming, Coming::Version2(_));
    let (mut whole, mut broken) = (false, None);
    let mut outcome = {
        let pump = pump(&mut body, &mut outgoing, provider.as_deref(), job.again, &flow.sent);
        let coming = respond(coming, handling, answer, &flow.received);
        tokio::pin!(pump, coming);
        loop {
            tokio::select! {
                biased;
                copied = &mut pump, if !whole && broken.is_none() => match copied {
                    Ok(()) => whole = true,
                    Err(Stopped::Body(error)) => break Err(error),
                    Err(Stopped::Upstream(error)) => broken = Some((error, Instant::now() + LATE_ANSWER)),
                },
                answered = &mut coming => break answered,
                error = late(&mut broken) => break Err(error),
            }
        }
    };
    if let Ok(Responded::Answered { after, .. }) = &mut outcome
        && !body.is_done()
    {
        // What was not read of the body would be taken for the next request.
        *after = After::Close;
    }
    drop((outgoing, flow));
    if let (Ok(Responded::Answered { reusable: true, .. }), Some((reader, writer)), true) =
        (&outcome, halves, whole && upstream::is_kept_behind(job.length))
    {
        upstream::keep(gate, &exchange, job.sending.scheme, reader, writer);
    }
    if over_session {
        let failure = match &outcome {
            Ok(Responded::Failed(_, Failure::Broken(error))) | Err(error) => Some(error),
            Ok(_) => None,
        };
        upstream::heard(gate, &exchange, job.sending.scheme, failure);
    }
    let relayed = settle(gate, exchange, target, job, outcome).await;
    if matches!(relayed, Ok(Relayed::Answered { status: NO_ANSWER | FAILURE.., .. })) {
        body.settle().await;
    }
    relayed
}

/// What is left to do once an answer has been passed on, or has not.
async fn settle<'a>(
    gate: &Rc<Gate>,
    mut exchange: Exchange<Ready>,
    target: &Target,
    job: Job<'_>,
    outcome: io::Result<Responded<'a>>,
) -> io::Result<Relayed<'a>> {
    match outcome {
        Ok(Responded::Refused(answer, new)) => Ok(Relayed::Refused(Box::new((answer, exchange, new)))),
        Ok(Responded::Answered { status, after, note, .. }) => {
            exchange.record().status(status);
            if let Some(note) = note {
                exchange.record().note(&note);
            }
            Ok(Relayed::Answered { after, status })
        }
        Ok(Responded::Failed(answer, Failure::Broken(error)))
            if job.repeat && job.again.is_at_hand() && version2::is_unprocessed(&error) =>
        {
            Ok(Relayed::Unread(Box::new((answer, exchange))))
        }
        Ok(Responded::Failed(answer, Failure::Broken(error))) => {
            let after = unreachable(gate, exchange, target, &error, answer, job.late).await?;
            Ok(Relayed::Answered { after, status: NO_ANSWER })
        }
        Ok(Responded::Failed(answer, Failure::Denied(denial))) => {
            let denial = exchange.refuse(denial);
            let reply = problem::denied(&denial, &target.to_string(), gate.run(), 502);
            let after = answer.reply(reply, After::Close).await?;
            Ok(Relayed::Answered { after, status: NO_ANSWER })
        }
        Err(error) => {
            exchange.record().fail(&error.to_string());
            tracing::debug!(%target, %error, "exchange failed");
            Err(error)
        }
    }
}

/// From here on an answer says that nothing came of the request, and its sender does not send the rest.
const FAILURE: u16 = 400;
/// There was no answer, and the agent was told so.
const NO_ANSWER: u16 = 0;

/// How long an upstream that takes no more of a request may take to answer it: it may have done so before it closed.
const LATE_ANSWER: Duration = Duration::from_secs(1);

/// Ends when an answer to a request that could not be sent is not waited for any more: why it could not.
async fn late(broken: &mut Option<(io::Error, Instant)>) -> io::Error {
    match broken {
        None => std::future::pending().await,
        Some((error, until)) => {
            tokio::time::sleep_until(*until).await;
            std::mem::replace(error, io::ErrorKind::BrokenPipe.into())
        }
    }
}

/// Why not all of a body was passed on.
enum Stopped {
    /// It did not come, or may not go on.
    Body(io::Error),
    /// The upstream does not take it.
    Upstream(io::Error),
}

/// Passes a body on, and of what comes after it the fields that the provider takes.
async fn pump<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
    body: &mut Incoming<'_, R>,
    outgoing: &mut Outgoing<'_, W>,
    provider: Option<&Provider>,
    again: &Again,
    count: &Cell<u64>,
) -> Result<(), Stopped> {
    let mut last = bytes::Bytes::new();
    while let Some(piece) = outgoing.next_of(body).await.map_err(Stopped::Upstream)?.map_err(Stopped::Body)? {
        count.set(count.get() + piece.len() as u64);
        again.piece(&piece);
        if body.is_ending() {
            body.next().await.map_err(Stopped::Body)?;
            last = piece;
            break;
        }
        outgoing.send(piece).await.map_err(Stopped::Upstream)?;
    }
    let mut trailers = upstream::passed_on(body.trailers().await.map_err(Stopped::Body)?);
    if tells_who_asks(&trailers) {
        return Err(Stopped::Body(io::Error::other("a placeholder or a key stands in a trailer")));
    }
    trailers.keep(|name| provider.is_none_or(|provider| provider.lets_pass(name)));
    if trailers.is_empty() {
        again.mark_received();
    } else {
        again.let_go(); // they could not be sent with it
    }
    outgoing.finish(last, trailers).await.map_err(Stopped::Upstream)
}
