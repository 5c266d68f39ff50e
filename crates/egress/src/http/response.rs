//! Parser of upstreams' response heads: accepts some deviations, and passes all on in one form.

use std::cell::Cell;
use std::io;
use std::time::Duration;

use tokio::io::AsyncRead;

use super::fields::Fields;
use super::head::{BodyLength, Buffered, LARGEST_HEAD, Version};
use super::version2;
use crate::patience::within_once;

/// How long an upstream may take to begin its response once it was sent the whole request.
pub(super) const FIRST_OCTET: Duration = Duration::from_secs(300);
/// How long an upstream may take over the whole head.
const WHOLE_HEAD: Duration = Duration::from_secs(30);
pub(super) const MOST_FIELDS: usize = 128;
const TOO_LARGE: &str = "the response head is larger than 16 KiB";

/// A response head.
#[derive(Debug)]
pub(super) struct ResponseHead {
    pub(super) status: u16,
    pub(super) reason: String,
    pub(super) fields: Fields,
    version: Version,
    pub(super) keep_alive: bool,
}

/// How the end of a response body is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResponseBody {
    /// By its length or its chunks.
    Framed(BodyLength),
    /// By the end of the connection.
    ToEnd,
}

/// A response that came and cannot be used, by what is wrong with it.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Unusable(String);

impl Unusable {
    /// Whether an error is this one.
    pub(super) fn is(error: &io::Error) -> bool {
        error.get_ref().is_some_and(|inner| inner.is::<Self>())
    }
}

/// Says what is wrong with a response that came and cannot be used.
pub(super) fn unusable(why: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, Unusable(why.into()))
}

/// Parses the trailer section of a chunked body. A malformed one, or one of too many fields, is no trailers, as it is to most readers.
pub(super) fn trailers_of_version_1(section: &[u8]) -> Fields {
    let mut fields = [httparse::EMPTY_HEADER; MOST_FIELDS];
    match httparse::parse_headers(section, &mut fields) {
        Ok(httparse::Status::Complete((_, fields))) => {
            fields.iter().map(|field| (field.name, field.value)).collect()
        }
        Ok(httparse::Status::Partial) | Err(_) => Fields::default(),
    }
}

impl ResponseHead {
    /// Reads the next head of a response to a request that is still being sent, or `is_sent`.
    pub(super) async fn read<R: AsyncRead + Unpin>(
        reader: &mut Buffered<R>,
        is_sent: &Cell<bool>,
    ) -> io::Result<Self> {
        if reader.ahead.is_empty() && within_once(|| is_sent.get(), FIRST_OCTET, reader.more()).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let head =
            reader.read_head(WHOLE_HEAD, WHOLE_HEAD, |head, from| has_other_end(&head[from..])).await?;
        let head = head.ok_or(io::ErrorKind::UnexpectedEof)?;
        Self::parse(&head).map_err(unusable)
    }

    /// Creates a 100 Continue.
    pub(super) fn go_on() -> Self {
        Self::of(100, "Continue".into(), Fields::default(), Version::Http11, true)
    }

    fn parse(head: &[u8]) -> Result<Self, String> {
        // Whether the end of a head is found before its size is looked at depends on how TCP cut it.
        if head.len() > LARGEST_HEAD {
            return Err(TOO_LARGE.into());
        }
        if has_other_end(head) && !head.ends_with(b"\r\n\r\n") {
            return Err("the response head does not end in CRLF".into());
        }
        let mut fields = [httparse::EMPTY_HEADER; MOST_FIELDS];
        let mut response = httparse::Response::new(&mut fields);
        let mut syntax = httparse::ParserConfig::default();
        // RFC 9112 §5.1: a proxy removes white space between a name and its colon from a response.
        syntax.allow_spaces_after_header_name_in_responses(true);
        match syntax.parse_response(&mut response, head) {
            Ok(httparse::Status::Complete(read)) if read == head.len() => {}
            Ok(httparse::Status::Complete(_)) => return Err("the response head ends in two places".into()),
            Ok(httparse::Status::Partial) => return Err(TOO_LARGE.into()),
            Err(error) => return Err(format!("the response head is malformed: {error}")),
        }
        let status = response.code.unwrap_or(0);
        if status < 100 {
            return Err(format!("{status:03} is no status of a response"));
        }
        let reason = response.reason.unwrap_or("").to_owned();
        let mut fields = Fields::with_room(response.headers.len(), head.len());
        response.headers.iter().for_each(|field| fields.push(field.name, field.value));
        let version = if response.version == Some(1) { Version::Http11 } else { Version::Http10 };
        let keep_alive = version == Version::Http11 && !fields.has_token("connection", "close");
        Ok(Self::of(status, reason, fields, version, keep_alive))
    }

