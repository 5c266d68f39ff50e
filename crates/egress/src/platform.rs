//! The client of the platform that is asked for credentials. Every platform speaks one protocol: HTTP, a run token as bearer,
//! `/internal/credentials/{providerId}` (S0.23, S0.47).

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::rc::Rc;
use std::time::Duration;

use bytes::BytesMut;
use credential::{Credential, Secret, Value};
use policy::ProviderId;
use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::{Mutex, oneshot};
use zeroize::Zeroizing;

use crate::credential_config::{PlatformAddress, RunToken};
use crate::upstream;

/// How long a question and its answer may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The largest answer, in octets.
const LARGEST: usize = 256 * 1024;

/// Why there is no credential.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FetchError {
    /// There is no platform.
    #[error("this sidecar has no platform to ask")]
    NoPlatform,
    /// The platform has no credential.
    #[error("there is none")]
    Absent,
    /// The platform answered with another status than 200.
    #[error("the platform answered {0}")]
    Refused(u16),
    /// The stored credential cannot be used. The process that started the sidecar reports why.
    #[error("what is stored cannot be used; whoever started this was told why")]
    Unusable,
    /// The platform could not be asked.
    #[error("the platform cannot be reached: {0}")]
    Unreachable(#[from] io::Error),
    /// The answer is longer than it may be. It was read to its end.
    #[error("it takes more than {} KiB", LARGEST / 1024)]
    TooLarge,
    /// The answer breaks the protocol. Its text is not repeated, because it may hold the credential.
    #[error("the platform's answer cannot be used: {0}")]
    Malformed(&'static str),
}

/// A platform, and the token by which it is asked.
pub(crate) struct Platform {
    token: Secret,
    transport: Transport,
}

/// Where a platform is.
enum Transport {
    /// At the other end of an inherited socket.
    Inherited(Rc<Mutex<InheritedSocket>>),
    /// At the address in the sidecar's configuration.
    Tcp(SocketAddr),
}

/// The state of an inherited socket.
#[derive(Default)]
enum InheritedSocket {
    /// Not registered with the runtime yet, which did not exist when it was handed over. The first question registers it.
    Unregistered(StdUnixStream),
    /// In use.
    Open(UnixStream),
    /// Closed, because an answer did not come whole.
    #[default]
    Closed,
}

impl InheritedSocket {
    /// Takes the stream out. The socket stays closed unless the caller puts the stream back.
    fn take(&mut self) -> io::Result<UnixStream> {
        match std::mem::take(self) {
            Self::Unregistered(socket) => {
                socket.set_nonblocking(true)?;
                UnixStream::from_std(socket)
            }
            Self::Open(stream) => Ok(stream),
            Self::Closed => Err(io::ErrorKind::NotConnected.into()),
        }
    }
}

impl std::fmt::Debug for Platform {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Platform(…)")
    }
}

/// A platform's answer. Unknown fields are refused: they may narrow the credential's use, which nothing here would enforce.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CredentialAnswer {
    /// The provider that it is about, if the platform says so.
    #[serde(default)]
    provider: Option<String>,
    fields: BTreeMap<String, Zeroizing<String>>,
}

impl Platform {
    /// Returns the platform at the other end of an inherited socket.
    pub(crate) fn inherited(socket: StdUnixStream, token: Secret) -> Self {
        Self {
            token,
            transport: Transport::Inherited(Rc::new(Mutex::new(InheritedSocket::Unregistered(socket)))),
        }
    }

    /// Returns the platform at an address.
    pub(crate) fn at(address: PlatformAddress, token: RunToken) -> Self {
        Self { token: token.into_secret(), transport: Transport::Tcp(address.socket()) }
    }

    /// Returns whether the platform is the process that started this one.
    pub(crate) fn is_inherited(&self) -> bool {
        matches!(self.transport, Transport::Inherited(_))
    }

    /// Asks for a provider's credential.
    pub(crate) async fn credential(&self, provider: &ProviderId) -> Result<Credential, FetchError> {
        let (status, body) = self.ask("GET", &format!("/internal/credentials/{provider}")).await?;
        match status {
            200 => {}
            404 => return Err(FetchError::Absent),
            500 if self.is_inherited() => return Err(FetchError::Unusable),
            other => return Err(FetchError::Refused(other)),
        }
        let answer: CredentialAnswer = serde_json::from_slice(&body)
            .map_err(|_| FetchError::Malformed("it is not the JSON it should be"))?;
        if answer.provider.is_some_and(|named| named != provider.as_str()) {
            return Err(FetchError::Malformed("it is about another provider"));
        }
        let mut credential = Credential::default();
        for (name, value) in answer.fields {
            let name = name.parse().map_err(|_| FetchError::Malformed("a field has no proper name"))?;
            let value = Value::new(Secret::new(value.as_bytes().to_vec()))
                .map_err(|_| FetchError::Malformed("a value is empty, too long or holds a line break"))?;
            credential.set(name, value);
        }
        Ok(credential)
    }

