//! A strict parser of request heads: refuses whatever two readers could read in two ways (RFC 9112).

use std::io;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use policy::Method;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::Instant;

use super::fields::{Fields, is_token, trim};
use crate::patience::within;

/// The largest head, in octets. REQUIREMENTS: 16 KiB.
pub(crate) const LARGEST_HEAD: usize = 16 * 1024;
/// How many octets are read at once.
const READ_AHEAD: usize = 16 * 1024;
/// How many header fields a head may have.
const MOST_FIELDS: usize = 128;
/// Room for the fields that are added to a request on its way.
const ADDED_FIELDS: usize = 4;
const ADDED_OCTETS: usize = 256;

/// What is wrong with a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeadError {
    /// The head is longer than 16 KiB, or has more than 128 fields.
    #[error("the head is larger than 16 KiB or has more than 128 fields")]
    TooLarge,
    /// A carriage return, line feed or NUL is out of place.
    #[error("a line does not end in CRLF, or holds a control octet")]
    Line,
    /// The request line is not `METHOD SP target SP HTTP/1.1`, or HTTP/1.0.
    #[error("the first line is not `METHOD target HTTP/1.1`")]
    RequestLine,
    /// The preface of HTTP/2 (RFC 9113 §3.4).
    #[error(
        "this is HTTP/2 in the clear, or in TLS that did not agree on it (ALPN), and neither is understood; use HTTPS, or HTTP/1.1"
    )]
    Version2,
    /// A field is not `name: value`.
    #[error("a header field is malformed or folded")]
    Field,
    /// `Connection` lists something else than tokens.
    #[error("`Connection` lists something else than tokens, so that readers differ in which fields it names")]
    Connection,
    /// `Content-Length` and `Transfer-Encoding` are malformed, or contradict each other.
    #[error("the length of the body is ambiguous")]
    Length,
    /// There is not exactly one `Host`.
    #[error("there must be exactly one Host field")]
    Host,
}

/// The length of a body, as its head states it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyLength {
    /// There is no body.
    None,
    /// A number of octets.
    Sized(u64),
    /// Told by chunks.
    Chunked,
}

/// A request head that has passed every check.
#[derive(Clone, Debug)]
pub struct RequestHead {
    pub(crate) method: Method,
    pub(crate) target: String,
    pub(crate) fields: Fields,
    pub(crate) body: BodyLength,
    pub(crate) version: Version,
    pub(crate) keep_alive: bool,
}

/// A version of HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Version {
    /// Has neither chunks nor persistent connections.
    Http10,
    Http11,
    Http2,
}

impl RequestHead {
    /// Returns the method.
    #[must_use]
    pub fn method(&self) -> &Method {
        &self.method
    }

    /// Returns the target as it was written.
    #[must_use]
    pub fn target(&self) -> &str {
        &self.target
    }

    /// Returns the fields in their order, names in lower case.
    pub fn fields(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.fields.iter()
    }

    /// Returns the length of the body.
    #[must_use]
    pub fn body(&self) -> BodyLength {
        self.body
    }

    /// Whether another request may follow on the connection.
    #[must_use]
    pub fn keeps_alive(&self) -> bool {
        self.keep_alive
    }

    /// Whether the agent may wait for a 100 Continue before it sends the body (RFC 9110 §10.1.1).
    pub(crate) fn waits_to_go_on(&self) -> bool {
        let waits = |value: &[u8]| value.eq_ignore_ascii_case(b"100-continue");
        self.body != BodyLength::None && self.fields.values("expect").any(waits)
    }

    /// Returns the fields that are sent on. The key of a WebSocket goes with its handshake alone, as `Upgrade` does: where it is, a WebSocket
    /// is asked for.
    pub(crate) fn fields_to_send(&self) -> Fields {
        let mut fields = self.fields.with_more_room(ADDED_FIELDS, ADDED_OCTETS);
        fields.leave_hop();
        if !self.asks_for_websocket() {
            fields.remove("sec-websocket-key");
        }
        fields
    }

