//! The HTTP/1.1 of these tests: reads and keeps heads, and sends one request at a time. It is not strict: the product must be.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// The largest head of a test.
const LARGEST_HEAD: usize = 64 << 10;
/// The time limit for the other side, which is on this machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// The head of a request or an answer.
#[derive(Clone, Debug)]
pub struct Head {
    /// The first line.
    pub line: String,
    fields: Vec<(String, String)>,
}

/// The answer to a request of the tests.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: Head,
    pub(crate) body: Vec<u8>,
}

impl Head {
    /// Reads one head, and not an octet more.
    pub(crate) fn read(stream: &mut impl Read) -> Option<Self> {
        let mut octets = Vec::new();
        while !octets.ends_with(b"\r\n\r\n") && octets.len() < LARGEST_HEAD {
            let mut octet = [0];
            stream.read_exact(&mut octet).ok()?;
            octets.push(octet[0]);
            // A client that speaks TLS to a server in the clear need not wait for an answer.
            if !octets[0].is_ascii_alphabetic() {
                return None;
            }
        }
        let text = String::from_utf8_lossy(&octets).into_owned();
        let mut lines = text.split("\r\n");
        let line = lines.next()?.to_owned();
        let fields = lines.filter_map(|line| line.split_once(':'));
        let fields = fields.map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()));
        Some(Self { line, fields: fields.collect() })
    }

    /// The path and the query of a request.
    #[must_use]
    pub fn target(&self) -> &str {
        self.line.split(' ').nth(1).unwrap_or_default()
    }

    /// The path of a request, without the query.
    #[must_use]
    pub fn path(&self) -> &str {
        self.target().split('?').next().unwrap_or_default()
    }

    /// Returns a field by its lower-case name.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
    }

    /// Returns the head to forward, with a request to close the connection after the answer.
    pub(crate) fn closing(&self) -> Vec<u8> {
        let mut text = format!("{}\r\nconnection: close\r\n", self.line);
        for (name, value) in self.fields.iter().filter(|(name, _)| name != "connection") {
            text += &format!("{name}: {value}\r\n");
        }
        (text + "\r\n").into_bytes()
    }
}

/// Sends one request and reads its answer to the end.
pub(crate) fn send(to: SocketAddr, line: &str, fields: &[(&str, &str)], body: &[u8]) -> io::Result<Answer> {
    let mut stream = TcpStream::connect(to)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut head = format!("{line} HTTP/1.1\r\nhost: {to}\r\nconnection: close\r\n");
    for (name, value) in fields {
        head += &format!("{name}: {value}\r\n");
    }
    head += &format!("content-length: {}\r\n\r\n", body.len());
    stream.write_all(head.as_bytes())?;
    stream.write_all(body)?;
    let head = Head::read(&mut stream).ok_or(io::ErrorKind::UnexpectedEof)?;
    let status = head.target().parse().map_err(io::Error::other)?;
    let mut body = Vec::new();
    stream.read_to_end(&mut body)?;
    Ok(Answer { status, head, body })
}
