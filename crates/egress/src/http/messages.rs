//! Masks secrets in streams of messages (gRPC, Connect, WebSocket).
//!
//! The end of a piece may be the beginning of a secret, so it is held back, but at most until the end of its message: otherwise a
//! client and a server that take turns would wait for each other.
//!
//! - WebSocket: frame headers are not searched. The frames of one message are searched as one text.
//! - A mask is as long as what it hides, so every length in a header stays true.
//! - gRPC and Connect: not for a host to which a credential is bound, unless every provider there says that its service speaks
//!   them (`grpc = true`). A service that labels stored content as gRPC would let the agent choose where a message ends: one octet
//!   before the end of a credential, say, and all but that octet would be passed on. Such answers are searched as one text.
//! - Even so a header is trusted no further than it has to be. The length of a message is searched together with the message, and
//!   a match that would mask it ends the stream. The flags octet is one that no secret contains.

use std::collections::VecDeque;
use std::io;

use credential::{Needles, Scrubber};

use super::frames::{FrameFormat, FrameParser, Part, Run};
use super::response::unusable;
use crate::live_needles::LiveNeedles;

/// How many octets of headers and control frames may wait behind octets that are held back, beside two for each of those: each may be
/// a frame of its own.
const MOST_WAITING: usize = 16 * 1024;

/// Shorter parts of a message are collected before they are searched.
const SHORT: usize = 1024;

/// The length of a header of gRPC and Connect.
const HEADER: usize = 5;

/// Masks one stream of messages.
pub(super) struct MessageScrubber {
    frames: FrameParser,
    format: FrameFormat,
    /// How many octets of a gRPC header have come.
    header: usize,
    needles: Needles,
    live: LiveNeedles,
    /// Searches the payload of the messages.
    scrubber: Scrubber,
    /// Parts that the scrubber is still to be given.
    collected: Vec<u8>,
    /// The octets that are still to come out, in order, beginning with the first that is held back.
    waiting: VecDeque<Waiting>,
    /// Those of the waiting octets that the scrubber does not return.
    aside: VecDeque<u8>,
    /// The payload of a control frame as far as it has come; it is searched by itself.
    control: Vec<u8>,
    masked: u64,
}

/// A number of octets that wait to come out.
#[derive(Clone, Copy)]
enum Waiting {
    /// Headers and searched control frames.
    Searched(usize),
    /// Payload that the scrubber has.
    Data(usize),
    /// A message's length that the scrubber has, and must not change.
    Length(usize),
}

impl MessageScrubber {
    pub(super) fn of(format: FrameFormat, live: &LiveNeedles) -> Self {
        let needles = live.now();
        Self {
            frames: FrameParser::of(format),
            format,
            header: 0,
            scrubber: Scrubber::new(&needles),
            needles,
            live: live.clone(),
            collected: Vec::new(),
            waiting: VecDeque::new(),
            aside: VecDeque::new(),
            control: Vec::new(),
            masked: 0,
        }
    }

    /// Takes in the next piece of the stream, and appends to `out` what needs no more search.
    ///
    /// # Errors
    /// The stream is malformed, a header may hold part of a secret, or too much is held back.
    pub(super) fn push(&mut self, piece: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
        if let Some(newer) = self.live.newer_than(&self.needles) {
            self.scrubber.search_for(&newer);
            self.needles = newer;
        }
        let mut rest = piece;
        while !rest.is_empty() {
            let Run { length, part, ends } = self.frames.next(rest)?;
            let (octets, after) = rest.split_at(length);
            rest = after;
            match part {
                Part::Header if self.format == FrameFormat::LengthPrefixed => {
                    self.read_header(octets, out)?
                }
                Part::Header => self.pass(octets, out),
                Part::Control => self.control.extend_from_slice(octets),
                Part::Data => self.read(octets, out)?,
            }
            match self.frames.part() {
                Part::Control if ends => self.end_control(out),
                Part::Data if ends => self.end_message(out)?,
                _ => {}
            }
        }
        self.search(out)?;
        if self.aside.len() > MOST_WAITING + 2 * self.needles.reach() {
            return Err(unusable("a message comes in too many parts"));
        }
        Ok(())
    }

