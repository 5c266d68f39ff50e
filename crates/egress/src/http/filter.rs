//! Part happens to an answer between the upstream and the agent: it is unpacked where it has to be looked into, and the
//! credential that was put into its request is masked, wherever and in whatever form it comes back (C10).

use std::convert::Infallible;
use std::io;

use bytes::Bytes;
use credential::{Needles, Scrubber};
use policy::Denial;

use super::fields::Fields;
use super::frames::FrameFormat;
use super::head::BodyLength;
use super::media_type::MediaType;
use super::messages::MessageScrubber;
use super::response::{ResponseBody, ResponseHead};
use super::unpack::{PACKED_PIECE, Unpack};
use crate::llm::Account;

/// The filter of one answer.
pub(super) struct Filter<'a> {
    unpack: Unpack,
    scrubber: Option<Scrubber>,
    needles: Option<Needles>,
    account: Option<Account<'a>>,
    /// In the scrubber's place, for an answer that is a stream of messages.
    messages: Option<MessageScrubber>,
    masked: u64,
}

/// Part is done with an answer that cannot be searched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unsearchable {
    /// It is refused.
    Refuse,
    /// It goes on, and the record says so.
    Note,
}

impl<'a> Filter<'a> {
    /// A filter for an answer to a request that held no credential.
    pub(super) fn none() -> Self {
        Self {
            unpack: Unpack::Plain,
            scrubber: None,
            needles: None,
            account: None,
            messages: None,
            masked: 0,
        }
    }

    /// A filter that masks what `needles` stand for. The head is changed to what will be sent.
    pub(super) fn scrubbing(
        needles: &Needles,
        head: &mut ResponseHead,
        length: &mut ResponseBody,
    ) -> Result<Self, Denial> {
        let mut filter = Self {
            unpack: Unpack::Plain,
            scrubber: Some(Scrubber::new(needles)),
            needles: Some(needles.clone()),
            account: None,
            messages: is_stream(&head.fields)
                .then(|| MessageScrubber::of(FrameFormat::LengthPrefixed, needles)),
            masked: 0,
        };
        filter.fields(&mut head.fields);
        if let Some((masked, _)) = needles.scrub_text(head.reason.as_bytes()) {
            head.reason = String::from_utf8_lossy(&masked).into_owned();
        }
        if *length != ResponseBody::Framed(BodyLength::None) {
            filter.unpack = Unpack::of(&head.fields)?;
            if !matches!(filter.unpack, Unpack::Plain) {
                head.fields.remove("content-encoding");
                head.fields.remove("content-length");
                *length = ResponseBody::Framed(BodyLength::Chunked);
            }
        }
        Ok(filter)
    }

    /// Has the tokens counted that the answer says it took.
    pub(super) fn meter(&mut self, account: Account<'a>) {
        self.account = Some(account);
    }

    /// Notes that all of the answer has passed.
    pub(super) fn mark_whole(&mut self) {
        self.account.iter_mut().for_each(Account::mark_whole);
    }

    /// Masks what can be seen of an answer that is packed in a way that is not known here.
    pub(super) fn scrubbing_blindly(needles: &Needles, head: &mut ResponseHead) -> Self {
        let mut filter =
            Self { scrubber: Some(Scrubber::new(needles)), needles: Some(needles.clone()), ..Self::none() };
        filter.fields(&mut head.fields);
        filter
    }

    /// Masks the values of fields: a head's, or a trailer section's. A field whose name holds one is left out.
    pub(super) fn fields(&mut self, fields: &mut Fields) {
        let Some(needles) = &self.needles else { return };
        if !needles.are_in(fields.all_text()) {
            return;
        }
        let names = fields.len();
        fields.keep(|name| needles.scrub_text(name.as_bytes()).is_none());
        self.masked += (names - fields.len()) as u64;
        let _ = fields.rewrite(|_, value| {
            let scrubbed = needles.scrub_text(value);
            Ok::<_, Infallible>(scrubbed.map(|(masked, found)| {
                self.masked += found;
                masked
            }))
        });
    }

    /// A piece of the body: what had been held back before it, where that goes on by itself, and what of it is settled.
    pub(super) fn piece(&mut self, mut piece: Bytes) -> io::Result<[Bytes; 2]> {
        let Some(scrubber) = &mut self.scrubber else { return Ok([Bytes::new(), piece]) };
        let mut before = Vec::new();
        if matches!(self.unpack, Unpack::Plain)
            && self.messages.is_none()
            && let Some(settled) = scrubber.settle(&piece, &mut before)
        {
            piece.truncate(settled);
            let parts = [before.into(), piece];
            self.account.iter_mut().for_each(|account| parts.iter().for_each(|part| account.piece(part)));
            return Ok(parts);
        }
        let mut out = Vec::with_capacity(piece.len());
        let unpacked = self.unpack.piece(&piece)?;
        let text = unpacked.as_deref().unwrap_or(&piece);
        match &mut self.messages {
            None => scrubber.push(text, &mut out),
            Some(messages) => messages.push(text, &mut out)?,
        }
        if let Some(account) = &mut self.account {
            account.piece(&out);
        }
        Ok([Bytes::new(), out.into()])
    }

    /// The last piece of the body, and what was held back before it.
    pub(super) fn last(&mut self, piece: Bytes) -> io::Result<Bytes> {
        if matches!(self.unpack, Unpack::Plain)
            && self.messages.is_none()
            && self.scrubber.as_mut().is_some_and(|scrubber| scrubber.settles_last(&piece))
        {
            self.account.iter_mut().for_each(|account| account.piece(&piece));
            self.masked += self.scrubber.as_ref().map_or(0, Scrubber::found);
            return Ok(piece);
        }
        let [before, piece] = self.piece(piece)?;
        let rest = self.end()?;
        Ok(match (before.is_empty(), piece.is_empty(), rest.is_empty()) {
            (true, _, true) => piece,
            (true, true, false) => rest,
            _ => [before, piece, rest].concat().into(),
        })
    }

    /// How much of a body is given to it at once.
    pub(super) fn appetite(&self) -> usize {
        if matches!(self.unpack, Unpack::Plain) { usize::MAX } else { PACKED_PIECE }
    }

    /// Part was held back.
    pub(super) fn end(&mut self) -> io::Result<Bytes> {
        let Some(scrubber) = &mut self.scrubber else { return Ok(Bytes::new()) };
        let mut out = Vec::new();
        let rest = self.unpack.end()?.unwrap_or_default();
        match &mut self.messages {
            None => {
                scrubber.push(&rest, &mut out);
                scrubber.finish(&mut out);
                self.masked += scrubber.found();
            }
            Some(messages) => {
                messages.push(&rest, &mut out)?;
                messages.finish(&mut out)?;
                self.masked += messages.found();
            }
        }
        if let Some(account) = &mut self.account {
            account.piece(&out);
        }
        Ok(out.into())
    }

    /// How many times the credential was found.
    pub(super) fn masked(&self) -> u64 {
        self.masked
    }
}

/// Whether a body is a stream of messages with their lengths before them: gRPC's or Connect's. In gRPC-web's text form they are in base64,
/// and looked for in that.
fn is_stream(fields: &Fields) -> bool {
    fields.text("content-type").map(MediaType::of).is_some_and(|kind| {
        let streams = kind.begins_with("application/grpc") || kind.begins_with("application/connect+");
        streams && !kind.begins_with("application/grpc-web-text")
    })
}
