//! An answer on its way to the agent: searched for the credential that was part of its request, and cut where that was asked.

use std::cell::{Cell, RefCell};
use std::io;

use bytes::{Bytes, BytesMut};
use credential::Needles;
use policy::LlmFormat;

use super::answer::Answer;
use super::filter::{Filter, Unsearchable};
use super::head::BodyLength;
use super::problem::After;
use super::response::{ResponseBody, ResponseHead};
use super::upstream::{self, Arrived, Coming};
use crate::llm::{Ledger, Meter};

/// The status of an upstream that does not know the credential.
const UNAUTHORIZED: u16 = 401;

/// How an answer is handled.
#[derive(Clone, Copy)]
pub(super) struct Handling<'a> {
    pub(super) method: &'a str,
    /// What to mask.
    pub(super) needles: Option<&'a Needles>,
    pub(super) unsearchable: Unsearchable,
    /// Whether a 401 comes back unanswered.
    pub(super) refresh: bool,
    /// How much of the body is given back.
    pub(super) most: Option<usize>,
    /// The model API it came from, and whether a use is to be told.
    pub(super) meter: Option<(LlmFormat, bool)>,
    pub(super) ledger: &'a RefCell<Ledger>,
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
    /// The upstream refused the credential.
    Refused(Answer<'a>),
}

/// Passes an answer on.
pub(super) async fn respond<'a>(
    coming: Coming<'_>,
    handling: Handling<'_>,
    mut answer: Answer<'a>,
    received: &Cell<u64>,
) -> io::Result<Responded<'a>> {
    let needles = handling.needles;
    let interim = async |mut head: ResponseHead| {
        head.fields.leave_hop();
        if let Some(needles) = needles {
            let mut length = ResponseBody::Framed(BodyLength::None);
            Filter::scrubbing(needles, &mut head, &mut length).map_err(|d| io::Error::other(d.reason))?;
        }
        answer.interim(&head).await
    };
    let Arrived { mut head, mut length, mut body } = coming.answer(handling.method, interim).await?;
    if head.status == 101 {
        return Err(io::Error::other("the upstream switched protocols without being asked"));
    }
    if head.status == UNAUTHORIZED && handling.refresh {
        return Ok(Responded::Refused(answer));
    }
    let (status, mut note) = (head.status, None);
    let mut filter = match needles.map(|needles| Filter::scrubbing(needles, &mut head, &mut length)) {
        None => Filter::none(),
        Some(Ok(filter)) => filter,
        Some(Err(denial)) if handling.unsearchable == Unsearchable::Note => {
            note = Some(format!("{}: {}", denial.guard, denial.reason));
            Filter::none()
        }
        Some(Err(denial)) => return Err(io::Error::other(denial.to_string())),
    };
    if let Some((format, asked)) = handling.meter {
        let expected = asked && (200..300).contains(&status);
        filter.meter(Meter::of(format, head.fields.text("content-type"), expected));
    }
    let mut reusable = length != ResponseBody::ToEnd && head.keep_alive;
    let mut gathered = None;
    if let Some(most) = handling.most
        && length != ResponseBody::Framed(BodyLength::None)
    {
        let (cut, truncated) = gather(&mut body, &mut filter, most, received).await?;
        reusable &= !truncated;
        if truncated {
            head.fields.set("x-truncated", b"true");
        }
        head.fields.set("content-length", cut.len().to_string().as_bytes());
        length = ResponseBody::Framed(BodyLength::Sized(cut.len() as u64));
        gathered = Some(cut);
    }
    let begun = answer.begin(&mut head, length)?;
    let mut out = begun.body;
    if let Some(cut) = gathered {
        out.send(cut).await?;
        out.end(super::Fields::default()).await?;
    } else {
        if !body.is_waiting() {
            out.flush().await?;
        }
        while let Some(piece) = body.next().await? {
            received.set(received.get() + piece.len() as u64);
            out.send(filter.piece(piece)?).await?;
        }
        out.send(filter.end()?).await?;
        let mut trailers = upstream::passed_on(body.trailers().await?);
        filter.fields(&mut trailers);
        out.end(trailers).await?;
    }
    if let Some(metered) = filter.metered() {
        handling.ledger.borrow_mut().charge(&metered);
    }
    if filter.masked() > 0 {
        note = Some(format!("the credential came back, and was masked {} times", filter.masked()));
    }
    Ok(Responded::Answered { status, after: begun.after, reusable, note })
}

/// Gathers a body up to a size, masked before it is cut: no part of a credential is left at the cut (C11).
async fn gather(
    body: &mut super::incoming::Incoming<'_, crate::upstream::UpstreamReader>,
    filter: &mut Filter,
    most: usize,
    received: &Cell<u64>,
) -> io::Result<(Bytes, bool)> {
    let mut all = BytesMut::new();
    while let Some(piece) = body.next().await? {
        received.set(received.get() + piece.len() as u64);
        all.extend_from_slice(&filter.piece(piece)?);
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
