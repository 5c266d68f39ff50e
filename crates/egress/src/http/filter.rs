//! Filters responses between the upstream and the agent: decompresses them where they have to be searched, and masks the credential
//! that was put into the request, wherever and in whatever form it comes back (C10).

use std::convert::Infallible;
use std::io;

use bytes::Bytes;
use credential::{Needles, Scrubber};
use policy::Denial;

use super::fields::Fields;
use super::frames::{FrameFormat, FrameParser};
use super::head::BodyLength;
use super::media_type::MediaType;
use super::messages::MessageScrubber;
use super::response::{ResponseBody, ResponseHead};
use super::unpack::{PACKED_PIECE, Unpack};
use crate::live_needles::LiveNeedles;
use crate::llm::Account;

/// The filter of one response.
pub(super) struct Filter<'a> {
    unpack: Unpack,
    scrubber: Option<Scrubber>,
    needles: Option<Needles>,
    live: Option<LiveNeedles>,
    account: Option<Account<'a>>,
    messages: MessageStream,
    masked_in_fields: u64,
}

/// How a stream of messages (gRPC, Connect) is searched.
enum MessageStream {
    /// The response is no such stream.
    No,
    /// As one text. A compressed message, or one with unknown flags, ends it.
    Whole(FrameParser),
    /// Message by message, in place of the scrubber.
    Each(Box<MessageScrubber>),
}

/// What is done with a response that cannot be searched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unsearchable {
    /// Refuse it.
    Refuse,
    /// Pass it on, and say so in the record.
    Note,
}

impl<'a> Filter<'a> {
    /// Creates a filter that changes nothing.
    pub(super) fn none() -> Self {
        Self {
            unpack: Unpack::Plain,
            scrubber: None,
            needles: None,
            live: None,
            account: None,
            messages: MessageStream::No,
            masked_in_fields: 0,
        }
    }

    /// Creates a filter that masks `needles`. Changes the head and length to what will be sent.
    ///
    /// # Errors
    /// The body is compressed in a way that cannot be searched.
    pub(super) fn scrubbing(
        live: &LiveNeedles,
        head: &mut ResponseHead,
        length: &mut ResponseBody,
    ) -> Result<Self, Denial> {
        let needles = live.now();
        let mut filter = Self {
            unpack: Unpack::Plain,
            scrubber: Some(Scrubber::new(&needles)),
            needles: Some(needles.clone()),
            live: Some(live.clone()),
            account: None,
            messages: match is_stream(&head.fields) {
                true => MessageStream::Whole(FrameParser::of(FrameFormat::LengthPrefixed)),
                false => MessageStream::No,
            },
            masked_in_fields: 0,
        };
        filter.head(head);
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

    /// Passes each message on as it ends, if the response is a stream of messages. This is for hosts without a
    /// credential, and for services that speak gRPC or Connect themselves and let nobody choose where a message ends.
    pub(super) fn release_messages(&mut self) {
        if let (MessageStream::Whole(_), Some(live)) = (&self.messages, &self.live) {
            self.messages =
                MessageStream::Each(MessageScrubber::of(FrameFormat::LengthPrefixed, live).into());
        }
    }

    /// Has the tokens counted that the response reports.
    pub(super) fn meter(&mut self, account: Account<'a>) {
        self.account = Some(account);
    }

    /// Whether the usage of a model is read from the response.
    pub(super) fn is_metered(&self) -> bool {
        self.account.is_some()
    }

    /// Whether the usage of the whole response has been read.
    pub(super) fn has_read_usage(&self) -> bool {
        self.account.as_ref().is_some_and(Account::has_read_usage)
    }

    /// Notes that the whole response has passed.
    pub(super) fn mark_whole(&mut self) {
        self.account.iter_mut().for_each(Account::mark_whole);
    }

    /// Creates a filter for a response whose compression is unknown: masks what can be seen of it.
    pub(super) fn scrubbing_blindly(live: &LiveNeedles, head: &mut ResponseHead) -> Self {
        Self { scrubber: Some(Scrubber::new(&live.now())), ..Self::scrubbing_fields(live, head) }
    }

    /// Creates a filter that masks the head and the trailers, and leaves the body as it is.
    pub(super) fn scrubbing_fields(live: &LiveNeedles, head: &mut ResponseHead) -> Self {
        let mut filter = Self { needles: Some(live.now()), live: Some(live.clone()), ..Self::none() };
        filter.head(head);
        filter
    }

    /// Searches from here on for what has been added since.
    fn refresh(&mut self) {
        let (Some(live), Some(needles)) = (&self.live, &mut self.needles) else { return };
        if let Some(newer) = live.newer_than(needles) {
            self.scrubber.iter_mut().for_each(|scrubber| scrubber.search_for(&newer));
            *needles = newer;
        }
    }

    /// Masks what a head says.
    fn head(&mut self, head: &mut ResponseHead) {
        self.fields(&mut head.fields);
        let masked = self.needles.as_ref().and_then(|needles| needles.scrub_text(head.reason.as_bytes()));
        if let Some((masked, _)) = masked {
            head.reason = String::from_utf8_lossy(&masked).into_owned();
        }
    }

    /// Masks the values of fields, of a head or of trailers. Removes a field whose name holds a needle.
    pub(super) fn fields(&mut self, fields: &mut Fields) {
        self.refresh();
        let Some(needles) = &self.needles else { return };
        let names = fields.len();
        fields.keep(|name| !needles.are_in_name(name.as_bytes()));
        self.masked_in_fields += (names - fields.len()) as u64;
        if !needles.are_in(fields.all_text()) {
            return;
        }
        let _ = fields.rewrite(|_, value| {
            let scrubbed = needles.scrub_text(value);
            Ok::<_, Infallible>(scrubbed.map(|(masked, found)| {
                self.masked_in_fields += found;
                masked
            }))
        });
    }

    /// Filters a piece of the body. Returns what had been held back before it, if that goes on by itself, and what of the piece is
    /// settled.
    pub(super) fn piece(&mut self, mut piece: Bytes) -> io::Result<[Bytes; 2]> {
        self.refresh();
        let Some(scrubber) = &mut self.scrubber else { return Ok([Bytes::new(), piece]) };
        let mut before = Vec::new();
        if matches!(self.unpack, Unpack::Plain)
            && matches!(self.messages, MessageStream::No)
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
            MessageStream::No => scrubber.push(text, &mut out),
            MessageStream::Whole(frames) => {
                frames.follow(text)?;
                scrubber.push(text, &mut out);
            }
            MessageStream::Each(messages) => messages.push(text, &mut out)?,
        }
        if let Some(account) = &mut self.account {
            account.piece(&out);
        }
        Ok([Bytes::new(), out.into()])
    }