    /// Whether it asks for a protocol that it does not get. HTTP/2 in its place (`h2c`) is a mere offer: who makes it goes on without.
    pub(crate) fn asks_for_what_is_left_out(&self) -> bool {
        self.version == Version::Http11
            && self.fields.has_token("connection", "upgrade")
            && self.fields.has("upgrade")
            && !self.fields.has_token("upgrade", "h2c")
            && !self.asks_for_websocket()
    }

    /// Whether this is a WebSocket handshake (RFC 6455 §4.2.1).
    pub(crate) fn asks_for_websocket(&self) -> bool {
        self.version == Version::Http11
            && self.method.as_str() == "GET"
            && self.body == BodyLength::None
            && self.fields.has_token("connection", "upgrade")
            && self.fields.has_token("upgrade", "websocket")
            && self.fields.values("sec-websocket-version").eq([b"13"])
            && self.fields.values("sec-websocket-key").count() == 1
            && self.fields.values("sec-websocket-key").all(is_websocket_key)
    }
}

/// Whether a value is 16 octets in base64 (RFC 6455 §4.2.1). The last four bits may be set although they carry nothing, as in the example
/// of RFC 6455 §4.1.
fn is_websocket_key(value: &[u8]) -> bool {
    let is_base64 = |octet: &u8| octet.is_ascii_alphanumeric() || matches!(octet, b'+' | b'/');
    matches!(value.strip_suffix(b"=="), Some(text) if text.len() == 22 && text.iter().all(is_base64))
}

/// Parses a head that ends with its empty line.
///
/// # Errors
/// The first rule that the head breaks.
pub fn parse_request_head(head: &[u8]) -> Result<RequestHead, HeadError> {
    if head.len() > LARGEST_HEAD {
        return Err(HeadError::TooLarge);
    }
    let Some(head) = head.strip_suffix(b"\r\n\r\n") else {
        return Err(impossible_request_line(head, 0).unwrap_or(HeadError::Line));
    };
    let mut lines = split_lines(head)?.into_iter();
    let (method, target, version) = request_line(lines.next().ok_or(HeadError::RequestLine)?)?;
    if lines.len() > MOST_FIELDS {
        return Err(HeadError::TooLarge);
    }
    let mut fields = Fields::with_room(lines.len(), head.len());
    for line in lines {
        let (name, value) = field(line)?;
        fields.push(name, value);
    }
    match (fields.values("host").count(), version) {
        (1, _) | (0, Version::Http10) => {}
        _ => return Err(HeadError::Host), // RFC 9112 §3.2
    }
    if !fields.lists_tokens("connection") {
        return Err(HeadError::Connection);
    }
    let body = body_length(&fields, version)?;
    let keep_alive = version == Version::Http11
        && !fields.has_token("connection", "close")
        && !fields.has_token("proxy-connection", "close")
        // After an upgrade the agent may not speak HTTP any more, whether the upgrade was passed on or not.
        && !fields.has("upgrade");
    Ok(RequestHead { method, target, fields, body, version, keep_alive })
}

/// Checks the lines of a trailer section, each with its end, as strictly as those of a head.
///
/// # Errors
/// The first rule that they break.
pub(super) fn check_trailers(section: &[u8]) -> Result<(), HeadError> {
    let lines = split_lines(section)?;
    let [lines @ .., b""] = &lines[..] else { return Err(HeadError::Line) };
    if lines.len() > MOST_FIELDS {
        return Err(HeadError::TooLarge);
    }
    lines.iter().try_for_each(|line| field(line).map(drop))
}

/// Whether the head of a request can be refused already, so that the rest need not be awaited. What is before `from` has been looked at.
pub(crate) fn is_hopeless_request(head: &[u8], from: usize) -> bool {
    has_broken_line(&head[from..]) || impossible_request_line(head, from).is_some()
}

