//! Response heads, as upstreams send them: read with some leeway, passed on in one form.

use std::io;
use std::time::Duration;

use tokio::io::AsyncRead;

use super::head::{BodyLength, Buffered, has_token};

/// How long an upstream may take to begin its answer; a stream of events may then last.
const FIRST_OCTET: Duration = Duration::from_secs(300);
/// How long it may take over the head.
const WHOLE_HEAD: Duration = Duration::from_secs(30);
const MOST_FIELDS: usize = 128;

/// A response head.
#[derive(Debug)]
pub(super) struct ResponseHead {
    pub(super) status: u16,
    pub(super) reason: String,
    pub(super) fields: Vec<(String, Vec<u8>)>,
    pub(super) keep_alive: bool,
}

/// How the end of a response body is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResponseBody {
    /// By its own length.
    Framed(BodyLength),
    /// By the end of the connection.
    ToEnd,
}

impl ResponseHead {
    /// Reads the next head.
    pub(super) async fn read<R: AsyncRead + Unpin>(reader: &mut Buffered<R>) -> io::Result<Self> {
        let head = reader.read_head(FIRST_OCTET, WHOLE_HEAD).await?.ok_or(io::ErrorKind::UnexpectedEof)?;
        Self::parse(&head).map_err(|why| io::Error::new(io::ErrorKind::InvalidData, why))
    }

    fn parse(head: &[u8]) -> Result<Self, String> {
        let mut fields = [httparse::EMPTY_HEADER; MOST_FIELDS];
        let mut response = httparse::Response::new(&mut fields);
        match response.parse(head) {
            Ok(httparse::Status::Complete(_)) => {}
            Ok(httparse::Status::Partial) => return Err("the response head is too large".into()),
            Err(error) => return Err(format!("the response head is malformed: {error}")),
        }
        let status = response.code.unwrap_or(0);
        let reason = response.reason.unwrap_or("").to_owned();
        let fields: Vec<(String, Vec<u8>)> =
            response.headers.iter().map(|f| (f.name.to_ascii_lowercase(), f.value.to_vec())).collect();
        let keep_alive = response.version == Some(1) && !has_token(&fields, "connection", "close");
        Ok(Self { status, reason, fields, keep_alive })
    }

    /// RFC 9112 §6.3, for the answer to a request of the given method.
    pub(super) fn body(&self, method: &str) -> Result<ResponseBody, &'static str> {
        if method == "HEAD" || matches!(self.status, 100..=199 | 204 | 304) {
            return Ok(ResponseBody::Framed(BodyLength::None));
        }
        let all = |wanted: &str| {
            self.fields.iter().filter(|(n, _)| n == wanted).map(|(_, v)| v.as_slice()).collect::<Vec<_>>()
        };
        let (lengths, codings) = (all("content-length"), all("transfer-encoding"));
        match (lengths.as_slice(), codings.as_slice()) {
            ([], []) => Ok(ResponseBody::ToEnd),
            ([], [coding]) if coding.eq_ignore_ascii_case(b"chunked") => {
                Ok(ResponseBody::Framed(BodyLength::Chunked))
            }
            (many @ [first, ..], []) if many.iter().all(|l| l == first) => {
                let size = std::str::from_utf8(first).ok().filter(|t| t.bytes().all(|b| b.is_ascii_digit()));
                let size = size.and_then(|t| t.parse().ok()).ok_or("the response has no usable length")?;
                Ok(ResponseBody::Framed(BodyLength::Sized(size)))
            }
            _ => Err("the length of the response is ambiguous"),
        }
    }

    /// The head as the agent gets it.
    pub(super) fn write(&self, keep_alive: bool) -> Vec<u8> {
        let mut out = format!("HTTP/1.1 {} {}\r\n", self.status, self.reason).into_bytes();
        for (name, value) in &self.fields {
            if matches!(name.as_str(), "connection" | "keep-alive" | "proxy-connection" | "upgrade") {
                continue;
            }
            out.extend(name.bytes());
            out.extend(b": ");
            out.extend(value);
            out.extend(b"\r\n");
        }
        if !keep_alive && self.status >= 200 {
            out.extend(b"connection: close\r\n");
        }
        out.extend(b"\r\n");
        out
    }
}
