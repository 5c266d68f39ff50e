//! A registry that answers each connection with the next of the answers it was given, and where a puller went and what it
//! said there. The clock of the pull stands still: a pause passes at once, and what hangs is over.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use image::{Connect, Connecting, Stream, Transport};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The most answers of an input.
const MOST: usize = 32;
/// What stands between two.
const BETWEEN: u8 = 0xff;

/// One connection.
pub struct Asked {
    /// Where it went.
    pub host: String,
    /// The port there.
    pub port: u16,
    /// Whether it is over TLS.
    pub secure: bool,
    /// What was answered.
    pub answer: Vec<u8>,
    said: Arc<Mutex<Vec<u8>>>,
}

impl Asked {
    /// What the puller said.
    ///
    /// # Panics
    /// Never.
    #[must_use]
    pub fn said(&self) -> Vec<u8> {
        self.said.lock().expect("nobody panics with it").clone()
    }
}

/// The answers that are left, and what was asked so far.
pub struct Registry {
    answers: RefCell<std::vec::IntoIter<Vec<u8>>>,
    asked: RefCell<Vec<Asked>>,
}

impl Registry {
    /// The answers an input stands for: they are parted by the octet 255. In an answer the octets 1 to 8 stand for the digest
    /// of the body of so many answers further on, and 17 to 24 for its length.
    #[must_use]
    pub fn of(input: &[u8]) -> Self {
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
        Self { answers: RefCell::new(answers.into_iter()), asked: RefCell::default() }
    }

    /// What was asked, in order.
    #[must_use]
    pub fn asked(self) -> Vec<Asked> {
        self.asked.into_inner()
    }
}

/// What stands behind the head of an answer.
fn body(answer: &[u8]) -> &[u8] {
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n");
    end.map_or(b"", |end| &answer[end + 4..])
}

impl Connect for Registry {
    fn connect<'a>(&'a self, host: &'a str, port: u16, transport: Transport) -> Connecting<'a> {
        Box::pin(async move {
            if self.asked.borrow().is_empty() {
                tokio::time::pause();
            }
            // This is not tried again.
            let answer = self.answers.borrow_mut().next().ok_or(io::ErrorKind::PermissionDenied)?;
            let said = Arc::default();
            let told = Told { left: answer.clone(), said: Arc::clone(&said), waits: None };
            let secure = transport == Transport::Tls;
            self.asked.borrow_mut().push(Asked { host: host.to_owned(), port, secure, answer, said });
            Ok(Box::new(told) as Box<dyn Stream>)
        })
    }
}

/// A connection that is silent until it was asked, then answers and ends.
struct Told {
    left: Vec<u8>,
    said: Arc<Mutex<Vec<u8>>>,
    waits: Option<Waker>,
}

impl AsyncRead for Told {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.said.lock().expect("nobody panics with it").ends_with(b"\r\n\r\n") {
            self.waits = Some(context.waker().clone());
            return Poll::Pending;
        }
        let length = self.left.len().min(buffer.remaining());
        buffer.put_slice(&self.left.drain(..length).collect::<Vec<u8>>());
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Told {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, octets: &[u8]) -> Poll<io::Result<usize>> {
        self.said.lock().expect("nobody panics with it").extend(octets);
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