    /// Ends the stream: appends what was held back.
    ///
    /// # Errors
    /// A header may hold part of a secret.
    pub(super) fn finish(&mut self, out: &mut Vec<u8>) -> io::Result<()> {
        self.end_message(out)?;
        self.end_control(out);
        Ok(())
    }

    /// Returns how many occurrences have been masked.
    pub(super) fn found(&self) -> u64 {
        self.masked + self.scrubber.found()
    }

    /// Takes in part of a gRPC header: one octet of flags, four of length.
    fn read_header(&mut self, octets: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
        let (flags, length) = octets.split_at(usize::from(self.header == 0).min(octets.len()));
        if let [flags] = *flags {
            if flags != 0 && self.needles.have(flags) {
                return Err(held("the flags"));
            }
            self.pass(&[flags], out);
        }
        self.header = (self.header + octets.len()) % HEADER;
        if !length.is_empty() {
            self.collected.extend_from_slice(length);
            self.aside.extend(length);
            self.waiting.push_back(Waiting::Length(length.len()));
        }
        Ok(())
    }

    /// Takes in part of a message.
    fn read(&mut self, octets: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
        match self.waiting.back_mut() {
            Some(Waiting::Data(length)) => *length += octets.len(),
            _ => self.waiting.push_back(Waiting::Data(octets.len())),
        }
        if octets.len() < SHORT {
            self.collected.extend_from_slice(octets);
            return if self.collected.len() < SHORT { Ok(()) } else { self.search(out) };
        }
        let mut settled = self.push_collected();
        self.scrubber.push(octets, &mut settled);
        self.release(&settled, out)
    }

    /// Searches the parts that were collected.
    fn search(&mut self, out: &mut Vec<u8>) -> io::Result<()> {
        let settled = self.push_collected();
        self.release(&settled, out)
    }

    /// Gives the scrubber the collected parts, and returns what it settles.
    fn push_collected(&mut self) -> Vec<u8> {
        let mut settled = Vec::new();
        if !self.collected.is_empty() {
            self.scrubber.push(&self.collected, &mut settled);
            self.collected.clear();
        }
        settled
    }

    fn end_message(&mut self, out: &mut Vec<u8>) -> io::Result<()> {
        let mut settled = self.push_collected();
        self.scrubber.finish(&mut settled);
        self.release(&settled, out)
    }

    fn end_control(&mut self, out: &mut Vec<u8>) {
        let text = std::mem::take(&mut self.control);
        let scrubbed = self.needles.scrub_text(&text);
        self.masked += scrubbed.as_ref().map_or(0, |(_, found)| *found);
        self.pass(scrubbed.as_ref().map_or(&text, |(masked, _)| masked), out);
    }

    /// Appends searched octets, or lets them wait behind those that are held back.
    fn pass(&mut self, octets: &[u8], out: &mut Vec<u8>) {
        match self.waiting.back_mut() {
            None => return out.extend_from_slice(octets),
            Some(Waiting::Searched(length)) => *length += octets.len(),
            Some(_) => self.waiting.push_back(Waiting::Searched(octets.len())),
        }
        self.aside.extend(octets);
    }

    /// Appends settled octets, and those that waited behind them.
    fn release(&mut self, mut settled: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
        while let Some(first) = self.waiting.front_mut() {
            match first {
                Waiting::Searched(length) => out.extend(self.aside.drain(..*length)),
                Waiting::Data(length) | Waiting::Length(length) => {
                    let (now, later) = settled.split_at(settled.len().min(*length));
                    settled = later;
                    *length -= now.len();
                    let is_over = *length == 0;
                    if matches!(first, Waiting::Length(_))
                        && !self.aside.drain(..now.len()).eq(now.iter().copied())
                    {
                        return Err(held("the length"));
                    }
                    out.extend_from_slice(now);
                    if !is_over {
                        return Ok(());
                    }
                }
            }
            self.waiting.pop_front();
        }
        Ok(())
    }
}