    /// Asks for earlier runs.
    pub(crate) async fn run_history(&self, query: &str) -> Result<(u16, Vec<u8>), FetchError> {
        let question = if query.is_empty() { String::new() } else { format!("?{query}") };
        let (status, body) = self.ask("GET", &format!("/internal/run-history{question}")).await?;
        Ok((status, body.to_vec()))
    }

    /// Reports that an upstream refused a fresh credential. A failure to report is ignored: there is nobody to tell.
    pub(crate) async fn report_refused(&self, provider: &ProviderId) {
        let _ = self.ask("POST", &format!("/internal/credentials/{provider}/refused")).await;
    }

    /// Sends one question, and returns the status and body of its answer.
    async fn ask(&self, method: &str, path: &str) -> Answer {
        let mut request = Zeroizing::new(
            format!(
                "{method} {path} HTTP/1.1\r\nhost: platform\r\ncontent-length: 0\r\nauthorization: Bearer "
            )
            .into_bytes(),
        );
        request.extend(self.token.expose());
        request.extend(b"\r\n\r\n");
        match &self.transport {
            Transport::Inherited(socket) => {
                // A task of its own: only their order tells answers apart, so the answer to a question whose asker has given up
                // is still read to its end before the next question is sent.
                let (asker, answer) = oneshot::channel();
                tokio::task::spawn_local(answer_over(Rc::clone(socket), request, asker));
                let answer = tokio::time::timeout(TIMEOUT, answer).await;
                answer.map_err(timed_out)?.map_err(io::Error::other)?
            }
            Transport::Tcp(address) => {
                let exchange = async {
                    let mut stream = upstream::dial_platform(*address).await?;
                    stream.write_all(&request).await?;
                    read_answer(&mut stream).await
                };
                tokio::time::timeout(TIMEOUT, Box::pin(exchange)).await.map_err(timed_out)?
            }
        }
    }
}

fn timed_out(_: tokio::time::error::Elapsed) -> io::Error {
    io::ErrorKind::TimedOut.into()
}

/// A status and a body, or why there is none.
type Answer = Result<(u16, Zeroizing<Vec<u8>>), FetchError>;

/// Asks one question over an inherited socket when its turn comes. One whose asker has given up by then is not asked.
async fn answer_over(
    socket: Rc<Mutex<InheritedSocket>>,
    request: Zeroizing<Vec<u8>>,
    mut asker: oneshot::Sender<Answer>,
) {
    let mut socket = tokio::select! {
        biased;
        () = asker.closed() => return,
        socket = socket.lock() => socket,
    };
    let _ = asker.send(ask_over(&mut socket, &request).await);
}

/// Sends one question over an inherited socket and reads its answer. The stream is put back only after a whole answer, so any other error
/// closes the socket, and no answer is ever taken for that of another question.
async fn ask_over(socket: &mut InheritedSocket, request: &[u8]) -> Answer {
    let mut stream = socket.take()?;
    stream.write_all(request).await?;
    let answer = read_answer(&mut stream).await;
    if matches!(answer, Ok(_) | Err(FetchError::TooLarge)) {
        *socket = InheritedSocket::Open(stream);
    }
    answer
}

/// Reads an answer, which must declare its length. The platform is trusted, so this is no hardened HTTP parser.
async fn read_answer(stream: &mut (impl AsyncRead + Unpin)) -> Answer {
    let mut read = BytesMut::with_capacity(8 * 1024);
    loop {
        let mut fields = [httparse::EMPTY_HEADER; 32];
        let mut response = httparse::Response::new(&mut fields);
        let parsed = response.parse(&read).map_err(|_| FetchError::Malformed("its head cannot be read"))?;
        if let httparse::Status::Complete(head) = parsed {
            let length = response.headers.iter().find(|h| h.name.eq_ignore_ascii_case("content-length"));
            let length =
                length.and_then(|h| std::str::from_utf8(h.value).ok()).and_then(|t| t.parse::<usize>().ok());
            let length = length.ok_or(FetchError::Malformed("it has no usable length"))?;
            let status = response.code.unwrap_or(0);
            if length > LARGEST {
                // The next answer begins behind it.
                let left = length.saturating_sub(read.len() - head) as u64;
                zeroize::Zeroize::zeroize(&mut read[..]);
                let dropped = tokio::io::copy(&mut stream.take(left), &mut tokio::io::sink()).await?;
                return Err(if dropped == left { FetchError::TooLarge } else { ended() });
            }
            while read.len() < head + length {
                fill(stream, &mut read).await?;
            }
            let body = Zeroizing::new(read[head..head + length].to_vec());
            zeroize::Zeroize::zeroize(&mut read[..]);
            return Ok((status, body));
        }
        if read.len() > LARGEST {
            return Err(FetchError::Malformed("its head is too large"));
        }
        fill(stream, &mut read).await?;
    }
}

