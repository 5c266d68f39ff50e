//! Parser of message streams: WebSocket frames (RFC 6455 §5.2) and the length-prefixed messages of gRPC and Connect. A WebSocket
//! message may span several frames, with control frames between them.

use std::io;

use super::response::unusable;

/// Follows a stream: octet by octet in headers, by runs in messages.
#[derive(Debug)]
pub(super) struct FrameParser {
    format: FrameFormat,
    header: Vec<u8>,
    left: u64,
    part: Part,
    last: bool,
}

/// How a stream frames its messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrameFormat {
    WebSocket,
    /// A WebSocket with an agreed extension, which gives a meaning to reserved bits and opcodes.
    ExtendedWebSocket,
    /// gRPC and Connect.
    LengthPrefixed,
}

/// What some octets of a stream belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Header,
    /// A message.
    Data,
    /// The payload of a control frame.
    Control,
}

/// Octets at the beginning of a piece that belong to one part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) length: usize,
    pub(super) part: Part,
    /// Whether a message or a control frame ends with them.
    pub(super) ends: bool,
}

/// A parsed header: how many octets follow, of which part, and whether a message ends with them.
struct Header {
    length: u64,
    part: Part,
    last: bool,
}

/// The longest payload of a control frame (RFC 6455 §5.5).
const LONGEST_CONTROL: u64 = 125;

/// The flags of Connect's last message, and of gRPC-web's message that holds the trailers.
const END_OF_CONNECT: u8 = 0x02;
const TRAILERS_OF_WEB: u8 = 0x80;

impl FrameParser {
    pub(super) fn of(format: FrameFormat) -> Self {
        Self { format, header: Vec::with_capacity(14), left: 0, part: Part::Data, last: false }
    }

    /// Returns the first run of a piece, which must not be empty.
    ///
    /// # Errors
    /// A frame is malformed, or cannot be searched.
    pub(super) fn next(&mut self, piece: &[u8]) -> io::Result<Run> {
        if self.left > 0 {
            let length = usize::try_from(self.left).unwrap_or(usize::MAX).min(piece.len());
            self.left -= length as u64;
            return Ok(Run { length, part: self.part, ends: self.left == 0 && self.last });
        }
        for (at, octet) in piece.iter().enumerate() {
            self.header.push(*octet);
            if let Some(Header { length, part, last }) = self.read_header()? {
                self.header.clear();
                (self.left, self.part, self.last) = (length, part, last);
                return Ok(Run { length: at + 1, part: Part::Header, ends: length == 0 && last });
            }
        }
        Ok(Run { length: piece.len(), part: Part::Header, ends: false })
    }

    /// Reads a whole piece, for its errors alone.
    pub(super) fn follow(&mut self, mut piece: &[u8]) -> io::Result<()> {
        while !piece.is_empty() {
            piece = &piece[self.next(piece)?.length..];
        }
        Ok(())
    }

    /// Returns the part that is being read, or was read last.
    pub(super) fn part(&self) -> Part {
        self.part
    }

    /// Parses the header that was read so far; none while it is incomplete.
    fn read_header(&self) -> io::Result<Option<Header>> {
        let broken = |what: &str| Err(unusable(what));
        let big_endian = |octets: &[u8]| octets.iter().fold(0u64, |n, b| (n << 8) | u64::from(*b));
        match (self.format, self.header.as_slice()) {
            (FrameFormat::LengthPrefixed, [flags, length @ ..]) => {
                if flags & 1 != 0 {
                    return broken("a message of the upstream's is packed, and its head names no packing");
                }
                if ![0, END_OF_CONNECT, TRAILERS_OF_WEB].contains(flags) {
                    return broken("a message of the upstream's has flags without a meaning");
                }
                let is_whole = length.len() == 4;
                Ok(is_whole.then(|| Header { length: big_endian(length), part: Part::Data, last: true }))
            }
            (FrameFormat::WebSocket | FrameFormat::ExtendedWebSocket, [first, second, rest @ ..]) => {
                if self.format == FrameFormat::WebSocket && is_reserved(*first) {
                    return broken(
                        "a frame of the upstream's has bits, or is of a kind, that nobody agreed on",
                    );
                }
                if second & 0x80 != 0 {
                    return broken("the upstream masks its frames, and only an agent may");
                }
                let wide = match second & 0x7f {
                    126 => 2,
                    127 => 8,
                    _ => 0,
                };
                let Some(length) = rest.get(..wide) else { return Ok(None) };
                let length = if wide == 0 { u64::from(second & 0x7f) } else { big_endian(length) };
                let (is_last, is_control) = (first & 0x80 != 0, first & 0x08 != 0);
                if is_control && (!is_last || length > LONGEST_CONTROL) {
                    return broken("the upstream sends a control frame in parts, or one too long");
                }
                let part = if is_control { Part::Control } else { Part::Data };
                Ok(Some(Header { length, part, last: is_last }))
            }
            _ => Ok(None),
        }
    }
}

