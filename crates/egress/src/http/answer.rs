//! Answers to the agent: a head and a body, in the version of HTTP that it speaks.

use std::cell::Cell;
use std::io::{self, Write};
use std::net::IpAddr;
use std::rc::Rc;
use std::task::{Context, Waker};

use bytes::Bytes;
use h2::server::SendResponse;
use http::StatusCode;

use super::fields::Fields;
use super::grpc_status::RefusalForm;
use super::head::{BodyLength, Version};
use super::outgoing::{Outgoing, TransferCoding, write_within_limit};
use super::problem::{After, Reply};
use super::response::{ResponseBody, ResponseHead};
use super::stream::AgentWriter;
use super::version2;

/// An answer that has not begun, and where it goes.
pub(crate) enum Answer<'a> {
    /// To a connection of HTTP/1, which may carry more requests after it.
    Version1 { writer: &'a mut AgentWriter, version: Version, keep_alive: bool, extent: Extent },
    /// To a stream of HTTP/2.
    Version2 { stream: SendResponse<Bytes>, extent: Extent, refusals: RefusalForm },
}

/// The status of a server that demands another protocol (RFC 9110 §15.5.22).
const UPGRADE_REQUIRED: u16 = 426;

/// How much of an answer the agent asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// Head and body.
    Whole,
    /// Head and body, and the trailers behind it.
    WithTrailers,
    /// The head alone, by HEAD: its answer has no body, whatever the head says (RFC 9110 §9.3.2).
    HeadOnly,
}

impl Extent {
    /// Every agent of HTTP/2 can take trailers; over HTTP/1.1 whoever takes them says so (RFC 9110 §6.5.1).
    pub(super) fn asked_by(method: &str, version: Version, fields: &Fields) -> Self {
        match version {
            _ if method == "HEAD" => Self::HeadOnly,
            Version::Http2 => Self::WithTrailers,
            Version::Http10 | Version::Http11 if says_to_take_trailers(version, fields) => Self::WithTrailers,
            Version::Http10 | Version::Http11 => Self::Whole,
        }
    }
}

/// Whether an agent says that it takes the trailers of an answer (RFC 9110 §10.1.4). HTTP/1.0 has none.
fn says_to_take_trailers(version: Version, fields: &Fields) -> bool {
    version != Version::Http10 && fields.has_token("te", "trailers")
}

/// An answer that has begun.
pub(crate) struct Begun<'a> {
    pub(crate) body: Outgoing<'a, AgentWriter>,
    pub(crate) extent: Extent,
    /// How the agent takes it that the answer broke off.
    pub(crate) refusals: RefusalForm,
    /// Whether the connection goes on: only if the agent can tell where the answer ends, and has sent its whole request.
    pub(crate) after: After,
}

impl<'a> Answer<'a> {
    /// Passes on an interim response (100 Continue, 103 Early Hints).
    pub(crate) async fn interim(&mut self, head: &ResponseHead) -> io::Result<()> {
        match self {
            Self::Version1 { writer, version, .. } => {
                if *version == Version::Http10 {
                    return Ok(()); // HTTP/1.0 has none (RFC 9110 §15.2)
                }
                let mut out = status_and_fields(head);
                out.extend(b"\r\n");
                write_within_limit(*writer, &out).await
            }
            Self::Version2 { stream, .. } => {
                let mut response =
                    http::Response::builder().status(head.status).body(()).map_err(io::Error::other)?;
                *response.headers_mut() = version2::header_map(&head.fields)?;
                stream.send_informational(response).map_err(version2::broken)
            }
        }
    }

    /// Sends 100 Continue to an agent that waits for it (RFC 9110 §10.1.1).
    pub(crate) async fn go_on(&mut self) -> io::Result<()> {
        self.interim(&ResponseHead::go_on()).await
    }

    /// Completes when the agent resets the stream of its request. Never completes over HTTP/1: an agent that sends no more may still
    /// read.
    pub(crate) async fn abandoned(&mut self) -> io::Error {
        match self {
            Self::Version1 { .. } => std::future::pending().await,
            Self::Version2 { stream, .. } => {
                version2::abandoned(std::future::poll_fn(|cx| stream.poll_reset(cx)).await)
            }
        }
    }

    /// Whether the agent has closed its connection of HTTP/1. That is asked where a request had to wait and is to cost something.
    pub(crate) fn has_hung_up(&self) -> bool {
        matches!(self, Self::Version1 { writer, .. } if writer.has_hung_up())
    }

    /// Returns the address that the agent's connection of HTTP/1 was made to, if it came over TCP.
    pub(super) fn local_address(&self) -> Option<IpAddr> {
        match self {
            Self::Version1 { writer, .. } => writer.local_address(),
            Self::Version2 { .. } => None,
        }
    }