fn held(what: &str) -> io::Error {
    unusable(format!("{what} of a message may be a part of the credential"))
}

#[cfg(test)]
mod tests {
    use credential::Secret;
    use proptest::prelude::*;

    use super::*;

    const SECRET: &[u8] = b"sk-SECRETVALUE-0123456789abcdef";

    fn masked(format: FrameFormat, stream: &[u8], piece: usize) -> Vec<u8> {
        let needles = LiveNeedles::from(Needles::of([&Secret::new(SECRET.to_vec())]));
        let (mut messages, mut out) = (MessageScrubber::of(format, &needles), Vec::new());
        for part in stream.chunks(piece) {
            messages.push(part, &mut out).unwrap();
        }
        messages.finish(&mut out).unwrap();
        out
    }

    /// The frames of a message that is cut at some places, with a ping after each but the last; and the places of what is no payload.
    fn cut(message: &[u8], cuts: &[usize]) -> (Vec<u8>, Vec<usize>) {
        let (mut stream, mut headers, mut from) = (Vec::new(), Vec::new(), 0);
        for (number, to) in cuts.iter().copied().chain([message.len()]).enumerate() {
            let is_last = to == message.len() && number == cuts.len();
            let first = u8::from(number == 0) | if is_last { 0x80 } else { 0 };
            headers.extend([stream.len(), stream.len() + 1]);
            stream.extend([first, (to - from) as u8]);
            stream.extend(&message[from..to]);
            if !is_last {
                headers.extend([stream.len(), stream.len() + 1, stream.len() + 2]);
                stream.extend(b"\x89\x01p");
            }
            from = to;
        }
        (stream, headers)
    }

    proptest! {
        #[test]
        fn a_message_is_one_text_however_it_is_cut(
            mut cuts in proptest::collection::vec(0usize..60, 0..8),
            piece in 1usize..80,
        ) {
            let message = [b"an echo of ".as_slice(), SECRET, b" and what follows"].concat();
            cuts.sort_unstable();
            let (stream, headers) = cut(&message, &cuts);
            let out = masked(FrameFormat::WebSocket, &stream, piece);
            prop_assert_eq!(out.len(), stream.len());
            prop_assert!(headers.iter().all(|at| out[*at] == stream[*at]));
            let text = |stream: &[u8]| -> Vec<u8> {
                let kept = stream.iter().enumerate().filter(|(at, _)| !headers.contains(at));
                kept.map(|(_, octet)| *octet).collect()
            };
            let expected = [b"an echo of ".as_slice(), &vec![b'*'; SECRET.len()], b" and what follows"].concat();
            prop_assert_eq!(text(&out), expected);
        }
    }

    #[test]
    fn what_controls_is_a_text_of_its_own_and_a_message_ends_what_is_held() {
        let ping = [&[0x89, SECRET.len() as u8][..], SECRET].concat();
        assert!(!masked(FrameFormat::WebSocket, &ping, 3).windows(4).any(|four| four == b"SECR"));
        let needles = LiveNeedles::from(Needles::of([&Secret::new(SECRET.to_vec())]));
        for (format, message) in
            [(FrameFormat::WebSocket, &b"\x81\x03sk-"[..]), (FrameFormat::LengthPrefixed, b"\0\0\0\0\x03sk-")]
        {
            let (mut messages, mut out) = (MessageScrubber::of(format, &needles), Vec::new());
            messages.push(message, &mut out).unwrap();
            assert_eq!(out, message);
        }
    }