/// Returns why the first line is no request line, if it has ended, at `from` or behind it: a request of HTTP/0.9 has no more to come.
fn impossible_request_line(head: &[u8], from: usize) -> Option<HeadError> {
    let line = &head[..from + find(&head[from..], b"\r\n")?];
    let is_first = !has_broken_line(line) && find(line, b"\r\n").is_none();
    is_first.then(|| request_line(line).err())?
}

/// Whether a part of a head breaks a line rule already, so that the rest need not be awaited.
pub(crate) fn has_broken_line(part: &[u8]) -> bool {
    let after_return = |at: usize| at > 0 && part[at - 1] == b'\r';
    (0..part.len()).any(|at| match part[at] {
        0 => true,
        // The CR of a leading LF may stand before this part.
        b'\n' => at > 0 && !after_return(at),
        octet => octet != b'\n' && after_return(at),
    })
}

/// Splits a head into lines. Refuses a CR or LF that stands alone, and NUL.
fn split_lines(head: &[u8]) -> Result<Vec<&[u8]>, HeadError> {
    let mut lines = Vec::new();
    let mut rest = head;
    loop {
        match memchr::memchr3(b'\r', b'\n', 0, rest) {
            None => {
                lines.push(rest);
                return Ok(lines);
            }
            Some(at) if rest[at..].starts_with(b"\r\n") => {
                lines.push(&rest[..at]);
                rest = &rest[at + 2..];
            }
            Some(_) => return Err(HeadError::Line),
        }
    }
}

fn request_line(line: &[u8]) -> Result<(Method, String, Version), HeadError> {
    let text = std::str::from_utf8(line).map_err(|_| HeadError::RequestLine)?;
    let mut parts = text.split(' ');
    let (Some(method), Some(target), Some(version), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(HeadError::RequestLine);
    };
    let method = Method::parse(method).ok_or(HeadError::RequestLine)?;
    let version = match version {
        "HTTP/1.1" => Version::Http11,
        "HTTP/1.0" => Version::Http10,
        "HTTP/2.0" if method.as_str() == "PRI" => return Err(HeadError::Version2),
        _ => return Err(HeadError::RequestLine),
    };
    if target.is_empty() || target.bytes().any(|b| b.is_ascii_control()) {
        return Err(HeadError::RequestLine);
    }
    Ok((method, target.to_owned(), version))
}

/// Parses `name: value`. The name is a token (RFC 9110 §5.6.2); white space before the colon and folding are refused.
fn field(line: &[u8]) -> Result<(&str, &[u8]), HeadError> {
    let colon = line.iter().position(|b| *b == b':').ok_or(HeadError::Field)?;
    let (name, value) = (&line[..colon], &line[colon + 1..]);
    if !is_token(name) {
        return Err(HeadError::Field);
    }
    let value = trim(value);
    if value.iter().any(|b| (*b < 0x20 && *b != b'\t') || *b == 0x7f) {
        return Err(HeadError::Field);
    }
    let name = std::str::from_utf8(name).map_err(|_| HeadError::Field)?;
    Ok((name, value))
}

/// Returns the length of a request body (RFC 9112 §6): one length or one coding, never both, and no coding but `chunked`.
fn body_length(fields: &Fields, version: Version) -> Result<BodyLength, HeadError> {
    let lengths: Vec<&[u8]> = fields.values("content-length").collect();
    let codings: Vec<&[u8]> = fields.values("transfer-encoding").collect();
    match (lengths.as_slice(), codings.as_slice()) {
        ([], []) => Ok(BodyLength::None),
        ([], [coding]) if version == Version::Http11 && coding.eq_ignore_ascii_case(b"chunked") => {
            Ok(BodyLength::Chunked)
        }
        ([length], []) => {
            let plain = (1..=18).contains(&length.len()) && length.iter().all(u8::is_ascii_digit);
            let text = std::str::from_utf8(length).map_err(|_| HeadError::Length)?;
            match text.parse() {
                Ok(0) if plain => Ok(BodyLength::None),
                Ok(size) if plain => Ok(BodyLength::Sized(size)),
                _ => Err(HeadError::Length),
            }
        }
        _ => Err(HeadError::Length),
    }
}

