//! Request heads. One parser, strict: what two readers could take for two things is refused (RFC 9112).

use std::io;
use std::time::Duration;

use policy::Method;
use tokio::io::{AsyncRead, AsyncReadExt};

/// The largest head, in octets. REQUIREMENTS: 16 KiB.
pub(crate) const LARGEST_HEAD: usize = 16 * 1024;
/// How many header fields a head may have.
const MOST_FIELDS: usize = 128;

/// What is wrong with a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeadError {
    /// Longer than 16 KiB, or more than 128 fields.
    #[error("the head is larger than 16 KiB or has more than 128 fields")]
    TooLarge,
    /// A carriage return, line feed or NUL out of place.
    #[error("a line does not end in CRLF, or holds a control octet")]
    Line,
    /// Not `METHOD SP target SP HTTP/1.1`.
    #[error("the first line is not `METHOD target HTTP/1.1`")]
    RequestLine,
    /// A field that is not `name: value`.
    #[error("a header field is malformed or folded")]
    Field,
    /// `Content-Length` and `Transfer-Encoding` in an ambiguous combination.
    #[error("the length of the body is ambiguous")]
    Length,
    /// Not exactly one `Host`.
    #[error("there must be exactly one Host field")]
    Host,
}

/// How long a body is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyLength {
    /// There is none.
    None,
    /// So many octets.
    Sized(u64),
    /// In chunks.
    Chunked,
}

/// A request head that has passed every check.
#[derive(Clone, Debug)]
pub struct RequestHead {
    pub(crate) method: Method,
    pub(crate) target: String,
    pub(crate) fields: Vec<(String, Vec<u8>)>,
    pub(crate) body: BodyLength,
    pub(crate) keep_alive: bool,
}

impl RequestHead {
    /// The values of a field, by its name in lower case.
    pub(crate) fn values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
        self.fields.iter().filter(move |(n, _)| n == name).map(|(_, value)| value.as_slice())
    }
}

/// Parses a head, up to and with its empty line.
///
/// # Errors
/// The first rule it breaks.
pub fn parse_request_head(head: &[u8]) -> Result<RequestHead, HeadError> {
    if head.len() > LARGEST_HEAD {
        return Err(HeadError::TooLarge);
    }
    let head = head.strip_suffix(b"\r\n\r\n").ok_or(HeadError::Line)?;
    let mut lines = split_lines(head)?.into_iter();
    let (method, target, version) = request_line(lines.next().ok_or(HeadError::RequestLine)?)?;
    let fields = lines.map(field).collect::<Result<Vec<_>, _>>()?;
    if fields.len() > MOST_FIELDS {
        return Err(HeadError::TooLarge);
    }
    if fields.iter().filter(|(name, _)| name == "host").count() > 1 {
        return Err(HeadError::Host);
    }
    let has_host = fields.iter().any(|(name, _)| name == "host");
    if version == 1 && !has_host {
        return Err(HeadError::Host); // RFC 9112 §3.2
    }
    let body = body_length(&fields, version)?;
    let keep_alive = version == 1
        && !has_token(&fields, "connection", "close")
        && !has_token(&fields, "proxy-connection", "close")
        // Upgrades are not passed on; what follows one may not be HTTP any more.
        && !fields.iter().any(|(name, _)| name == "upgrade");
    Ok(RequestHead { method, target, fields, body, keep_alive })
}