    /// Converts a head of HTTP/2.
    ///
    /// # Errors
    /// It has too many fields.
    pub(super) fn of_version_2(parts: &http::response::Parts) -> io::Result<Self> {
        if parts.headers.len() > MOST_FIELDS {
            return Err(unusable("the response head has too many fields"));
        }
        let reason = parts.status.canonical_reason().unwrap_or("").to_owned();
        let fields = version2::fields(&parts.headers);
        Ok(Self::of(parts.status.as_u16(), reason, fields, Version::Http2, true))
    }

    /// Creates a head; without a length if its status never has a body (RFC 9110 §8.6).
    fn of(status: u16, reason: String, mut fields: Fields, version: Version, keep_alive: bool) -> Self {
        if matches!(status, 100..=199 | 204) {
            fields.remove("content-length");
        }
        Self { status, reason, fields, version, keep_alive }
    }

    /// Returns how the body ends (RFC 9112 §6.3), in a response to a request of this method.
    ///
    /// # Errors
    /// The length is malformed or ambiguous.
    pub(super) fn body(&self, method: &str) -> Result<ResponseBody, &'static str> {
        if has_no_body(method, self.status) {
            return Ok(ResponseBody::Framed(BodyLength::None));
        }
        let lengths: Vec<&[u8]> = self.fields.values("content-length").collect();
        let codings: Vec<&[u8]> = self.fields.values("transfer-encoding").collect();
        match (lengths.as_slice(), codings.as_slice()) {
            ([], []) => Ok(ResponseBody::ToEnd),
            // HTTP/1.0 has no chunks: the framing is faulty (RFC 9112 §6.1).
            (_, [_, ..]) if self.version == Version::Http10 => {
                Err("the response is of HTTP/1.0 and has a Transfer-Encoding")
            }
            ([], [coding]) if coding.eq_ignore_ascii_case(b"chunked") => {
                Ok(ResponseBody::Framed(BodyLength::Chunked))
            }
            (many @ [first, ..], []) if many.iter().all(|l| l == first) => {
                let size = std::str::from_utf8(first).ok().filter(|t| t.bytes().all(|b| b.is_ascii_digit()));
                let size = size.and_then(|t| t.parse().ok()).ok_or("the response has no usable length")?;
                Ok(ResponseBody::Framed(if size == 0 { BodyLength::None } else { BodyLength::Sized(size) }))
            }
            _ => Err("the length of the response is ambiguous"),
        }
    }
}

/// Whether a response never has a body, whatever its head says (RFC 9110 §6.4.1), by the method of its request and its status.
pub(super) fn has_no_body(method: &str, status: u16) -> bool {
    method == "HEAD" || matches!(status, 100..=199 | 204 | 304)
}

