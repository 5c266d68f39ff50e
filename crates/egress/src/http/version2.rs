//! The interface to the HTTP/2 library: conversion of heads and errors, data under flow control, bounds against floods.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use h2::{RecvStream, SendStream};
use http::{HeaderMap, HeaderName, HeaderValue};

use super::abandoned::Abandoned;
use super::backlog::{Backlog, Waiting};
use super::fields::Fields;
use super::http2_limits::{Window, streams_of_one};
use crate::cause::cause;

/// The most concurrent streams of one connection (RFC 9113 §5.1.2).
pub(super) const MOST_STREAMS: u32 = 100;
/// The largest head, in octets as RFC 9113 §6.5.2 counts them, CONTINUATION frames included.
pub(super) const LARGEST_HEAD: u32 = 16 * 1024;
/// The most streams that the peer may reset before they are looked at: more is an attack (CVE-2023-44487).
pub(super) const MOST_RESET: usize = 20;
/// The streams that a connection has reset, and still knows for a second: frames for them that were under way count for nothing.
pub(super) const RESETS_REMEMBERED: usize = 256;
/// The most resets that the library makes of its own accord in the whole life of a connection: for streams beyond those allowed, frames for
/// streams that it no longer knows, and what breaks HTTP/2. Each waits in memory for the other side to read it.
pub(super) const MOST_OWN_RESETS: usize = 512;
/// The windows of one stream and of one connection from an agent.
pub(super) const STREAM_WINDOW: u32 = 256 * 1024;
pub(super) const CONNECTION_WINDOW: u32 = 1024 * 1024;
/// How long the handshake may take.
pub(super) const PREFACE: Duration = Duration::from_secs(10);
/// The most octets that may wait to be written to a stream.
pub(super) const SEND_BUFFER: usize = 64 * 1024;

/// Returns the next piece of data, and gives its window back to the sender.
pub(super) async fn next_data(stream: &mut RecvStream, stalled: Duration) -> io::Result<Option<Bytes>> {
    let next = tokio::time::timeout(stalled, stream.data()).await;
    match next? {
        None => Ok(None),
        Some(Ok(piece)) => {
            stream.flow_control().release_capacity(piece.len()).map_err(broken)?;
            Ok(Some(piece))
        }
        Some(Err(error)) => Err(broken(error)),
    }
}

/// Returns the trailers.
pub(super) async fn trailers(stream: &mut RecvStream) -> io::Result<Fields> {
    let map = stream.trailers().await.map_err(broken)?;
    Ok(map.as_ref().map(fields).unwrap_or_default())
}

/// Sends a piece as the reader's window allows. While it waits for that it counts in the backlog of its session.
pub(super) async fn send_data(
    stream: &mut SendStream<Bytes>,
    mut piece: Bytes,
    stalled: Duration,
    backlog: Option<&Backlog>,
) -> io::Result<()> {
    while !piece.is_empty() {
        stream.reserve_capacity(piece.len());
        if stream.capacity() == 0 {
            let waiting = backlog.map(Backlog::wait);
            let room = tokio::time::timeout(stalled, poll_fn(|cx| stream.poll_capacity(cx))).await;
            match room? {
                Some(Ok(_)) => waiting.into_iter().for_each(Waiting::goes_on),
                Some(Err(error)) => return Err(broken(error)),
                None => return Err(io::ErrorKind::BrokenPipe.into()),
            }
        }
        let room = stream.capacity().min(piece.len());
        stream.send_data(piece.split_to(room), false).map_err(broken)?;
    }
    Ok(())
}

/// Ends a stream, with trailers if there are any.
pub(super) fn end(stream: &mut SendStream<Bytes>, trailers: &Fields) -> io::Result<()> {
    if trailers.is_empty() {
        return stream.send_data(Bytes::new(), true).map_err(broken);
    }
    stream.send_trailers(header_map(trailers)?).map_err(broken)
}

/// Converts fields of HTTP/2 to ours.
pub(super) fn fields(map: &HeaderMap) -> Fields {
    map.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect()
}

/// Converts our fields to those of HTTP/2.
pub(super) fn header_map(fields: &Fields) -> io::Result<HeaderMap> {
    let mut map = HeaderMap::with_capacity(fields.len());
    for (name, value) in fields.iter() {
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(io::Error::other)?;
        let mut value = HeaderValue::from_bytes(value).map_err(io::Error::other)?;
        // Never indexed by the other side (RFC 7541 §7.1.3), and not shown by `Debug`.
        value.set_sensitive(crate::inject::AUTHENTICATION.contains(&name.as_str()));
        map.append(name, value);
    }
    Ok(map)
}

