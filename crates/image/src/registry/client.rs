//! Sends requests to a registry: follows redirects under rules, and bounds every wait and every answer.

use std::io;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;

use super::head::UntilHead;
use super::request::{Connect, Transport};
use super::url::Url;
use crate::error::Error;

/// How long a connection with its TLS handshake may take, and how long a registry may be silent.
const CONNECT: Duration = Duration::from_secs(15);
const SILENCE: Duration = Duration::from_secs(60);
/// How many redirects are followed: registries redirect to a store of blobs, which seldom redirects further.
const MOST_REDIRECTS: usize = 5;
/// The largest head of an answer, and the maximum number of its fields.
const LARGEST_HEAD: usize = 64 << 10;
const MOST_FIELDS: usize = 128;

/// An HTTP client for a registry.
pub(super) struct Client<'a> {
    outside: &'a dyn Connect,
}

/// An answer whose body has not been read.
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    /// The address that answered, if redirects led to another origin.
    pub(super) other: Option<Url>,
    body: Incoming,
}

/// A request without a body.
#[derive(Clone)]
pub(super) struct Ask {
    pub(super) url: Url,
    pub(super) accept: &'static str,
    /// The `Authorization`, sent to the first origin only.
    pub(super) authorization: Option<HeaderValue>,
    /// The offset of the first octet wanted.
    pub(super) from: u64,
}

/// Why a request got no answer.
pub(super) enum Stopped {
    /// A permanent error.
    Refused(Error),
    /// The connection failed; another may succeed.
    Broken(Error),
}

impl From<Stopped> for Error {
    fn from(stopped: Stopped) -> Self {
        match stopped {
            Stopped::Refused(error) | Stopped::Broken(error) => error,
        }
    }
}

/// How many attempts a request gets, and the longest pause between them.
const ATTEMPTS: u32 = 6;
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// The growing pause between attempts.
pub(super) struct Pause {
    attempts: u32,
    next: Duration,
}

impl Default for Pause {
    fn default() -> Self {
        Self { attempts: 1, next: Duration::from_millis(500) }
    }
}

impl Pause {
    /// Waits before the next attempt: the growing pause, or longer if the registry asks for that. Returns `error` after the last attempt.
    pub(super) async fn or_give_up(&mut self, wish: Option<Duration>, error: Error) -> Result<(), Error> {
        if self.attempts == ATTEMPTS {
            return Err(error);
        }
        self.attempts += 1;
        tokio::time::sleep(self.length(wish)).await;
        self.next *= 2;
        Ok(())
    }

    fn length(&self, wish: Option<Duration>) -> Duration {
        // A wish for none would use up all attempts at once.
        wish.unwrap_or_default().max(self.next).min(LONGEST_PAUSE)
    }
}

/// Whether a status is temporary.
pub(super) fn is_busy(status: StatusCode) -> bool {
    status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS
}

impl<'a> Client<'a> {
    pub(super) fn new(outside: &'a dyn Connect) -> Self {
        Self { outside }
    }

    /// Sends a request, and follows redirects.
    pub(super) async fn get(&self, ask: &Ask) -> Result<Answer, Stopped> {
        let (asked, mut ask) = (&ask.url, ask.clone());
        for _ in 0..=MOST_REDIRECTS {
            let mut answer = self.send(&ask).await.map_err(|source| match source.kind() {
                // A malformed answer, a wrong certificate, a proxy that refuses, a closed port: permanent.
                io::ErrorKind::InvalidData
                | io::ErrorKind::PermissionDenied
                | io::ErrorKind::ConnectionRefused => Stopped::Refused(failed(&ask.url, source)),
                _ => Stopped::Broken(failed(&ask.url, source)),
            })?;
            if !answer.status.is_redirection() {
                answer.other = Some(ask.url).filter(|url| !url.same_place(asked));
                return Ok(answer);
            }
            let location = answer.headers.get(header::LOCATION).and_then(|l| l.to_str().ok());
            let next = location.and_then(|location| ask.url.join(location));
            let refuse = |why| Stopped::Refused(refused(&ask.url, why));
            let next = next.ok_or_else(|| refuse("it sends to an address that is none"))?;
            if (ask.url.transport, next.transport) == (Transport::Tls, Transport::Plain) {
                return Err(refuse("it sends from TLS to an address in the clear"));
            }
            if !next.same_place(&ask.url) {
                ask.authorization = None;
            }
            ask.url = next;
        }
        Err(Stopped::Refused(refused(&ask.url, "it sends from one address to another without end")))
    }

