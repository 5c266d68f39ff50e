//! The platform, as a sidecar knows it: whom to ask for a credential. One protocol for all of them: HTTP, a run token as
//! bearer, `/internal/credentials/{providerId}` (S0.23, S0.47).

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
use tokio::sync::Mutex;
use zeroize::Zeroizing;

use crate::credential_config::{PlatformAddress, RunToken};
use crate::upstream;

/// How long an answer may take.
const ANSWER: Duration = Duration::from_secs(10);
/// The largest answer.
const LARGEST: usize = 256 * 1024;

/// Why there is no credential.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FetchError {
    /// The platform has none.
    #[error("there is none")]
    Absent,
    /// The platform said no.
    #[error("the platform answered {0}")]
    Refused(u16),
    /// There is one that cannot be used; whoever started the sidecar is told why.
    #[error("what is stored cannot be used; whoever started this was told why")]
    Unusable,
    /// The platform could not be asked.
    #[error("the platform cannot be reached: {0}")]
    Unreachable(#[from] io::Error),
    /// The answer is not what it should be. Its text is not repeated: it may hold the credential.
    #[error("the platform's answer cannot be used: {0}")]
    Malformed(&'static str),
}

/// A platform, and what gives a right to ask it.
pub(crate) struct Platform {
    token: Secret,
    transport: Transport,
}

/// Where a platform is.
enum Transport {
    /// At the other end of an inherited socket.
    Inherited(Rc<Mutex<Link>>),
    /// At an address that whoever configured the sidecar gave.
    Tcp(SocketAddr),
}

/// An inherited socket.
#[derive(Default)]
enum Link {
    /// Handed over before there was a runtime: it is taken up at the first question.
    Handed(StdUnixStream),
    /// In use.
    Open(UnixStream),
    /// An answer did not come whole.
    #[default]
    Closed,
}

impl Link {
    /// Takes it out, so that it is lost to whoever does not put it back.
    fn take(&mut self) -> io::Result<UnixStream> {
        match std::mem::take(self) {
            Self::Handed(socket) => {
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

/// What the platform answers. What else it says would narrow the credential, and is heeded by nobody here: it is refused.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Answer {
    /// Whose it is, where the platform says so.
    #[serde(default)]
    provider: Option<String>,
    fields: BTreeMap<String, Zeroizing<String>>,
}

impl Platform {
    /// The platform at the other end of an inherited socket.
    pub(crate) fn inherited(socket: StdUnixStream, token: Secret) -> Self {
        Self { token, transport: Transport::Inherited(Rc::new(Mutex::new(Link::Handed(socket)))) }
    }

    /// The platform at an address.
    pub(crate) fn at(address: PlatformAddress, token: RunToken) -> Self {
        Self { token: token.into_secret(), transport: Transport::Tcp(address.socket()) }
    }

    /// Whether it is the process that started this one.
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
        let answer: Answer = serde_json::from_slice(&body)
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

    /// Tells that a fresh credential was refused upstream. There is nobody to tell if it fails.
    pub(crate) async fn report_refused(&self, provider: &ProviderId) {
        let _ = self.ask("POST", &format!("/internal/credentials/{provider}/refused")).await;
    }

    async fn ask(&self, method: &str, path: &str) -> Result<(u16, Zeroizing<Vec<u8>>), FetchError> {
        let mut request = Zeroizing::new(
            format!(
                "{method} {path} HTTP/1.1\r\nhost: platform\r\ncontent-length: 0\r\nauthorization: Bearer "
            )
            .into_bytes(),
        );
        request.extend(self.token.expose());
        request.extend(b"\r\n\r\n");
        match &self.transport {
            Transport::Inherited(link) => {
                // A task of its own: answers are told apart by their order alone, so a question whose asker has given up is
                // still read to the end of its answer before the next one is put.
                let asked = tokio::task::spawn_local(ask_over(Rc::clone(link), request));
                let answer = tokio::time::timeout(ANSWER, asked).await;
                answer.map_err(timed_out)?.map_err(io::Error::other)?
            }
            Transport::Tcp(address) => {
                let exchange = async {
                    let mut link = upstream::dial_platform(*address).await?;
                    link.write_all(&request).await?;
                    read_answer(&mut link).await
                };
                tokio::time::timeout(ANSWER, exchange).await.map_err(timed_out)?
            }
        }
    }
}

fn timed_out(_: tokio::time::error::Elapsed) -> io::Error {
    io::ErrorKind::TimedOut.into()
}

/// One question and its answer. The link is out of reach while it is in use, and comes back only after a whole answer: an
/// error of any kind closes it, so that no answer is ever taken for that of another question.
async fn ask_over(
    link: Rc<Mutex<Link>>,
    request: Zeroizing<Vec<u8>>,
) -> Result<(u16, Zeroizing<Vec<u8>>), FetchError> {
    let mut link = link.lock().await;
    let mut stream = link.take()?;
    stream.write_all(&request).await?;
    let answer = read_answer(&mut stream).await?;
    *link = Link::Open(stream);
    Ok(answer)
}

/// Reads an answer that has a length. The platform is ours and speaks plainly.
async fn read_answer(link: &mut (impl AsyncRead + Unpin)) -> Result<(u16, Zeroizing<Vec<u8>>), FetchError> {
    let mut read = BytesMut::with_capacity(8 * 1024);
    loop {
        let mut fields = [httparse::EMPTY_HEADER; 32];
        let mut response = httparse::Response::new(&mut fields);
        let parsed = response.parse(&read).map_err(|_| FetchError::Malformed("its head cannot be read"))?;
        if let httparse::Status::Complete(head) = parsed {
            let length = response.headers.iter().find(|h| h.name.eq_ignore_ascii_case("content-length"));
            let length =
                length.and_then(|h| std::str::from_utf8(h.value).ok()).and_then(|t| t.parse::<usize>().ok());
            let length =
                length.filter(|l| *l <= LARGEST).ok_or(FetchError::Malformed("it has no usable length"))?;
            let status = response.code.unwrap_or(0);
            while read.len() < head + length {
                fill(link, &mut read).await?;
            }
            let body = Zeroizing::new(read[head..head + length].to_vec());
            zeroize::Zeroize::zeroize(&mut read[..]);
            return Ok((status, body));
        }
        fill(link, &mut read).await?;
    }
}

async fn fill(link: &mut (impl AsyncRead + Unpin), read: &mut BytesMut) -> Result<(), FetchError> {
    if read.len() > LARGEST {
        return Err(FetchError::Malformed("it is too large"));
    }
    if link.read_buf(read).await? == 0 {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
    }
    Ok(())
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

    #[tokio::test(flavor = "current_thread")]
    async fn a_link_that_lost_an_answer_is_closed() {
        let (ours, _theirs) = StdUnixStream::pair().unwrap();
        let mut link = Link::Handed(ours);
        let stream = link.take().unwrap();
        assert_eq!(link.take().unwrap_err().kind(), io::ErrorKind::NotConnected);
        link = Link::Open(stream);
        assert!(link.take().is_ok());
    }
}
