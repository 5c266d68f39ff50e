//! HTTP/1.1 as it arrives: reads heads and bodies from a byte stream, exactly as sent. It repairs nothing and must never hide an octet: the
//! peer under test is judged by what it sent.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

/// A head longer than this is malformed.
const MAX_HEAD: usize = 64 * 1024;
/// The octets kept of a body; the rest is counted.
const KEPT_BODY: usize = 16 * 1024 * 1024;
/// How long a peer may be silent.
const IDLE: Duration = Duration::from_secs(60);

/// Names and values, in order.
pub(crate) type Headers = Vec<(String, String)>;

/// The head of a request.
#[derive(Debug, Clone, Default)]
pub(crate) struct Head {
    pub(crate) line: String,
    pub(crate) method: String,
    pub(crate) target: String,
    pub(crate) minor_version: u8,
    pub(crate) headers: Headers,
}

/// A body: its first octets, its whole length, and the trailers (RFC 9110 §6.5).
#[derive(Debug, Default)]
pub(crate) struct Body {
    pub(crate) kept: Vec<u8>,
    pub(crate) length: u64,
    pub(crate) trailers: Headers,
}

/// The result of reading a request.
#[derive(Debug)]
pub(crate) enum Arrived {
    Request(Head),
    /// Octets that are no request; the text says why.
    Malformed(String),
    /// The peer closed, failed or fell silent.
    Nothing,
}

/// A connection, with the octets received and not yet consumed.
pub(crate) struct Wire<S> {
    pub(crate) stream: S,
    pending: Vec<u8>,
}

impl Body {
    /// Appends octets of the body.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        let room = bytes.len().min(KEPT_BODY.saturating_sub(self.kept.len()));
        self.kept.extend_from_slice(&bytes[..room]);
        self.length += bytes.len() as u64;
    }
}

impl Head {
    /// Returns the first header called `name`, in any case.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// Whether the connection may carry another request (RFC 9112 §9.3).
    pub(crate) fn keeps_alive(&self) -> bool {
        let says = |word: &str| {
            self.header("connection").is_some_and(|value| value.to_ascii_lowercase().contains(word))
        };
        if self.minor_version == 0 { says("keep-alive") } else { !says("close") }
    }