/// Whether a part of a head has an empty line behind a bare LF: some parsers take that for the end of the head, which this one awaits for
/// an end with CRLF.
fn has_other_end(part: &[u8]) -> bool {
    memchr::memchr_iter(b'\n', part).any(|at| {
        let rest = &part[at + 1..];
        rest.starts_with(b"\n") || rest.starts_with(b"\r\n") && (at > 0 && part[at - 1] != b'\r')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(head: &str) -> Result<ResponseHead, String> {
        ResponseHead::parse(head.as_bytes())
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_that_ends_otherwise_than_in_crlf_is_awaited_no_longer() {
        use tokio::io::AsyncWriteExt;
        for (head, refused) in [
            ("HTTP/1.1 200 OK\nA: b\n\n", true),
            ("HTTP/1.1 200 OK\nA: b\n\nbody", true),
            ("HTTP/1.1 200 OK\nA: b\n\r\n", true),
            ("HTTP/1.1 200 OK\r\nA: b\r\n\n", true),
            ("HTTP/1.1 200 OK\nA: b\r\n\r\n", false),
            ("HTTP/1.1 200 OK\r\nA: b\r\n\r\n", false),
        ] {
            for piece in [1, 3, 100] {
                let (ours, mut theirs) = tokio::io::duplex(1024);
                let (begun, mut reader, is_sent) =
                    (tokio::time::Instant::now(), Buffered::new(ours), Cell::new(true));
                let writes = async {
                    for part in head.as_bytes().chunks(piece) {
                        theirs.write_all(part).await.unwrap();
                        tokio::task::yield_now().await;
                    }
                };
                let (read, ()) = tokio::join!(ResponseHead::read(&mut reader, &is_sent), writes);
                assert_eq!(read.is_err(), refused, "{head:?} {piece}");
                assert!(begun.elapsed() < WHOLE_HEAD, "{head:?} {piece}");
            }
        }
    }

    #[test]
    fn white_space_behind_a_name_is_removed() {
        let head = parsed("HTTP/1.1 200 OK\r\nX \t : a\r\nTransfer-Encoding : chunked\r\n\r\n").unwrap();
        assert!(head.fields.iter().eq([("x", &b"a"[..]), ("transfer-encoding", b"chunked")]));
        assert_eq!(head.body("GET"), Ok(ResponseBody::Framed(BodyLength::Chunked)));
        let both = "Content-Length : 5\r\nTransfer-Encoding: chunked\r\n";
        assert!(parsed(&format!("HTTP/1.1 200 OK\r\n{both}\r\n")).unwrap().body("GET").is_err());
        for line in ["X Y: a", " X: a", "X : a\r\n : b", ": a", " : a", "X\x0b: a", "X \x0c: a", "X"] {
            assert!(parsed(&format!("HTTP/1.1 200 OK\r\n{line}\r\n\r\n")).is_err(), "{line:?}");
        }
    }

    #[test]
    fn a_status_below_100_is_none() {
        for status in ["000", "001", "099"] {
            let error = parsed(&format!("HTTP/1.1 {status} X\r\n\r\n")).unwrap_err();
            assert!(error.starts_with(status), "{error}");
        }
        assert_eq!(parsed("HTTP/1.1 100 X\r\n\r\n").unwrap().status, 100);
    }

    #[test]
    fn a_head_has_16_kib_however_it_came() {
        let head = |size: usize| {
            let empty = "HTTP/1.1 200 OK\r\na: \r\n\r\n";
            format!("HTTP/1.1 200 OK\r\na: {}\r\n\r\n", "x".repeat(size - empty.len()))
        };
        assert!(parsed(&head(LARGEST_HEAD)).is_ok());
        let error = parsed(&head(LARGEST_HEAD + 1)).unwrap_err();
        assert_eq!(error, TOO_LARGE);
    }

    #[test]
    fn http_1_0_has_no_chunks() {
        for (version, coding, body) in [
            ("1.1", "Transfer-Encoding: chunked\r\n", Some(ResponseBody::Framed(BodyLength::Chunked))),
            ("1.0", "Transfer-Encoding: chunked\r\n", None),
            ("1.0", "Transfer-Encoding: identity\r\n", None),
            ("1.0", "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", None),
            ("1.0", "Content-Length: 5\r\n", Some(ResponseBody::Framed(BodyLength::Sized(5)))),
            ("1.0", "", Some(ResponseBody::ToEnd)),
        ] {
            let head = parsed(&format!("HTTP/{version} 200 OK\r\n{coding}\r\n")).unwrap();
            assert_eq!(head.body("GET").ok(), body, "{version} {coding}");
        }
    }

    #[test]
    fn a_head_of_either_version_has_so_many_fields_and_no_more() {
        for (count, fits) in [(MOST_FIELDS, true), (MOST_FIELDS + 1, false)] {
            let text = format!("HTTP/1.1 200 OK\r\n{}\r\n", "a: \r\n".repeat(count));
            assert_eq!(parsed(&text).is_ok(), fits, "{count}");
            let response = (0..count).fold(http::Response::builder(), |response, _| response.header("a", ""));
            let parts = response.body(()).unwrap().into_parts().0;
            assert_eq!(ResponseHead::of_version_2(&parts).is_ok(), fits, "{count}");
        }
    }

    #[test]
    fn what_has_no_body_states_no_length() {
        for (status, stated) in [(100, false), (103, false), (200, true), (204, false), (304, true)] {
            let head = parsed(&format!("HTTP/1.1 {status} X\r\nContent-Length: 5\r\n\r\n")).unwrap();
            assert_eq!(head.fields.has("content-length"), stated, "{status}");
            let parts =
                http::Response::builder().status(status).header("content-length", "5").body(()).unwrap();
            let head = ResponseHead::of_version_2(&parts.into_parts().0).unwrap();
            assert_eq!(head.fields.has("content-length"), stated, "{status}");
        }
    }
}