/// A reader with the octets that were read ahead of it.
#[derive(Debug)]
pub(crate) struct Buffered<R> {
    pub(crate) ahead: BytesMut,
    pub(crate) reader: R,
}

impl<R> Buffered<R> {
    /// Wraps a connection of which nothing has been read.
    pub(crate) fn new(reader: R) -> Self {
        Self { ahead: BytesMut::new(), reader }
    }
}

impl<R: AsyncRead + Unpin> Buffered<R> {
    /// Reads the octets of a head; none if the connection ends before it. A head that is `hopeless` or too large comes back at once and
    /// incomplete, without waiting for the rest. `hopeless` is given what is there, and from where on it has not seen that.
    pub(crate) async fn read_head(
        &mut self,
        idle: Duration,
        whole: Duration,
        hopeless: impl Fn(&[u8], usize) -> bool,
    ) -> io::Result<Option<BytesMut>> {
        if self.ahead.is_empty() && self.fill(idle).await? == 0 {
            return Ok(None);
        }
        let (mut deadline, mut searched) = (None, 0);
        loop {
            if let Some(at) = find(&self.ahead[searched..], b"\r\n\r\n") {
                let end = searched + at + 4;
                return Ok(Some(self.ahead.split_to(end)));
            }
            if self.ahead.len() > LARGEST_HEAD || hopeless(&self.ahead, searched) {
                return Ok(Some(self.ahead.split()));
            }
            searched = self.ahead.len().saturating_sub(3);
            let now = Instant::now();
            let left = deadline.get_or_insert(now + whole).saturating_duration_since(now);
            if self.fill(left).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// Skips one empty line before a request line (RFC 9112 §2.2): some clients send one behind a body. A bare LF is not skipped, and a
    /// second empty line is left for the parser to refuse. Waits up to `idle` for the first octet and, behind an empty line or half
    /// of one, up to `whole` for the next.
    pub(crate) async fn skip_empty_line(&mut self, idle: Duration, whole: Duration) -> io::Result<()> {
        if self.ahead.is_empty() {
            self.fill(idle).await?;
        }
        if !self.ahead.starts_with(b"\r") {
            return Ok(());
        }
        let deadline = Instant::now() + whole;
        let left = || deadline.saturating_duration_since(Instant::now());
        if *self.ahead == *b"\r" {
            self.fill(left()).await?;
        }
        if self.ahead.starts_with(b"\r\n") {
            self.ahead.advance(2);
            if self.ahead.is_empty() {
                self.fill(left()).await?;
            }
        }
        Ok(())
    }

    /// Reads more octets ahead, and returns how many; 0 at the end.
    pub(crate) async fn fill(&mut self, wait: Duration) -> io::Result<usize> {
        within(wait, self.more()).await
    }

    /// As [`Self::fill`], for as long as it takes.
    pub(super) async fn more(&mut self) -> io::Result<usize> {
        self.ahead.reserve(READ_AHEAD);
        self.reader.read_buf(&mut self.ahead).await
    }
}

/// Returns where `wanted` begins in `bytes`.
pub(crate) fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    memchr::memmem::find(bytes, wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(head: &str) -> Result<RequestHead, HeadError> {
        parse_request_head(head.as_bytes())
    }

    // RFC 9110 §7.6.1
    #[test]
    fn what_connection_names_is_beyond_doubt() {
        let read = |value: &str| {
            let head = format!("GET / HTTP/1.1\r\nHost: a\r\nConnection: {value}\r\nX-A: hop\r\n\r\n");
            parse(&head).map(|head| head.fields_to_send().has("x-a"))
        };
        for (good, is_sent) in
            [("X-A", false), ("close, X-A", false), ("", true), (",close,,", true), ("close \t, ", true)]
        {
            assert_eq!(read(good), Ok(is_sent), "{good:?}");
        }
        for bad in ["X-A;q=1", "\"X-A\"", "close, \u{80}", "X-A close", "close;", "X-A:"] {
            assert_eq!(read(bad), Err(HeadError::Connection), "{bad:?}");
        }
    }

    #[test]
    fn an_impossible_request_line_is_known_as_soon_as_it_has_ended() {
        for refused in
            ["GET http://a/x\r\n", "GET / HTTP/2.0\r\nH", "G ET / HTTP/1.1\r\n", "connect a:1 HTTP/1.1\r\n"]
        {
            let whole = refused.as_bytes();
            assert!(is_hopeless_request(whole, 0), "{refused:?}");
            // However it is cut, the cut that brings its end tells.
            let end = find(whole, b"\r\n").unwrap() + 2;
            for seen in 1..end {
                assert!(!is_hopeless_request(&whole[..seen], 0), "{refused:?} {seen}");
                assert!(is_hopeless_request(whole, seen.saturating_sub(3)), "{refused:?} {seen}");
            }
            assert_eq!(parse(refused).unwrap_err(), HeadError::RequestLine, "{refused:?}");
        }
        for preface in ["PRI * HTTP/2.0\r\n", "PRI * HTTP/2.0\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"] {
            assert_eq!(parse(preface).unwrap_err(), HeadError::Version2, "{preface:?}");
        }
        let whole = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
        for seen in 0..whole.len() {
            for from in 0..seen {
                assert!(!is_hopeless_request(&whole[..seen], from), "{from}..{seen}");
            }
        }
        assert_eq!(parse("GET / HTTP/1.1\nHost: a").unwrap_err(), HeadError::Line);
    }

    #[test]
    fn a_broken_line_is_known_as_soon_as_it_is_there() {
        for broken in ["GET / HTTP/1.1\nH", "a\0", "a\rb", "\r\r", "a\n\n", "\r\n\n", "\0"] {
            assert!(has_broken_line(broken.as_bytes()), "{broken:?}");
        }
        for whole in ["", "a", "a\r", "a\r\n", "\nb", "a\r\nb\r\n", "\r\n\r"] {
            assert!(!has_broken_line(whole.as_bytes()), "{whole:?}");
        }
    }

    /// The head that is read from a connection whose octets come in pieces of `size`.
    async fn head_behind(octets: &'static [u8], size: usize) -> Option<Vec<u8>> {
        use tokio::io::AsyncWriteExt;
        let (ours, mut theirs) = tokio::io::duplex(size);
        let sends = async move { theirs.write_all(octets).await };
        let reads = async move {
            let mut reader = Buffered::new(ours);
            let wait = Duration::from_secs(1);
            reader.skip_empty_line(wait, wait).await.unwrap();
            reader.read_head(wait, wait, is_hopeless_request).await.ok().flatten().map(|head| head.to_vec())
        };
        tokio::join!(sends, reads).1
    }

    #[tokio::test]
    async fn one_empty_line_before_a_request_line_is_skipped() {
        const PLAIN: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
        for size in [1, 2, 3, 100] {
            for taken in [PLAIN, b"\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n"] {
                assert_eq!(head_behind(taken, size).await.as_deref(), Some(PLAIN), "{taken:?}");
            }
            for refused in [
                &b"\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n"[..],
                b"\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
                b"\rGET / HTTP/1.1\r\nHost: a\r\n\r\n",
                b"\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
                b" \r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
            ] {
                let head = head_behind(refused, size).await.unwrap();
                assert!(parse_request_head(&head).is_err(), "{refused:?} {head:?}");
            }
            assert_eq!(head_behind(b"\r\n", size).await, None);
            assert_eq!(head_behind(b"", size).await, None);
        }
    }

    #[test]
    fn ambiguous_heads_are_refused() {
        for head in [
            "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: \x0cchunked\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: +1\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, identity\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding : chunked\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\n folded: x\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
            "GET / HTTP/1.1\r\n\r\n",
            "GET  / HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET / HTTP/2.0\r\nHost: a\r\n\r\n",
            "trace / HTTP/1.1\r\nHost: a\r\n\r\n",
            "G@T / HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET / HTTP/1.1\nHost: a\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\nX: \0\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\nX: a\rb\r\n\r\n",
        ] {
            assert!(parse(head).is_err(), "{head:?}");
        }
    }

    #[test]
    fn a_head_is_held_to_its_size_and_to_its_number_of_fields() {
        let of_fields = |count: usize| {
            parse(&format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "a: b\r\n".repeat(count - 1)))
        };
        let of_size = |size: usize| {
            let begins = "GET / HTTP/1.1\r\nHost: a\r\nX: ";
            parse(&format!("{begins}{}\r\n\r\n", "x".repeat(size - begins.len() - 4)))
        };
        assert!(of_fields(MOST_FIELDS).is_ok() && of_size(LARGEST_HEAD).is_ok());
        for more in [1, 2] {
            assert!(matches!(of_fields(MOST_FIELDS + more), Err(HeadError::TooLarge)), "{more}");
            assert!(matches!(of_size(LARGEST_HEAD + more), Err(HeadError::TooLarge)), "{more}");
        }
    }

    // RFC 9112 §6.3
    #[test]
    fn a_length_is_plain_digits_and_none_is_nothing_to_wait_for() {
        let of = |length: &str| {
            parse(&format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n"))
                .map(|head| head.body())
        };
        for (length, body) in
            [("0", BodyLength::None), ("00", BodyLength::None), ("07", BodyLength::Sized(7))]
        {
            assert_eq!(of(length).unwrap(), body, "{length}");
        }
        for bad in
            ["", "+0", "-0", "+1", "0,0", "1, 1", "0x0", "1 0", "0000000000000000000", "9999999999999999999"]
        {
            assert!(matches!(of(bad), Err(HeadError::Length)), "{bad}");
        }
    }

    #[test]
    fn a_websocket_is_asked_for_with_a_key_of_16_octets() {
        let asks = |keys: &[&str]| {
            let keys: String = keys.iter().map(|key| format!("Sec-WebSocket-Key: {key}\r\n")).collect();
            let head = "GET /ws HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n";
            parse(&format!("{head}{keys}\r\n")).unwrap().asks_for_websocket()
        };
        // RFC 6455 §1.3 and §4.1.
        for key in ["dGhlIHNhbXBsZSBub25jZQ==", "AQIDBAUGBwgJCgsMDQ4PEC==", "////////////++++++++++=="] {
            assert!(asks(&[key]), "{key}");
        }
        for key in [
            "",
            "key",
            "dGhlIHNhbXBsZSBub25jZQ",
            "dGhlIHNhbXBsZSBub25jZQ=",
            "dGhlIHNhbXBsZSBub25jZQA=",
            "dGhlIHNhbXBsZSBub25jZQAA",
            "dGhlIHNhbXBsZSBub25j-_==",
            "dGhlIHNhbXBsZSBub25j Q==",
            "dGhlIHNhbXBsZQ==",
            "dGhlIHNhbXBsZSBub25jZSBvbg==",
        ] {
            assert!(!asks(&[key]), "{key}");
        }
        assert!(!asks(&[]) && !asks(&["dGhlIHNhbXBsZSBub25jZQ=="; 2]));
    }

    #[test]
    fn the_key_of_a_websocket_is_sent_on_with_its_handshake_alone() {
        let keeps = |more: &str| {
            let head = "GET /ws HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n";
            let head = format!("{head}Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{more}\r\n");
            parse(&head).unwrap().fields_to_send().has("sec-websocket-key")
        };
        assert!(keeps("Connection: Upgrade\r\n"));
        for more in ["", "Connection: close\r\n", "Connection: Upgrade, Sec-WebSocket-Key\r\n"] {
            assert!(!keeps(more), "{more}");
        }
    }

    #[test]
    fn ordinary_heads_are_read() {
        let head =
            parse("POST http://a/b HTTP/1.1\r\nHost: a\r\nContent-Length: 12\r\nConnection: close\r\n\r\n")
                .unwrap();
        assert_eq!((head.body, head.keep_alive), (BodyLength::Sized(12), false));
        assert_eq!(head.target, "http://a/b");
    }
}