/// Whether only an extension gives the first octet of a frame a meaning: its message may be compressed (RFC 6455 §5.2, RFC 7692).
fn is_reserved(first: u8) -> bool {
    first & 0x70 != 0 || !matches!(first & 0x0f, 0..=2 | 8..=10)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(format: FrameFormat, stream: &[u8], piece: usize) -> io::Result<Vec<(Part, usize)>> {
        let (mut frames, mut ends, mut total) = (FrameParser::of(format), Vec::new(), 0);
        for part in stream.chunks(piece) {
            let mut rest = part;
            while !rest.is_empty() {
                let run = frames.next(rest)?;
                total += run.length;
                rest = &rest[run.length..];
                if run.ends {
                    ends.push((frames.part(), total));
                }
            }
        }
        Ok(ends)
    }

    proptest::proptest! {
        #[test]
        fn the_ends_do_not_depend_on_the_pieces(sizes in proptest::collection::vec(0usize..300, 1..6), piece in 1usize..40) {
            let (mut web, mut grpc, mut web_ends, mut grpc_ends) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
            for size in sizes {
                web.push(0x81);
                if size < 126 { web.push(size as u8); } else { web.push(126); web.extend((size as u16).to_be_bytes()); }
                web.extend(std::iter::repeat_n(b'x', size));
                web_ends.push((Part::Data, web.len()));
                grpc.push(0);
                grpc.extend((size as u32).to_be_bytes());
                grpc.extend(std::iter::repeat_n(b'y', size));
                grpc_ends.push((Part::Data, grpc.len()));
            }
            proptest::prop_assert_eq!(runs(FrameFormat::WebSocket, &web, piece).unwrap(), web_ends);
            proptest::prop_assert_eq!(runs(FrameFormat::LengthPrefixed, &grpc, piece).unwrap(), grpc_ends);
        }

        #[test]
        fn any_octets_are_survived(stream: Vec<u8>, piece in 1usize..9) {
            let _ = runs(FrameFormat::WebSocket, &stream, piece);
            let _ = runs(FrameFormat::LengthPrefixed, &stream, piece);
        }
    }

    #[test]
    fn a_fragment_ends_no_message_and_neither_does_what_controls() {
        let ends = runs(FrameFormat::WebSocket, b"\x01\x02ab\x89\x01p\x80\x01c\x81\0", 1).unwrap();
        assert_eq!(ends, [(Part::Control, 7), (Part::Data, 10), (Part::Data, 12)]);
    }

    #[test]
    fn what_cannot_be_looked_into_is_refused() {
        let long = [&b"\x89\x7e\0\x7e"[..], &[0; 126]].concat();
        for stream in [b"\x81\x82abcd..".as_slice(), b"\x09\0", &long] {
            runs(FrameFormat::WebSocket, stream, 1).unwrap_err();
        }
        // The first frame of a message says whether it is compressed; a reserved opcode is read in two ways.
        for first in [0xc1, 0xa2, 0x91, 0x83, 0x87, 0x8b, 0x8f, 0x07] {
            runs(FrameFormat::WebSocket, &[first, 0], 1).unwrap_err();
            runs(FrameFormat::ExtendedWebSocket, &[first | 0x80, 0], 1).unwrap();
        }
        for first in [0x80, 0x81, 0x82, 0x88, 0x89, 0x8a, 0, 1, 2] {
            runs(FrameFormat::WebSocket, &[first, 0], 1).unwrap();
        }
        for flags in [1, 3, 4, b's', 0x81] {
            runs(FrameFormat::LengthPrefixed, &[flags, 0, 0, 0, 0], 1).unwrap_err();
        }
    }
}