    async fn send(&self, ask: &Ask) -> io::Result<Answer> {
        let stream =
            within(CONNECT, self.outside.connect(&ask.url.host, ask.url.port, ask.url.transport)).await??;
        let (bounded, bound) = UntilHead::new(stream);
        let mut builder = http1::Builder::new();
        builder.max_buf_size(LARGEST_HEAD).max_headers(MOST_FIELDS);
        let (mut sender, connection) =
            builder.handshake::<_, Empty<Bytes>>(TokioIo::new(bounded)).await.map_err(io::Error::other)?;
        // The task ends with the body, or when the answer is dropped.
        tokio::task::spawn_local(async move {
            let _ = connection.await;
        });
        let mut request = Request::builder().method(Method::GET).uri(&ask.url.target);
        if let Some(headers) = request.headers_mut() {
            let field = |text: String| HeaderValue::try_from(text).map_err(io::Error::other);
            headers.insert(header::HOST, field(ask.url.authority())?);
            headers.insert(header::USER_AGENT, HeaderValue::from_static("lockgate"));
            headers.insert(header::ACCEPT, HeaderValue::from_static(ask.accept));
            if let Some(authorization) = &ask.authorization {
                headers.insert(header::AUTHORIZATION, authorization.clone());
            }
            if ask.from > 0 {
                headers.insert(header::RANGE, field(format!("bytes={}-", ask.from))?);
            }
        }
        let request = request.body(Empty::new()).map_err(io::Error::other)?;
        let answer = within(SILENCE, sender.send_request(request)).await?.map_err(|error| {
            let kind = if error.is_parse() { io::ErrorKind::InvalidData } else { io::ErrorKind::Other };
            io::Error::new(kind, error)
        })?;
        bound.lift();
        let (parts, body) = Response::into_parts(answer);
        Ok(Answer { status: parts.status, headers: parts.headers, other: None, body })
    }
}

impl Answer {
    /// Returns the next octets of the body; `None` at its end.
    pub(super) async fn next(&mut self) -> io::Result<Option<Bytes>> {
        loop {
            match within(SILENCE, self.body.frame()).await? {
                None => return Ok(None),
                Some(Err(error)) => return Err(io::Error::other(error)),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(data));
                    }
                }
            }
        }
    }

    /// Reads the whole body, of at most `most` octets.
    pub(super) async fn read(mut self, most: u64) -> io::Result<Vec<u8>> {
        let mut all = Vec::new();
        while let Some(data) = self.next().await? {
            if (all.len() + data.len()) as u64 > most {
                let why = format!("its answer is larger than {most} octets");
                return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
            }
            all.extend_from_slice(&data);
        }
        Ok(all)
    }

    /// Returns the address that answered, of those that a request for `asked` was sent to.
    pub(super) fn place<'b>(&'b self, asked: &'b Url) -> &'b Url {
        self.other.as_ref().unwrap_or(asked)
    }

    /// Returns the error for a status that is no success, in the name of the host that answered.
    pub(super) fn refusal(&self, asked: &Url) -> Error {
        let mut why = format!("it answered {}", self.status.as_u16());
        if self.other.is_some() {
            why += &format!("; the registry, {}, sends there for it", asked.authority());
        }
        refused(self.place(asked), &why)
    }

    /// Returns how long the registry asks the client to wait.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        self.text(header::RETRY_AFTER).and_then(|text| text.parse().ok()).map(Duration::from_secs)
    }

    /// Returns a header field's value, if it is text.
    pub(super) fn text(&self, name: HeaderName) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }
}

async fn within<T>(time: Duration, work: impl Future<Output = T>) -> io::Result<T> {
    tokio::time::timeout(time, work).await.map_err(|_| {
        io::Error::new(io::ErrorKind::TimedOut, format!("nothing came for {} s", time.as_secs()))
    })
}

pub(super) fn failed(url: &Url, source: io::Error) -> Error {
    Error::Registry { address: format!("{url:?}"), source }
}

pub(super) fn refused(url: &Url, why: &str) -> Error {
    failed(url, io::Error::other(why.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wish_makes_a_pause_longer_and_not_shorter() {
        let pause = Pause { attempts: 1, next: Duration::from_secs(4) };
        for (wish, seconds) in [(None, 4), (Some(0), 4), (Some(6), 6), (Some(u64::MAX), 30)] {
            let length = pause.length(wish.map(Duration::from_secs));
            assert_eq!(length, Duration::from_secs(seconds), "{wish:?}");
        }
    }
}
