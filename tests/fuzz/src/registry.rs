//! A registry that gives each connection the next of its answers, and records where a puller connected and what it sent. The clock
//! of the pull is paused: a wait passes at once, and what hangs times out.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use image::{Connect, Connecting, Stream, Transport};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The most answers of an input.
const MOST: usize = 32;
/// The separator between two answers.
const BETWEEN: u8 = 0xff;

/// One connection, and what was sent over it.
pub(crate) struct RecordedConnection {
    /// The host it went to.
    pub(crate) host: String,
    /// The port it went to.
    pub(crate) port: u16,
    /// Whether it uses TLS.
    pub(crate) secure: bool,
    /// The answer it got.
    pub(crate) answer: Vec<u8>,
    sent: Arc<Mutex<Vec<u8>>>,
}

impl RecordedConnection {
    /// Returns what the puller sent.
    #[must_use]
    pub(crate) fn sent(&self) -> Vec<u8> {
        self.sent.lock().expect("nobody panics with it").clone()
    }
}

/// The answers that are left, and the connections so far.
pub(crate) struct Registry {
    answers: RefCell<std::vec::IntoIter<Vec<u8>>>,
    connections: RefCell<Vec<RecordedConnection>>,
}

impl Registry {
    /// Parses an input into answers, which the octet 255 separates. In an answer, the octets 1 to 8 stand for the digest of the
    /// body of the answer so many further on, and 17 to 24 for its length.
    #[must_use]
    pub(crate) fn of(input: &[u8]) -> Self {
        let parts: Vec<&[u8]> = input.split(|octet| *octet == BETWEEN).take(MOST).collect();
        let mut answers: Vec<Vec<u8>> = vec![Vec::new(); parts.len()];
        for at in (0..parts.len()).rev() {
            let mut answer = Vec::new();
            for octet in parts[at] {
                let body = |on: u8| answers.get(at + usize::from(on)).map_or(&b""[..], |answer| body(answer));
                match octet {
                    1..=8 => answer.extend(format!("sha256:{}", egress::digest(body(*octet))).bytes()),
                    17..=24 => answer.extend(body(octet - 16).len().to_string().bytes()),
                    octet => answer.push(*octet),
                }
            }
            answers[at] = answer;
        }
        Self { answers: RefCell::new(answers.into_iter()), connections: RefCell::default() }
    }

    /// Returns the connections, in order.
    #[must_use]
    pub(crate) fn connections(self) -> Vec<RecordedConnection> {
        self.connections.into_inner()
    }
}

/// Returns the body of an answer.
fn body(answer: &[u8]) -> &[u8] {
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n");
    end.map_or(b"", |end| &answer[end + 4..])
}

impl Connect for Registry {
    fn connect<'a>(&'a self, host: &'a str, port: u16, transport: Transport) -> Connecting<'a> {
        Box::pin(async move {
            if self.connections.borrow().is_empty() {
                tokio::time::pause();
            }
            // The puller does not retry after this error.
            let answer = self.answers.borrow_mut().next().ok_or(io::ErrorKind::PermissionDenied)?;
            let sent = Arc::default();
            let connection =
                ScriptedConnection { left: answer.clone(), sent: Arc::clone(&sent), waits: None };
            let secure = transport == Transport::Tls;
            self.connections.borrow_mut().push(RecordedConnection {
                host: host.to_owned(),
                port,
                secure,
                answer,
                sent,
            });
            Ok(Box::new(connection) as Box<dyn Stream>)
        })
    }
}

/// A connection that is silent until a request has come, then answers and ends.
struct ScriptedConnection {
    left: Vec<u8>,
    sent: Arc<Mutex<Vec<u8>>>,
    waits: Option<Waker>,
}

impl AsyncRead for ScriptedConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.sent.lock().expect("nobody panics with it").ends_with(b"\r\n\r\n") {
            self.waits = Some(context.waker().clone());
            return Poll::Pending;
        }
        let length = self.left.len().min(buffer.remaining());
        buffer.put_slice(&self.left.drain(..length).collect::<Vec<u8>>());
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for ScriptedConnection {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, octets: &[u8]) -> Poll<io::Result<usize>> {
        self.sent.lock().expect("nobody panics with it").extend(octets);
        self.waits.take().into_iter().for_each(Waker::wake);
        Poll::Ready(Ok(octets.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
