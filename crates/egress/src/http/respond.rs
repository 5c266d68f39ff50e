//! An answer on its way to the agent: searched for the credential that was part of its request, and cut where that was asked.

use std::cell::Cell;
use std::io;
use std::rc::Rc;

use bytes::{Bytes, BytesMut};
use credential::Needles;
use policy::{Denial, LlmFormat};
use tokio::time::Instant;

use super::abandoned::GivenUp;
use super::answer::Answer;
use super::filter::{Filter, Unsearchable};
use super::head::BodyLength;
use super::incoming::Incoming;
use super::interim::Early;
use super::outgoing::Outgoing;
use super::problem::After;
use super::replay::Again;
use super::response::ResponseBody;
use super::stream::AgentWriter;
use super::unpack::is_packed;
use super::upstream::{self, Arrived, Coming};
use crate::credentials::FetchedCredential;
use crate::gate::Gate;
use crate::llm::{Account, Ledger, Usage};
use crate::upstream::UpstreamReader;

/// The status of an upstream that does not know the credential.
pub(super) const UNAUTHORIZED: u16 = 401;

/// How an answer is handled.
#[derive(Clone, Copy)]
pub(super) struct Handling<'a> {
    pub(super) method: &'a str,
    /// What to mask.
    pub(super) needles: Option<&'a Needles>,
    pub(super) unsearchable: Unsearchable,
    /// Whether a credential was part of the request.
    pub(super) bound: bool,
    /// The request's body, as far as it can be sent again.
    pub(super) again: &'a Again,
    /// The credential that a 401 refuses, where another may be tried.
    pub(super) refresh: Option<(&'a Gate, &'a FetchedCredential)>,
    /// How much of the body is given back.
    pub(super) most: Option<usize>,
    /// When it must have begun, and be whole if it is gathered.
    pub(super) until: Option<Instant>,
    /// The model API it came from, and whether it should report its usage.
    pub(super) meter: Option<(LlmFormat, Usage)>,
    pub(super) ledger: &'a Ledger,
}

/// What became of an answer.
pub(super) enum Responded<'a> {
    Answered {
        status: u16,
        /// Whether the agent's connection goes on.
        after: After,
        /// Whether the upstream's connection can carry another request.
        reusable: bool,
        /// What the record is to say about it.
        note: Option<String>,
    },
    /// The upstream refused the credential, and there is this one by now.
    Refused(Answer<'a>, Rc<FetchedCredential>),
    /// Nothing has been answered yet, and nothing of the upstream's will be.
    Failed(Answer<'a>, Failure),
}

/// Why an answer is not passed on.
pub(super) enum Failure {
    /// The upstream did not give one that can be read.
    Broken(io::Error),
    /// A guard refuses it.
    Denied(Denial),
}

/// Passes an answer on.
pub(super) async fn respond<'a>(
    coming: Coming<'_>,
    handling: Handling<'_>,
    mut answer: Answer<'a>,
    received: &Cell<u64>,
) -> io::Result<Responded<'a>> {
    let needles = handling.needles;
    // From now on: who hangs up before the answer has come is charged as well.
    let mut account = handling.meter.map(|(format, usage)| Account::open(handling.ledger, format, usage));
    let early = Early::of(&mut answer, needles);
    let arrived = by(handling.until, coming.answer(handling.method, early)).await;
    let Arrived { mut head, mut length, mut body } = match arrived {
        Ok(arrived) if arrived.head.status == 101 => {
            let why = io::Error::other("the upstream switched protocols without being asked");
            account.into_iter().for_each(Account::close);
            return Ok(Responded::Failed(answer, Failure::Broken(why)));
        }
        Ok(arrived) => arrived,
        Err(error) => {
            // The model may be at work for who gave it up: that is charged as what broke off is.
            account.into_iter().filter(|_| !GivenUp::is(&error)).for_each(Account::close);
            return Ok(Responded::Failed(answer, Failure::Broken(error)));
        }
    };
    account.iter_mut().for_each(|account| account.begin(head.status, head.fields.text("content-type")));
    match handling.refresh.filter(|_| head.status == UNAUTHORIZED && handling.again.is_at_hand()) {
        Some((gate, held)) => match gate.credentials().fetch(held.provider()).await {
            Ok(new) if !new.is_same_as(held) => return Ok(Responded::Refused(answer, new)),
            _ => gate.credentials().report_refused(held.provider()).await,
        },
        None => handling.again.let_go(),
    }
    let (status, mut note) = (head.status, None);
    let framed = length != ResponseBody::ToEnd;
    // An answer to a request that held no credential is searched where it can be, and never changed for it.
    let needles = needles.filter(|_| handling.bound || !is_packed(&head.fields));
    let mut filter = match needles.map(|needles| Filter::scrubbing(needles, &mut head, &mut length)) {
        None => Filter::none(),
        Some(Ok(filter)) => filter,
        Some(Err(denial)) if handling.unsearchable == Unsearchable::Note => {
            note = Some(format!("{}: {}", denial.guard, denial.reason));
            Filter::scrubbing_blindly(needles.unwrap_or(&Needles::of([])), &mut head)
        }
        Some(Err(denial)) => return Ok(Responded::Failed(answer, Failure::Denied(denial))),
    };
    if let Some(account) = account {
        filter.meter(account);
    }
    // Some servers send a body with an answer that has none; it would be read as the next one.
    let bodiless = handling.method == "HEAD" || matches!(status, 204 | 304);
    let mut reusable = framed && head.keep_alive && !bodiless;
    let mut gathered = None;
    if let Some(most) = handling.most
        && length != ResponseBody::Framed(BodyLength::None)
    {
        let gathering = by(handling.until, gather(&mut body, &mut filter, most, received)).await;
        let (cut, truncated) = match gathering {
            Ok(gathered) => gathered,
            Err(error) => return Ok(Responded::Failed(answer, Failure::Broken(error))),
        };
        reusable &= !truncated;
        if !truncated {
            filter.mark_whole();
        } else {
            head.fields.set("x-truncated", b"true");
        }
        head.fields.set("content-length", cut.len().to_string().as_bytes());
        length = ResponseBody::Framed(BodyLength::Sized(cut.len() as u64));
        gathered = Some(cut);
    }
    let mut begun = answer.begin(&mut head, length)?;
    match gathered {
        Some(cut) => begun.body.finish(cut, super::Fields::default()).await?,
        None => pass(body, &mut filter, begun.body, received).await?,
    }
    if filter.masked() > 0 {
        let times = if filter.masked() == 1 { "once".into() } else { format!("{} times", filter.masked()) };
        let masked = format!("the credential came back, and was masked {times}");
        note = Some(note.map_or(masked.clone(), |before| format!("{before}; {masked}")));
    }
    Ok(Responded::Answered { status, after: begun.after, reusable, note })
}