    #[test]
    fn a_secret_is_not_hidden_by_what_calls_itself_a_header() {
        let needles = LiveNeedles::from(Needles::of([
            &Secret::new(SECRET.to_vec()),
            &Secret::new(b"\x80\x80\x80\x80".to_vec()),
        ]));
        // Secrets that begin in the flags, in each octet of the length, and after an empty message.
        let streams = (0..5).map(|before| [&vec![0; before][..], SECRET].concat());
        for (number, stream) in streams.chain([[&[0; 8][..], SECRET].concat()]).enumerate() {
            for piece in [1, 3, 100] {
                let (mut messages, mut out) =
                    (MessageScrubber::of(FrameFormat::LengthPrefixed, &needles), Vec::new());
                let done = stream.chunks(piece).try_for_each(|part| messages.push(part, &mut out));
                done.and_then(|()| messages.finish(&mut out)).unwrap_err();
                assert!(!out.windows(4).any(|four| SECRET.windows(4).any(|part| part == four)), "{number}");
            }
        }
        let (mut messages, mut out) =
            (MessageScrubber::of(FrameFormat::LengthPrefixed, &needles), Vec::new());
        messages.push(b"\x80\0\0\0\0", &mut out).unwrap_err();
        // A header without a secret is passed on unchanged.
        let plain = b"\0\0\0\0\x02ab\x02\0\0\0\0";
        for piece in 1..plain.len() {
            assert_eq!(masked(FrameFormat::LengthPrefixed, plain, piece), plain);
        }
        let whole = [&[0, 0, 0, 0, SECRET.len() as u8][..], SECRET].concat();
        assert_eq!(masked(FrameFormat::LengthPrefixed, &whole, 7)[5..], [b'*'; SECRET.len()]);
    }

    #[test]
    fn as_many_parts_wait_as_a_secret_may_have_octets() {
        for length in [31, 164, 1500, 4000] {
            let secret = b"Ab3dEf9hIjKlMn0pQrStUvWxYz".repeat(1 + length / 26)[..length].to_vec();
            let needles = LiveNeedles::from(Needles::of([&Secret::new(secret.clone())]));
            let message = [b"x".repeat(2 * length), secret.clone(), b"y".repeat(30_000)].concat();
            let frame = |(number, octet): (usize, &u8)| [u8::from(number == 0), 1, *octet];
            let mut stream: Vec<u8> = message.iter().enumerate().flat_map(frame).collect();
            stream.extend(b"\x80\0");
            for piece in [1, 3, 16 << 10] {
                let (mut messages, mut out) =
                    (MessageScrubber::of(FrameFormat::WebSocket, &needles), Vec::new());
                // A stream that comes octet by octet is searched once for each octet: it is cut short.
                let part = if piece < 16 { &stream[..stream.len().min(3_000_000 / length)] } else { &stream };
                part.chunks(piece).for_each(|part| messages.push(part, &mut out).unwrap());
                messages.finish(&mut out).unwrap();
                assert_eq!(out.len(), part.len());
                if part.len() == stream.len() {
                    let text: Vec<u8> = out.iter().skip(2).step_by(3).copied().take(3 * length).collect();
                    assert!(text[2 * length..].iter().all(|octet| *octet == b'*'), "{length} {piece}");
                }
            }
        }
    }

    #[test]
    fn at_the_end_what_was_held_back_and_a_frame_that_is_not_whole_are_searched() {
        let close = [&b"\x81\x05hello\x01\x03sk-\x88\x02\x03\xe8"[..]].concat();
        assert_eq!(masked(FrameFormat::WebSocket, &close, 4), close);
        let cut = [&[0x88, 125, 0x03, 0xe8][..], SECRET].concat();
        let hidden = [&[0x88, 125, 0x03, 0xe8][..], &vec![b'*'; SECRET.len()]].concat();
        assert_eq!(masked(FrameFormat::WebSocket, &cut, 4), hidden);
    }

    #[test]
    fn parts_without_an_end_are_not_kept() {
        let needles = LiveNeedles::from(Needles::of([&Secret::new(SECRET.to_vec())]));
        let (mut messages, mut out) = (MessageScrubber::of(FrameFormat::WebSocket, &needles), Vec::new());
        messages.push(b"\x01\x03sk-", &mut out).unwrap();
        let mut parts = (0..1_000_000).map(|_| messages.push(b"\x00\x00", &mut out));
        assert!(parts.any(|part| part.is_err()));
    }
}