    /// Returns the requested host, in lower case and without a port.
    pub(crate) fn host(&self) -> String {
        let host = self.header("host").unwrap_or_default();
        let name =
            host.rsplit_once(':').map_or(host, |(name, port)| if port.contains(']') { host } else { name });
        name.trim_end_matches('.').to_ascii_lowercase()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Wire<S> {
    pub(crate) fn new(stream: S) -> Self {
        Self { stream, pending: Vec::new() }
    }

    /// Reads one head from the stream.
    pub(crate) async fn head(&mut self) -> Arrived {
        loop {
            let mut headers = [httparse::EMPTY_HEADER; 128];
            let mut request = httparse::Request::new(&mut headers);
            match request.parse(&self.pending) {
                Ok(httparse::Status::Complete(length)) => {
                    let head = head_of(&request, &self.pending);
                    self.pending.drain(..length);
                    return Arrived::Request(head);
                }
                Ok(httparse::Status::Partial) if self.pending.len() < MAX_HEAD => {}
                Ok(httparse::Status::Partial) => return Arrived::Malformed("the head has no end".to_owned()),
                Err(error) => return Arrived::Malformed(error.to_string()),
            }
            match self.fill().await {
                Ok(0) if self.pending.is_empty() => return Arrived::Nothing,
                Ok(0) => return Arrived::Malformed("the head was cut".to_owned()),
                Ok(_) => {}
                Err(_) => return Arrived::Nothing,
            }
        }
    }

    /// Reads the body that belongs to `head` (RFC 9112 §6.3) from the stream.
    pub(crate) async fn body(&mut self, head: &Head) -> io::Result<Body> {
        let mut body = Body::default();
        let chunked = head
            .header("transfer-encoding")
            .is_some_and(|value| value.to_ascii_lowercase().contains("chunked"));
        let length: u64 =
            head.header("content-length").and_then(|value| value.trim().parse().ok()).unwrap_or(0);
        if (chunked || length > 0) && head.header("expect").is_some() {
            self.stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
        }
        if !chunked {
            self.take(length, &mut body).await?;
            return Ok(body);
        }
        loop {
            let line = self.line().await?;
            let size = line.split(';').next().unwrap_or_default().trim();
            let size = u64::from_str_radix(size, 16).map_err(|_| broken("the chunk size is no number"))?;
            if size == 0 {
                loop {
                    let line = self.line().await?;
                    if line.is_empty() {
                        return Ok(body);
                    }
                    let (name, value) = line.split_once(':').unwrap_or((&line, ""));
                    body.trailers.push((name.to_owned(), value.trim().to_owned()));
                }
            }
            self.take(size, &mut body).await?;
            if !self.line().await?.is_empty() {
                return Err(broken("the chunk is longer than it says"));
            }
        }
    }

    /// Reads and discards until the peer closes or falls silent.
    pub(crate) async fn drain(&mut self) {
        while matches!(self.fill().await, Ok(length) if length > 0) {
            self.pending.clear();
        }
    }

    /// Reads this many octets from the stream.
    pub(crate) async fn exactly(&mut self, length: u64) -> io::Result<Vec<u8>> {
        let mut body = Body::default();
        self.take(length, &mut body).await?;
        Ok(body.kept)
    }

    /// Reads a few octets from the stream.
    pub(crate) async fn octets<const COUNT: usize>(&mut self) -> io::Result<[u8; COUNT]> {
        let bytes = self.exactly(COUNT as u64).await?;
        bytes.try_into().map_err(|_| broken("the stream was cut"))
    }

    async fn take(&mut self, mut length: u64, body: &mut Body) -> io::Result<()> {
        while length > 0 {
            if self.pending.is_empty() && self.fill().await? == 0 {
                return Err(broken("the body was cut"));
            }
            let here = usize::try_from(length).unwrap_or(usize::MAX).min(self.pending.len());
            body.add(&self.pending[..here]);
            self.pending.drain(..here);
            length -= here as u64;
        }
        Ok(())
    }

    async fn line(&mut self) -> io::Result<String> {
        loop {
            if let Some(end) = self.pending.windows(2).position(|pair| pair == b"\r\n") {
                let line = latin1(&self.pending[..end]);
                self.pending.drain(..end + 2);
                return Ok(line);
            }
            if self.pending.len() > MAX_HEAD || self.fill().await? == 0 {
                return Err(broken("a line has no end"));
            }
        }
    }

    async fn fill(&mut self) -> io::Result<usize> {
        let mut buffer = [0; 16 * 1024];
        let length = timeout(IDLE, self.stream.read(&mut buffer)).await??;
        self.pending.extend_from_slice(&buffer[..length]);
        Ok(length)
    }
}

fn head_of(request: &httparse::Request<'_, '_>, bytes: &[u8]) -> Head {
    let start = bytes.iter().position(|byte| !b"\r\n".contains(byte)).unwrap_or(0);
    let line = bytes[start..].split(|byte| *byte == b'\n').next().unwrap_or_default();
    Head {
        line: latin1(line).trim_end().to_owned(),
        method: request.method.unwrap_or_default().to_owned(),
        target: request.path.unwrap_or_default().to_owned(),
        minor_version: request.version.unwrap_or(1),
        headers: request
            .headers
            .iter()
            .map(|header| (header.name.to_owned(), latin1(header.value)))
            .collect(),
    }
}

/// Returns each octet as the character of the same number, so that nothing is lost.
pub(crate) fn latin1(bytes: &[u8]) -> String {
    bytes.iter().copied().map(char::from).collect()
}

fn broken(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read(input: &[u8]) -> (Head, io::Result<Body>, Vec<u8>) {
        let (mut client, server) = tokio::io::duplex(1024);
        client.write_all(input).await.unwrap();
        drop(client);
        let mut wire = Wire::new(server);
        let Arrived::Request(head) = wire.head().await else { panic!("no head in {}", latin1(input)) };
        let body = wire.body(&head).await;
        (head, body, wire.pending)
    }

    #[tokio::test]
    async fn a_counted_body_ends_where_it_says() {
        let (head, body, rest) =
            read(b"POST /a HTTP/1.1\r\nHost: X.example:80\r\nContent-Length: 3\r\n\r\nabcdef").await;
        assert_eq!((head.line.as_str(), head.host().as_str()), ("POST /a HTTP/1.1", "x.example"));
        assert_eq!((body.unwrap().kept, rest), (b"abc".to_vec(), b"def".to_vec()));
    }

    #[tokio::test]
    async fn a_chunked_body_is_put_together() {
        let (_, body, rest) =
            read(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x\r\nde\r\n0\r\nT: 1\r\n\r\nGET").await;
        let body = body.unwrap();
        assert_eq!((body.kept, body.length, rest), (b"abcde".to_vec(), 5, b"GET".to_vec()));
        assert_eq!(body.trailers, [("T".to_owned(), "1".to_owned())]);
    }

    #[tokio::test]
    async fn a_cut_body_is_an_error() {
        assert!(read(b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nabc").await.1.is_err());
        assert!(read(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n").await.1.is_err());
    }
}