/// Passes a body on as it comes, and its trailers behind it.
async fn pass(
    mut body: Incoming<'_, UpstreamReader>,
    filter: &mut Filter<'_>,
    mut out: Outgoing<'_, AgentWriter>,
    received: &Cell<u64>,
) -> io::Result<()> {
    let passed = async {
        while let Some(mut piece) = out.next_of_answer(&mut body).await? {
            received.set(received.get() + piece.len() as u64);
            // What has come already is no reason to let nobody else go on.
            tokio::task::consume_budget().await;
            while piece.len() > filter.appetite() {
                for settled in filter.piece(piece.split_to(filter.appetite()))? {
                    out.send(settled).await?;
                }
            }
            if body.is_ending() {
                body.next().await?;
                return filter.last(piece);
            }
            for settled in filter.piece(piece)? {
                out.send(settled).await?;
            }
        }
        filter.end()
    };
    let last = match passed.await {
        Ok(last) => last,
        // What came before that is the agent's all the same.
        Err(error) => return out.flush().await.and(Err(error)),
    };
    let mut trailers = upstream::passed_on(body.trailers().await?);
    filter.fields(&mut trailers);
    filter.mark_whole();
    out.finish(last, trailers).await
}

/// Work that must be done by a time, if one is given.
pub(super) async fn by<T>(
    until: Option<Instant>,
    work: impl Future<Output = io::Result<T>>,
) -> io::Result<T> {
    match until {
        None => work.await,
        Some(until) => tokio::time::timeout_at(until, work)
            .await
            .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?,
    }
}

/// Gathers a body up to a size, masked before it is cut: no part of a credential is left at the cut (C11).
async fn gather(
    body: &mut Incoming<'_, UpstreamReader>,
    filter: &mut Filter<'_>,
    most: usize,
    received: &Cell<u64>,
) -> io::Result<(Bytes, bool)> {
    let mut all = BytesMut::new();
    while let Some(piece) = body.next().await? {
        received.set(received.get() + piece.len() as u64);
        tokio::task::consume_budget().await;
        let mut piece = piece;
        while !piece.is_empty() && all.len() <= most {
            let part = piece.split_to(piece.len().min(filter.appetite()));
            filter.piece(part)?.iter().for_each(|settled| all.extend_from_slice(settled));
        }
        if all.len() > most {
            break;
        }
    }
    let ended = all.len() <= most;
    if ended {
        all.extend_from_slice(&filter.end()?);
    }
    let truncated = all.len() > most;
    all.truncate(most);
    Ok((all.freeze(), truncated))
}