/// Lines end in CRLF; neither octet stands alone, and there is no NUL.
fn split_lines(head: &[u8]) -> Result<Vec<&[u8]>, HeadError> {
    let mut lines = Vec::new();
    let mut rest = head;
    loop {
        match rest.iter().position(|b| matches!(b, b'\r' | b'\n' | 0)) {
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

fn request_line(line: &[u8]) -> Result<(Method, String, u8), HeadError> {
    let text = std::str::from_utf8(line).map_err(|_| HeadError::RequestLine)?;
    let mut parts = text.split(' ');
    let (Some(method), Some(target), Some(version), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(HeadError::RequestLine);
    };
    let method = Method::parse(method).ok_or(HeadError::RequestLine)?;
    let version = match version {
        "HTTP/1.1" => 1,
        "HTTP/1.0" => 0,
        _ => return Err(HeadError::RequestLine),
    };
    if target.is_empty() || target.bytes().any(|b| b.is_ascii_control()) {
        return Err(HeadError::RequestLine);
    }
    Ok((method, target.to_owned(), version))
}

/// `name: value`, the name a token (RFC 9110 §5.6.2), no white space before the colon, no folding.
fn field(line: &[u8]) -> Result<(String, Vec<u8>), HeadError> {
    let colon = line.iter().position(|b| *b == b':').ok_or(HeadError::Field)?;
    let (name, value) = (&line[..colon], &line[colon + 1..]);
    let token =
        !name.is_empty() && name.iter().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(b));
    if !token {
        return Err(HeadError::Field);
    }
    let value = trim(value);
    if value.iter().any(|b| (*b < 0x20 && *b != b'\t') || *b == 0x7f) {
        return Err(HeadError::Field);
    }
    let name = String::from_utf8(name.to_ascii_lowercase()).map_err(|_| HeadError::Field)?;
    Ok((name, value.to_vec()))
}

/// Without the spaces and tabs around it, and nothing else: other white space is part of a value (RFC 9110 §5.6.3).
fn trim(value: &[u8]) -> &[u8] {
    let inner = |b: &u8| !matches!(b, b' ' | b'\t');
    match (value.iter().position(inner), value.iter().rposition(inner)) {
        (Some(first), Some(last)) => &value[first..=last],
        _ => &[],
    }
}

/// RFC 9112 §6: one length or one coding, never both, and only `chunked`.
fn body_length(fields: &[(String, Vec<u8>)], version: u8) -> Result<BodyLength, HeadError> {
    let all = |wanted: &str| {
        fields.iter().filter(|(n, _)| n == wanted).map(|(_, v)| v.as_slice()).collect::<Vec<_>>()
    };
    let (lengths, codings) = (all("content-length"), all("transfer-encoding"));
    match (lengths.as_slice(), codings.as_slice()) {
        ([], []) => Ok(BodyLength::None),
        ([], [coding]) if version == 1 && coding.eq_ignore_ascii_case(b"chunked") => Ok(BodyLength::Chunked),
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

/// Whether a comma-separated field holds a token.
pub(crate) fn has_token(fields: &[(String, Vec<u8>)], name: &str, token: &str) -> bool {
    fields.iter().filter(|(n, _)| n == name).any(|(_, value)| {
        value.split(|b| *b == b',').any(|part| trim(part).eq_ignore_ascii_case(token.as_bytes()))
    })
}

/// What was read ahead of a connection, and where reading goes on.
#[derive(Debug)]
pub(crate) struct Buffered<R> {
    pub(crate) ahead: Vec<u8>,
    pub(crate) reader: R,
}

impl<R: AsyncRead + Unpin> Buffered<R> {
    /// Reads a head: its octets, or nothing where the connection ends between two requests.
    pub(crate) async fn read_head(&mut self, idle: Duration, whole: Duration) -> io::Result<Option<Vec<u8>>> {
        if self.ahead.is_empty() && self.fill(idle).await? == 0 {
            return Ok(None);
        }
        let deadline = tokio::time::Instant::now() + whole;
        let mut searched = 0;
        loop {
            if let Some(at) = find(&self.ahead[searched..], b"\r\n\r\n") {
                let end = searched + at + 4;
                let rest = self.ahead.split_off(end);
                return Ok(Some(std::mem::replace(&mut self.ahead, rest)));
            }
            if self.ahead.len() > LARGEST_HEAD {
                return Ok(Some(std::mem::take(&mut self.ahead)));
            }
            searched = self.ahead.len().saturating_sub(3);
            let left = deadline.saturating_duration_since(tokio::time::Instant::now());
            if self.fill(left).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// Reads some more; 0 is the end.
    pub(crate) async fn fill(&mut self, wait: Duration) -> io::Result<usize> {
        self.ahead.reserve(8192);
        let read = tokio::time::timeout(wait, self.reader.read_buf(&mut self.ahead)).await;
        read.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
    }
}

pub(crate) fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|window| window == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(head: &str) -> Result<RequestHead, HeadError> {
        parse_request_head(head.as_bytes())
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
            "get / HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET / HTTP/1.1\nHost: a\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\nX: \0\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\nX: a\rb\r\n\r\n",
        ] {
            assert!(parse(head).is_err(), "{head:?}");
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