/// The error for a stream that the agent reset, or whose connection has ended.
pub(super) fn abandoned(reset: Result<h2::Reason, h2::Error>) -> io::Error {
    match reset {
        Ok(reason) => Abandoned::because(&reason),
        Err(error) if error.is_library() => Abandoned::by_an_end(&Broken(error)),
        Err(error) => Abandoned::because(&cause(&broken(error))),
    }
}

/// Why an agent's stream took nothing, by what it tells of a reset: the library says of a write only that it cannot be.
pub(super) fn untaken(error: io::Error, reset: Poll<Result<h2::Reason, h2::Error>>) -> io::Error {
    match reset {
        Poll::Ready(reset) => abandoned(reset),
        Poll::Pending => error,
    }
}

/// Whether the upstream did not process a request, so that it may be sent again (RFC 9113 §8.7).
pub(super) fn is_unprocessed(error: &io::Error) -> bool {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<Broken>());
    inner.is_some_and(|Broken(error)| {
        error.is_remote() && (error.is_go_away() || error.reason() == Some(h2::Reason::REFUSED_STREAM))
    })
}

/// Returns the reason for which an upstream reset a stream, unless it tells of no failure of its own.
pub(super) fn reset_by_upstream(error: &io::Error) -> Option<h2::Reason> {
    let Broken(error) = error.get_ref()?.downcast_ref()?;
    let reason = error.reason().filter(|_| error.is_remote() && error.is_reset());
    reason.filter(|reason| ![h2::Reason::NO_ERROR, h2::Reason::CANCEL].contains(reason))
}

/// Whether an error may concern the whole session: it has ended, or is dead. A reset concerns its stream alone.
pub(super) fn is_of_session(error: &io::Error) -> bool {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<Broken>()) {
        Some(Broken(error)) => error.is_go_away(),
        None => {
            matches!(
                error.kind(),
                io::ErrorKind::TimedOut
                    | io::ErrorKind::ConnectionReset
                    | io::ErrorKind::ConnectionAborted
                    | io::ErrorKind::BrokenPipe
                    | io::ErrorKind::UnexpectedEof
            ) && !Abandoned::is(error)
        }
    }
}

/// Whether an error is of the connection that carries HTTP/2.
pub(super) fn is_of_transport(error: &io::Error) -> bool {
    error.get_ref().is_none_or(|inner| !inner.is::<Broken>())
}

/// An error of HTTP/2, shown without the debug data that the other side sent with it: an upstream may quote there what it was sent.
struct Broken(h2::Error);

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0.is_go_away(), self.0.reason()) {
            (true, Some(reason)) if self.0.is_remote() => write!(f, "connection error received: {reason}"),
            (true, Some(reason)) => write!(f, "connection error detected: {reason}"),
            _ => self.0.fmt(f),
        }
    }
}

impl fmt::Debug for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Broken {}

/// Converts an error of HTTP/2.
pub(super) fn broken(error: h2::Error) -> io::Error {
    match error.is_io() {
        // The library keeps an error's kind alone. This one is the kernel's: it gave the connection up.
        true if error.get_io().is_some_and(|error| error.kind() == io::ErrorKind::TimedOut) => {
            rustix::io::Errno::TIMEDOUT.into()
        }
        true => error.into_io().unwrap_or_else(|| io::ErrorKind::ConnectionReset.into()),
        false => io::Error::new(io::ErrorKind::ConnectionReset, Broken(error)),
    }
}

/// Says what an agent's connection did for which the library ended it.
pub(super) fn misdeed(error: &h2::Error) -> String {
    let reason = error.reason();
    let deed = match reason {
        Some(h2::Reason::ENHANCE_YOUR_CALM) => "asks for more of HTTP/2 than the sidecar does",
        _ => "breaks HTTP/2",
    };
    let reason = reason.map_or_else(String::new, |reason| format!(" ({reason})"));
    format!("the connection {deed}{reason}")
}