/// Reads more of an answer.
async fn fill(stream: &mut (impl AsyncRead + Unpin), read: &mut BytesMut) -> Result<(), FetchError> {
    if stream.read_buf(read).await? == 0 {
        return Err(ended());
    }
    Ok(())
}

fn ended() -> FetchError {
    io::Error::from(io::ErrorKind::UnexpectedEof).into()
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use tokio::task::LocalSet;

    use super::*;

    #[tokio::test(flavor = "current_thread")]
    async fn those_who_ask_first_at_once_are_all_answered() {
        const ASKERS: usize = 8;
        let (ours, mut theirs) = StdUnixStream::pair().unwrap();
        let platform = Rc::new(Platform::inherited(ours, Secret::from_text("token".into())));
        let answers = std::thread::spawn(move || {
            for _ in 0..ASKERS {
                let mut question = Vec::new();
                while !question.ends_with(b"\r\n\r\n") {
                    let mut octet = [0];
                    theirs.read_exact(&mut octet).unwrap();
                    question.extend(octet);
                }
                theirs.write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n").unwrap();
            }
        });
        let asked = Rc::new(std::cell::Cell::new(0));
        let local = LocalSet::new();
        for _ in 0..ASKERS {
            let (platform, asked) = (Rc::clone(&platform), Rc::clone(&asked));
            local.spawn_local(async move {
                let answer = platform.credential(&"one".parse().unwrap()).await;
                assert!(matches!(answer, Err(FetchError::Absent)), "{answer:?}");
                asked.set(asked.get() + 1);
            });
        }
        local.await;
        answers.join().unwrap();
        assert_eq!(asked.get(), ASKERS);
    }

    #[tokio::test(flavor = "current_thread", start_paused = true)]
    async fn nobody_is_asked_for_those_who_have_given_up() {
        let (ours, theirs) = StdUnixStream::pair().unwrap();
        theirs.set_nonblocking(true).unwrap();
        let platform = Rc::new(Platform::inherited(ours, Secret::from_text("token".into())));
        let asks = |name: &'static str| {
            let platform = Rc::clone(&platform);
            async move { platform.credential(&name.parse().unwrap()).await.unwrap_err() }
        };
        let asked = async {
            let late: Vec<_> = (0..100).map(|_| tokio::task::spawn_local(asks("late"))).collect();
            for late in late {
                assert!(matches!(late.await.unwrap(), FetchError::Unreachable(_)));
            }
            let mut theirs = UnixStream::from_std(theirs).unwrap();
            let answers = async {
                let mut asked = Vec::new();
                while asked.last() != Some(&true) {
                    let mut question = Vec::new();
                    while !question.ends_with(b"\r\n\r\n") {
                        theirs.read_buf(&mut question).await.unwrap();
                    }
                    asked.push(question.starts_with(b"GET /internal/credentials/live "));
                    theirs.write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n").await.unwrap();
                }
                asked
            };
            let (error, asked) = tokio::join!(asks("live"), answers);
            assert!(matches!(error, FetchError::Absent), "{error}");
            // The one that was under way when its asker gave up, and no other of those.
            assert_eq!(asked, [false, true]);
        };
        LocalSet::new().run_until(asked).await;
    }

    #[tokio::test(flavor = "current_thread")]
    async fn an_answer_that_is_too_large_takes_no_other_with_it() {
        let (ours, mut theirs) = StdUnixStream::pair().unwrap();
        let platform = Platform::inherited(ours, Secret::from_text("token".into()));
        let lengths = [LARGEST + 1, 2 * LARGEST, LARGEST];
        let answers = std::thread::spawn(move || {
            for length in lengths {
                let mut question = Vec::new();
                while !question.ends_with(b"\r\n\r\n") {
                    let mut octet = [0];
                    theirs.read_exact(&mut octet).unwrap();
                    question.extend(octet);
                }
                let mut answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n").into_bytes();
                answer.extend(b"{\"fields\":{\"a\":\"b\"}}");
                let head = answer.len() - b"{\"fields\":{\"a\":\"b\"}}".len();
                answer.resize(head + length, b' ');
                theirs.write_all(&answer).unwrap();
            }
        });
        let asked = async {
            for length in lengths {
                let answer = platform.credential(&"one".parse().unwrap()).await;
                match answer {
                    Ok(credential) => assert!(length == LARGEST && credential.field("a").is_some()),
                    Err(error) => {
                        assert!(length > LARGEST && matches!(error, FetchError::TooLarge), "{error}")
                    }
                }
            }
        };
        LocalSet::new().run_until(asked).await;
        answers.join().unwrap();
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_link_that_lost_an_answer_is_closed() {
        let (ours, _theirs) = StdUnixStream::pair().unwrap();
        let mut socket = InheritedSocket::Unregistered(ours);
        let stream = socket.take().unwrap();
        assert_eq!(socket.take().unwrap_err().kind(), io::ErrorKind::NotConnected);
        socket = InheritedSocket::Open(stream);
        assert!(socket.take().is_ok());
    }
}