    /// Returns what tells this answer, while it has not begun, whether some of the request's body is still to come. Over HTTP/2 that makes
    /// no difference.
    pub(super) fn body_comes(&self) -> Rc<Cell<bool>> {
        match self {
            Self::Version1 { writer, .. } => Rc::clone(writer.body_comes()),
            Self::Version2 { .. } => Rc::default(),
        }
    }

    /// Returns the fields that an answer keeps though they are of its connection: what announces trailers that are passed on (RFC 9110
    /// §6.6.2), and what the client should switch to, of which HTTP/2 knows nothing (§15.5.22).
    fn kept(&self, status: u16) -> &'static [&'static str] {
        match self {
            Self::Version1 { .. } if status == UPGRADE_REQUIRED => &["upgrade"],
            Self::Version1 { extent: Extent::WithTrailers, .. }
            | Self::Version2 { extent: Extent::WithTrailers, .. } => &["trailer"],
            Self::Version1 { .. } | Self::Version2 { .. } => &[],
        }
    }

    /// Begins the answer. Removes the hop-by-hop fields from the head, and frames the body anew.
    pub(crate) fn begin(self, head: &mut ResponseHead, body: ResponseBody) -> io::Result<Begun<'a>> {
        let length = head.fields.text("content-length").map(str::to_owned);
        head.fields.leave_hop_but(self.kept(head.status));
        match self {
            Self::Version1 { writer, version, keep_alive, extent } => {
                let (coding, framed) = match (body, version) {
                    (ResponseBody::Framed(BodyLength::None | BodyLength::Sized(_)), _) => {
                        (TransferCoding::Identity, true)
                    }
                    (_, Version::Http10) => (TransferCoding::Identity, false),
                    _ => (TransferCoding::Chunked, true),
                };
                // What is left of the request's body would be taken for the next request (RFC 9112 §9.6).
                let goes_on = keep_alive && framed && !writer.body_comes().get();
                let after = if goes_on { After::KeepAlive } else { After::Close };
                if !framed {
                    writer.reset_unless_ended()?;
                }
                let mut waiting = status_and_fields(head);
                match (coding, length) {
                    (TransferCoding::Chunked, _) => waiting.extend(b"transfer-encoding: chunked\r\n"),
                    (TransferCoding::Identity, Some(length)) if framed => {
                        waiting.extend(format!("content-length: {length}\r\n").bytes());
                    }
                    _ => {}
                }
                if head.status == UPGRADE_REQUIRED && head.fields.has("upgrade") {
                    waiting.extend(b"connection: upgrade\r\n");
                }
                if after == After::Close {
                    waiting.extend(b"connection: close\r\n");
                }
                waiting.extend(b"\r\n");
                let body = Outgoing::Version1 { writer, coding, waiting };
                Ok(Begun { body, extent, refusals: RefusalForm::Document, after })
            }
            Self::Version2 { mut stream, extent, refusals } => {
                if let Some(length) = length {
                    head.fields.push("content-length", length.as_bytes());
                }
                let mut response =
                    http::Response::builder().status(head.status).body(()).map_err(io::Error::other)?;
                *response.headers_mut() = version2::header_map(&head.fields)?;
                let none = body == ResponseBody::Framed(BodyLength::None);
                let sent = stream.send_response(response, none).map_err(|error| {
                    let reset = stream.poll_reset(&mut Context::from_waker(Waker::noop()));
                    version2::untaken(version2::broken(error), reset)
                })?;
                let body = if none { Outgoing::Nothing } else { Outgoing::Version2(sent, None) };
                Ok(Begun { body, extent, refusals, after: After::KeepAlive })
            }
        }
    }

    /// Answers 101: from here on the connection carries another protocol.
    pub(crate) async fn switch(self, head: &ResponseHead) -> io::Result<()> {
        let Self::Version1 { writer, .. } = self else { return Err(io::ErrorKind::Unsupported.into()) };
        let mut out = status_and_fields(head);
        out.extend(b"\r\n");
        write_within_limit(writer, &out).await
    }

    /// Sends a reply of the sidecar's own.
    pub(crate) async fn reply(self, reply: Reply, after: After) -> io::Result<After> {
        match self {
            Self::Version1 { writer, keep_alive, extent, .. } => {
                let after = if keep_alive { after } else { After::Close };
                let octets = match extent {
                    Extent::Whole | Extent::WithTrailers => reply.to_version_1(after),
                    Extent::HeadOnly => reply.head_1(after),
                };
                write_within_limit(writer, &octets).await?;
                Ok(after)
            }
            Self::Version2 { mut stream, extent, refusals } => {
                let reply = refusals.of(reply);
                let status = StatusCode::from_u16(reply.status).map_err(io::Error::other)?;
                let mut response = http::Response::new(());
                *response.status_mut() = status;
                *response.headers_mut() = version2::header_map(&reply.fields)?;
                let ended = extent == Extent::HeadOnly || reply.body.is_empty();
                let mut body = stream.send_response(response, ended).map_err(version2::broken)?;
                if !ended {
                    body.send_data(reply.body.into(), true).map_err(version2::broken)?;
                }
                Ok(After::KeepAlive)
            }
        }
    }
}