/// Begins to serve a connection; its window is taken until the [`Window`] is dropped.
pub(super) async fn serve(
    stream: super::stream::AgentStream,
) -> io::Result<(h2::server::Connection<super::stream::AgentStream, Bytes>, Window)> {
    let window = Window::take(CONNECTION_WINDOW);
    let handshake = h2::server::Builder::new()
        .max_concurrent_streams(streams_of_one(MOST_STREAMS))
        .max_header_list_size(LARGEST_HEAD)
        .max_pending_accept_reset_streams(MOST_RESET)
        .max_local_error_reset_streams(Some(MOST_OWN_RESETS))
        .max_concurrent_reset_streams(RESETS_REMEMBERED)
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(window.octets())
        .max_send_buffer_size(SEND_BUFFER)
        .handshake(stream);
    let connection = tokio::time::timeout(PREFACE, handshake).await?.map_err(broken)?;
    Ok((connection, window))
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;

    #[test]
    fn what_may_be_of_a_session_is_told_from_what_is_not() {
        for kind in [io::ErrorKind::TimedOut, io::ErrorKind::ConnectionReset, io::ErrorKind::BrokenPipe] {
            assert!(is_of_session(&kind.into()), "{kind}");
        }
        let refused = io::Error::other("a trailer that may not go on");
        for other in [Abandoned::because(&"hung up"), refused, broken(h2::Reason::INTERNAL_ERROR.into())] {
            assert!(!is_of_session(&other), "{other}");
        }
    }

    #[tokio::test]
    async fn what_the_other_side_says_of_its_going_away_is_not_told() {
        const WORDS: &[u8] = b"bad field authorization: Bearer sk-hush";
        let (ours, mut theirs) = tokio::io::duplex(4096);
        // An empty SETTINGS, then GOAWAY for PROTOCOL_ERROR (RFC 9113 §6.5, §6.8).
        theirs.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await.unwrap();
        let length = u8::try_from(8 + WORDS.len()).unwrap();
        let head = [0, 0, length, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
        theirs.write_all(&[&head[..], WORDS].concat()).await.unwrap();
        let (_requests, connection) = h2::client::handshake(ours).await.unwrap();
        let error = connection.await.unwrap_err();
        assert!(error.to_string().contains("hush"), "the control: {error}");
        let error = broken(error);
        assert!(is_unprocessed(&error) && is_of_session(&error), "{error}");
        for told in [error.to_string(), format!("{error:?}")] {
            assert!(told.contains("connection error received") && !told.contains("hush"), "{told}");
        }
    }

    /// A stream that fails so.
    struct Gone(fn() -> io::Error);

    impl tokio::io::AsyncRead for Gone {
        fn poll_read(
            self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
            _: &mut tokio::io::ReadBuf<'_>,
        ) -> std::task::Poll<io::Result<()>> {
            std::task::Poll::Ready(Err((self.0)()))
        }
    }

    #[tokio::test]
    async fn why_an_agent_gave_up_is_told_in_parentheses_that_end() {
        let ended = || io::Error::new(io::ErrorKind::UnexpectedEof, "peer closed\nhttps://docs.rs/rustls/x");
        let stream = tokio::io::join(Gone(ended), tokio::io::sink());
        let (_requests, connection) = h2::client::handshake(stream).await.unwrap();
        let given_up = abandoned(Err(connection.await.unwrap_err()));
        assert_eq!(cause(&given_up), "the agent gave the request up (peer closed)");
    }

    #[tokio::test]
    async fn that_the_kernel_gave_a_connection_up_is_known_of_its_streams() {
        let stream = tokio::io::join(Gone(|| rustix::io::Errno::TIMEDOUT.into()), tokio::io::sink());
        let (mut requests, connection) = h2::client::handshake(stream).await.unwrap();
        let request = http::Request::get("https://a.example/").body(()).unwrap();
        let (response, _) = requests.send_request(request, true).unwrap();
        let (_, response) = tokio::join!(connection, response);
        let error = broken(response.unwrap_err());
        assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::TIMEDOUT.raw_os_error()), "{error}");
    }

    #[tokio::test]
    async fn whoever_ended_a_connection_is_told() {
        let (ours, mut theirs) = tokio::io::duplex(4096);
        // An empty SETTINGS, then an empty PING, which must have eight octets (RFC 9113 §6.7).
        theirs.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0]).await.unwrap();
        let (_requests, connection) = h2::client::handshake(ours).await.unwrap();
        let error = connection.await.unwrap_err();
        assert!(misdeed(&error).starts_with("the connection breaks HTTP/2 ("), "{}", misdeed(&error));
        let ended = abandoned(Err(error));
        assert!(Abandoned::is(&ended) && ended.to_string().starts_with("the sidecar ended"), "{ended}");
        let given_up = abandoned(Ok(h2::Reason::CANCEL));
        assert!(Abandoned::is_given_up(&given_up) && !Abandoned::is_given_up(&ended));
        assert!(given_up.to_string().starts_with("the agent gave the request up"), "{given_up}");
        let calmed = misdeed(&h2::Reason::ENHANCE_YOUR_CALM.into());
        assert!(!calmed.contains("breaks"), "{calmed}");
    }
}