    /// Filters the last piece of the body, and returns it behind what was held back.
    pub(super) fn last(&mut self, piece: Bytes) -> io::Result<Bytes> {
        self.refresh();
        if matches!(self.unpack, Unpack::Plain)
            && matches!(self.messages, MessageStream::No)
            && self.scrubber.as_mut().is_some_and(|scrubber| scrubber.settles_last(&piece))
        {
            self.account.iter_mut().for_each(|account| account.piece(&piece));
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

    /// Returns how many octets of a body it takes at once.
    pub(super) fn max_piece(&self) -> usize {
        if matches!(self.unpack, Unpack::Plain) { usize::MAX } else { PACKED_PIECE }
    }

    /// Ends the body, and returns what was held back.
    pub(super) fn end(&mut self) -> io::Result<Bytes> {
        self.refresh();
        let Some(scrubber) = &mut self.scrubber else { return Ok(Bytes::new()) };
        let mut out = Vec::new();
        let rest = self.unpack.end()?.unwrap_or_default();
        match &mut self.messages {
            MessageStream::No | MessageStream::Whole(_) => {
                if let MessageStream::Whole(frames) = &mut self.messages {
                    frames.follow(&rest)?;
                }
                scrubber.push(&rest, &mut out);
                scrubber.finish(&mut out);
            }
            MessageStream::Each(messages) => {
                messages.push(&rest, &mut out)?;
                messages.finish(&mut out)?;
            }
        }
        if let Some(account) = &mut self.account {
            account.piece(&out);
        }
        Ok(out.into())
    }

    /// Whether the end of a message is held back, which would have been passed on had the messages been searched one by one.
    pub(super) fn holds_message_back(&self) -> bool {
        matches!(self.messages, MessageStream::Whole(_))
            && self.scrubber.as_ref().is_some_and(Scrubber::holds_back)
    }

    /// Returns how many times the credential was masked so far.
    pub(super) fn masked(&self) -> u64 {
        let in_body = match &self.messages {
            MessageStream::Each(messages) => messages.found(),
            MessageStream::No | MessageStream::Whole(_) => self.scrubber.as_ref().map_or(0, Scrubber::found),
        };
        self.masked_in_fields + in_body
    }
}

/// Whether a body is a stream of length-prefixed messages, of gRPC or Connect. gRPC-web's text form is in base64, and searched as text.
fn is_stream(fields: &Fields) -> bool {
    fields.text("content-type").map(MediaType::of).is_some_and(|kind| {
        let streams = kind.begins_with("application/grpc") || kind.begins_with("application/connect+");
        streams && !kind.begins_with("application/grpc-web-text")
    })
}

#[cfg(test)]
mod tests {
    use credential::Secret;

    use super::*;

    const SECRET: &[u8] = b"sk-SECRETVALUE-0123456789abcdefXY";

    fn head_of(media_type: &str) -> ResponseHead {
        let response = http::Response::builder().header("content-type", media_type).body(()).unwrap();
        ResponseHead::of_version_2(&response.into_parts().0).unwrap()
    }

    /// An answer of gRPC's that a filter was given in two pieces, and whether it came to its end.
    fn filtered(pieces: [&[u8]; 2], message_wise: bool) -> (Vec<u8>, bool) {
        let needles = Needles::of([&Secret::new(SECRET.to_vec())]).into();
        let mut head = head_of("application/grpc");
        let mut filter =
            Filter::scrubbing(&needles, &mut head, &mut ResponseBody::Framed(BodyLength::Chunked)).unwrap();
        if message_wise {
            filter.release_messages();
        }
        let mut out = Vec::new();
        let ended = pieces.into_iter().try_for_each(|piece| {
            out.extend(filter.piece(Bytes::copy_from_slice(piece))?.concat());
            Ok::<_, io::Error>(())
        });
        let ended = ended.and_then(|()| filter.end()).map(|rest| out.extend(rest));
        (out, ended.is_ok())
    }

    #[test]
    fn what_is_fetched_after_an_answer_began_is_masked_in_it() {
        for (media_type, message_wise) in
            [("text/event-stream", false), ("application/grpc", false), ("application/grpc", true)]
        {
            let message = |text: &[u8]| match media_type {
                "application/grpc" => [&[0, 0, 0, 0, text.len() as u8], text].concat(),
                _ => text.to_vec(),
            };
            let live = LiveNeedles::from(Needles::of([]));
            let mut head = head_of(media_type);
            let mut length = ResponseBody::Framed(BodyLength::Chunked);
            let mut filter = Filter::scrubbing(&live, &mut head, &mut length).unwrap();
            if message_wise {
                filter.release_messages();
            }
            let mut out = filter.piece(message(b"one\n").into()).unwrap().concat();
            live.replace(Needles::of([&Secret::new(SECRET.to_vec())]));
            out.extend(filter.piece(message(SECRET).into()).unwrap().concat());
            out.extend(filter.end().unwrap());
            assert!(!out.windows(4).any(|four| SECRET.windows(4).any(|part| part == four)), "{media_type}");
            assert_eq!((out.len(), filter.masked()), (message(b"one\n").len() + message(SECRET).len(), 1));
        }
    }

    #[test]
    fn a_field_goes_whose_name_holds_a_secret_without_its_case() {
        let needles = LiveNeedles::from(Needles::of([&Secret::new(SECRET.to_vec())]));
        let mut head = head_of("text/plain");
        let name = std::str::from_utf8(SECRET).unwrap();
        for name in [name.to_owned(), format!("x-{name}-y"), "x-note".to_owned()] {
            head.fields.push(&name, b"1");
        }
        let filter =
            Filter::scrubbing(&needles, &mut head, &mut ResponseBody::Framed(BodyLength::None)).unwrap();
        let left: Vec<&str> = head.fields.iter().map(|(name, _)| name).collect();
        assert_eq!((left, filter.masked()), (vec!["content-type", "x-note"], 2));
    }

    #[test]
    fn a_border_of_messages_inside_a_secret_shows_nothing_of_it() {
        for shown in 1..SECRET.len() {
            let (before, after) = SECRET.split_at(shown);
            let first = [&[0, 0, 0, 0, shown as u8], before].concat();
            let (out, _) = filtered([&first, after], false);
            assert!(!out.windows(4).any(|four| SECRET.windows(4).any(|part| part == four)), "{shown}");
        }
    }

    #[test]
    fn a_message_goes_on_as_it_ends_where_the_policy_says_so() {
        let needles = Needles::of([&Secret::new(SECRET.to_vec())]).into();
        let message = b"\0\0\0\0\x03one";
        let (out, whole) = filtered([message, message], true);
        assert_eq!((out, whole), ([&message[..], message].concat(), true));
        let mut head = head_of("application/connect+proto");
        let mut filter =
            Filter::scrubbing(&needles, &mut head, &mut ResponseBody::Framed(BodyLength::Chunked)).unwrap();
        filter.release_messages();
        assert_eq!(filter.piece(Bytes::from_static(message)).unwrap().concat(), message);
    }

    #[test]
    fn a_packed_message_is_refused_in_either_way() {
        for message_wise in [false, true] {
            let (out, whole) = filtered([b"\x01", b"\0\0\0\x03abc"], message_wise);
            assert_eq!((out, whole), (Vec::new(), false));
        }
    }
}
