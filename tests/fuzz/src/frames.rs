//! Encodes HTTP/2 frames (RFC 9113 §4.1) without a library, which would repair what is wrong in them.

/// The start of a connection: the preface (§3.4) and an empty SETTINGS frame.
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
/// The largest frame that every peer accepts (§4.2).
const LARGEST: usize = 16 * 1024;

/// Returns the octets that an input stands for. `h` and lines of `name: value`, an empty line and a body is a request; `s` and
/// groups of type, flags, stream, length and so many octets are frames; anything else is itself.
#[must_use]
pub(crate) fn frames_of(input: &[u8]) -> Vec<u8> {
    match input.split_first() {
        Some((b'h', text)) => request(text),
        Some((b's', groups)) => frames(groups),
        _ => input.to_vec(),
    }
}

fn request(text: &[u8]) -> Vec<u8> {
    let end = text.windows(2).position(|pair| pair == b"\n\n");
    let (lines, body) = end.map_or((text, None), |at| (&text[..at], Some(&text[at + 2..])));
    let mut block = Vec::new();
    for line in lines.split(|b| *b == b'\n') {
        // A pseudo-header's name begins with a colon, which does not end it.
        let colon = line.iter().skip(1).position(|b| *b == b':').map(|at| at + 1);
        let (name, value) = colon.map_or((line, &[][..]), |at| (&line[..at], &line[at + 1..]));
        block.push(0); // a literal that enters no table: RFC 7541 §6.2.2
        literal(name, &mut block);
        literal(value.strip_prefix(b" ").unwrap_or(value), &mut block);
    }
    block.truncate(LARGEST);
    let mut out = Vec::new();
    let ends = if body.is_none() { END_STREAM } else { 0 };
    frame(HEADERS, END_HEADERS | ends, 1, &block, &mut out);
    if let Some(body) = body {
        frame(DATA, END_STREAM, 1, &body[..body.len().min(LARGEST)], &mut out);
    }
    out
}

/// Encodes a string without Huffman coding: RFC 7541 §5.2, its length as in §5.1.
fn literal(text: &[u8], out: &mut Vec<u8>) {
    let mut length = text.len();
    if length < 127 {
        out.push(length as u8);
    } else {
        out.push(127);
        length -= 127;
        while length >= 128 {
            out.push((length % 128) as u8 | 128);
            length /= 128;
        }
        out.push(length as u8);
    }
    out.extend(text);
}

fn frames(groups: &[u8]) -> Vec<u8> {
    let (mut out, mut rest) = (Vec::new(), groups);
    while let [kind, flags, stream, length, after @ ..] = rest {
        let (payload, next) = after.split_at(after.len().min(usize::from(*length)));
        frame(*kind, *flags, u32::from(*stream), payload, &mut out);
        rest = next;
    }
    out
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8], out: &mut Vec<u8>) {
    out.extend(&(payload.len() as u32).to_be_bytes()[1..]);
    out.extend([kind, flags]);
    out.extend(stream.to_be_bytes());
    out.extend(payload);
}

/// Whether an answer is whole HTTP/2 frames, SETTINGS first.
#[must_use]
pub(crate) fn well_framed(answer: &[u8]) -> bool {
    let mut first = true;
    let mut good = true;
    let rest = each(answer, |kind, _, length| {
        good &= length <= LARGEST && (!first || kind == SETTINGS);
        first = false;
    });
    good && rest == 0
}

/// Whether an answer on some stream has ended, or the connection has.
pub(crate) fn has_ended(answer: &[u8]) -> bool {
    let mut ended = false;
    each(answer, |kind, flags, _| {
        ended |= matches!(kind, RST_STREAM | GOAWAY);
        ended |= matches!(kind, DATA | HEADERS) && flags & END_STREAM != 0;
    });
    ended
}

/// Calls `see` with each whole frame's type, flags and length, and returns how many octets are left.
fn each(mut frames: &[u8], mut see: impl FnMut(u8, u8, usize)) -> usize {
    while let Some((head, after)) = frames.split_first_chunk::<9>() {
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let Some(next) = after.get(length..) else { break };
        see(head[3], head[4], length);
        frames = next;
    }
    frames.len()
}
