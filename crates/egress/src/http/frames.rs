//! Where messages end in a stream of them: a WebSocket's frames (RFC 6455 §5.2), gRPC's length-prefixed messages. What waits
//! for more of a secret waits no longer than the end of the message it may stand in, or requests and answers by turns
//! would stand still.

/// Follows a stream, octet by octet in its headers and by runs in its bodies.
#[derive(Debug)]
pub(super) struct Frames {
    kind: Kind,
    header: Vec<u8>,
    left: u64,
    last: bool,
}

/// What the messages are framed by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    WebSocket,
    Grpc,
}

impl Frames {
    pub(super) fn of(kind: Kind) -> Self {
        Self { kind, header: Vec::with_capacity(14), left: 0, last: false }
    }

    /// How much of a piece belongs to the message that is going on, and whether it ends there.
    pub(super) fn next(&mut self, piece: &[u8]) -> (usize, bool) {
        let mut at = 0;
        while at < piece.len() {
            if self.left > 0 {
                let run = usize::try_from(self.left).unwrap_or(usize::MAX).min(piece.len() - at);
                self.left -= run as u64;
                at += run;
            } else {
                self.header.push(piece[at]);
                at += 1;
                let Some((left, last)) = self.read_header() else { continue };
                self.header.clear();
                (self.left, self.last) = (left, last);
            }
            if self.left == 0 && self.last && self.header.is_empty() {
                return (at, true);
            }
        }
        (at, false)
    }

    /// The length of the body, and whether a message ends with it; nothing while the header is not whole.
    fn read_header(&self) -> Option<(u64, bool)> {
        let big_endian = |octets: &[u8]| octets.iter().fold(0u64, |n, b| (n << 8) | u64::from(*b));
        match self.kind {
            Kind::Grpc => self.header.get(1..5).map(|length| (big_endian(length), true)),
            Kind::WebSocket => {
                let (first, second) = (*self.header.first()?, *self.header.get(1)?);
                let mask = if second & 0x80 == 0 { 0 } else { 4 };
                let wide = match second & 0x7f {
                    126 => 2,
                    127 => 8,
                    _ => 0,
                };
                let length = self.header.get(2..2 + wide)?;
                self.header.get(..2 + wide + mask)?;
                let length = if wide == 0 { u64::from(second & 0x7f) } else { big_endian(length) };
                Some((length, first & 0x80 != 0))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(kind: Kind, stream: &[u8], piece: usize) -> Vec<usize> {
        let (mut frames, mut ends, mut total) = (Frames::of(kind), Vec::new(), 0);
        for part in stream.chunks(piece) {
            let mut rest = part;
            while !rest.is_empty() {
                let (taken, ended) = frames.next(rest);
                total += taken;
                rest = &rest[taken..];
                if ended {
                    ends.push(total);
                }
            }
        }
        ends
    }

    proptest::proptest! {
        #[test]
        fn the_ends_do_not_depend_on_the_pieces(sizes in proptest::collection::vec(0usize..300, 1..6), piece in 1usize..40) {
            let (mut web, mut grpc, mut web_ends, mut grpc_ends) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
            for size in sizes {
                web.push(0x81);
                if size < 126 { web.push(size as u8); } else { web.push(126); web.extend((size as u16).to_be_bytes()); }
                web.extend(std::iter::repeat_n(b'x', size));
                web_ends.push(web.len());
                grpc.push(0);
                grpc.extend((size as u32).to_be_bytes());
                grpc.extend(std::iter::repeat_n(b'y', size));
                grpc_ends.push(grpc.len());
            }
            proptest::prop_assert_eq!(ends(Kind::WebSocket, &web, piece), web_ends);
            proptest::prop_assert_eq!(ends(Kind::Grpc, &grpc, piece), grpc_ends);
        }

        #[test]
        fn any_octets_are_survived(stream: Vec<u8>, piece in 1usize..9) {
            let _ = ends(Kind::WebSocket, &stream, piece);
            let _ = ends(Kind::Grpc, &stream, piece);
        }
    }

    #[test]
    fn a_fragment_ends_no_message() {
        assert_eq!(ends(Kind::WebSocket, b"\x01\x02ab\x80\x01c\x81\0", 1), [7, 9]);
    }
}