/// The room for a head, with a small body behind it that is written at once.
const HEAD_AND_SMALL_BODY: usize = 2048;

fn status_and_fields(head: &ResponseHead) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEAD_AND_SMALL_BODY);
    // A `Vec` takes everything.
    let _ = write!(out, "HTTP/1.1 {} {}\r\n", head.status, head.reason);
    let fields: &Fields = &head.fields;
    fields.write(&mut out);
    out
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::net::UnixStream;

    use super::*;
    use crate::http::stream::AgentStream;

    /// Waits far longer than a reader may take.
    async fn patiently<T>(work: impl Future<Output = io::Result<T>>) -> Option<io::ErrorKind> {
        let ended = tokio::time::timeout(Duration::from_secs(600), work).await;
        ended.ok().and_then(|ended| ended.err().map(|error| error.kind()))
    }

    /// A connection that takes nothing until its other end, which is returned as well, reads.
    async fn full() -> (AgentWriter, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        while ours.writable().await.is_ok() && ours.try_write(&[0; 4096]).is_ok() {}
        (AgentStream::Unix(ours).split().1, theirs)
    }

    #[test]
    fn over_http_2_trailers_are_taken_unsaid() {
        let te = |value: &str| Fields::from_iter([("te", value.as_bytes())]);
        for (version, plain, told) in [
            (Version::Http2, Extent::WithTrailers, Extent::WithTrailers),
            (Version::Http11, Extent::Whole, Extent::WithTrailers),
            (Version::Http10, Extent::Whole, Extent::Whole),
        ] {
            assert_eq!(Extent::asked_by("GET", version, &te("gzip")), plain, "{version:?}");
            assert_eq!(Extent::asked_by("GET", version, &te("gzip, trailers")), told, "{version:?}");
            assert_eq!(Extent::asked_by("HEAD", version, &te("trailers")), Extent::HeadOnly, "{version:?}");
        }
    }

    #[tokio::test]
    async fn what_an_answer_needs_of_the_fields_of_its_connection_is_passed_on() {
        for (status, extent, kept) in [
            (200, Extent::Whole, [false, false, false]),
            (200, Extent::WithTrailers, [true, false, false]),
            (426, Extent::Whole, [false, true, true]),
        ] {
            let (ours, _theirs) = UnixStream::pair().unwrap();
            let mut writer = AgentStream::Unix(ours).split().1;
            let fields =
                [("connection", &b"upgrade, x-hop"[..]), ("upgrade", b"TLS/1.2"), ("trailer", b"x-sum")];
            let fields = Fields::from_iter(fields);
            let mut head = ResponseHead::go_on();
            (head.status, head.fields) = (status, fields);
            let answer =
                Answer::Version1 { writer: &mut writer, version: Version::Http11, keep_alive: true, extent };
            let begun = answer.begin(&mut head, ResponseBody::Framed(BodyLength::Chunked)).unwrap();
            let Outgoing::Version1 { waiting, .. } = begun.body else { unreachable!("it is HTTP/1") };
            let text = String::from_utf8(waiting).unwrap();
            let lines = ["trailer: x-sum\r\n", "\r\nupgrade: TLS/1.2\r\n", "connection: upgrade\r\n"];
            assert_eq!(lines.map(|line| text.contains(line)), kept, "{text}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_nobody_reads_is_given_up() {
        let timed_out = Some(io::ErrorKind::TimedOut);
        let (mut writer, _theirs) = full().await;
        assert_eq!(patiently(answer_to(&mut writer).go_on()).await, timed_out);
        let (mut writer, _theirs) = full().await;
        assert_eq!(patiently(answer_to(&mut writer).switch(&ResponseHead::go_on())).await, timed_out);
        let (mut writer, _theirs) = full().await;
        let reply = Reply::new(403, Fields::default(), Vec::new());
        assert_eq!(patiently(answer_to(&mut writer).reply(reply, After::KeepAlive)).await, timed_out);
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_written_behind_an_interim_answer_that_was_given_up() {
        let (mut writer, theirs) = full().await;
        let soon = Duration::from_secs(1);
        assert!(tokio::time::timeout(soon, answer_to(&mut writer).go_on()).await.is_err());
        while theirs.readable().await.is_ok() && theirs.try_read(&mut [0; 4096]).is_ok() {}
        let reply = Reply::new(504, Fields::default(), Vec::new());
        assert_eq!(
            patiently(answer_to(&mut writer).reply(reply, After::Close)).await,
            Some(io::ErrorKind::BrokenPipe)
        );
    }

    fn answer_to(writer: &mut AgentWriter) -> Answer<'_> {
        Answer::Version1 { writer, version: Version::Http11, keep_alive: true, extent: Extent::Whole }
    }
}
