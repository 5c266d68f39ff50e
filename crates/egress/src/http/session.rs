//! A session of HTTP/2 with an upstream: opens it, and sends requests over it. It never holds more heads of answers than may come.

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::{Ping, PingPong, RecvStream, SendStream};
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::awaited_heads::{AwaitedHeads, HeadCounter, Place};
use super::backlog::Backlog;
use super::head::{BodyLength, LARGEST_HEAD};
use super::http2_limits::Window;
use super::interim::Next;
use super::response::{MOST_FIELDS, ResponseHead};
use super::version2::{MOST_OWN_RESETS, PREFACE, RESETS_REMEMBERED, SEND_BUFFER, STREAM_WINDOW, broken};
use crate::duplex::Duplex;
use crate::upstream::Upstream;

/// How long an upstream may take nothing of what was sent to it.
pub(super) const UNTAKEN: Duration = Duration::from_secs(120);
/// How long an upstream may take to answer a PING (RFC 9113 §6.7).
const PONG: Duration = Duration::from_secs(5);
/// The window of one connection to an upstream: 64 streams may be left unread, and no more are in it.
const SESSION_WINDOW: u32 = 64 * STREAM_WINDOW;
/// The library's budget for small DATA frames that are unread: each costs 256 octets less its own. A stream's window in frames of 16
/// octets is within the budget.
const SMALL_FRAMES: usize = 4 * 1024 * 1024;
/// The same budget for each octet of a window, where the window is small: frames of 51 octets can fill it.
const SMALL_FRAMES_OF_WINDOW: usize = 4;
/// The largest head of a response, as RFC 9113 §6.5.2 counts it: 32 octets more for each field. It is that of HTTP/1, since a head takes a
/// hundred octets of memory for each field, and some are held.
const LARGEST_RESPONSE_HEAD: u32 = (LARGEST_HEAD + 32 * MOST_FIELDS) as u32;

/// Sends requests over a session that others share.
#[derive(Clone)]
pub(crate) struct RequestSender {
    requests: SendRequest<Bytes>,
    awaited: AwaitedHeads,
    presence: Rc<Presence>,
    /// Shared by the clones of this sender; what is in it is cloned once for each open stream.
    streams: Rc<OpenStream>,
    /// How many streams may be left unread before they stall the others.
    most_streams: usize,
}

/// Whether the upstream of a session is still there.
struct Presence {
    pings: Mutex<PingPong>,
    /// When it was asked, and has answered.
    shown: Cell<Option<Instant>>,
}

/// Counts a stream as open in its session for as long as it is held, and tells the session from others.
pub(crate) type OpenStream = Rc<Backlog>;

/// A response whose final head has not come yet.
pub(super) struct PendingHead {
    response: ResponseFuture,
    _place: Place,
}

/// Begins a session with an upstream, and drives it in a task of its own.
pub(crate) async fn begin(upstream: Upstream) -> io::Result<RequestSender> {
    // The task has no time limit of its own: it ends once what is left to say was taken.
    upstream.give_up_after(UNTAKEN)?;
    over(upstream).await
}

/// Begins a session over any stream.
pub(super) async fn over(stream: impl Duplex + 'static) -> io::Result<RequestSender> {
    let (window, awaited) = (Window::take(SESSION_WINDOW), AwaitedHeads::default());
    let handshake = h2::client::Builder::new()
        .enable_push(false)
        .max_header_list_size(LARGEST_RESPONSE_HEAD)
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(window.octets())
        .data_frame_budget(SMALL_FRAMES.min(SMALL_FRAMES_OF_WINDOW * window.octets() as usize))
        .max_send_buffer_size(SEND_BUFFER)
        .max_concurrent_reset_streams(RESETS_REMEMBERED)
        .max_local_error_reset_streams(Some(MOST_OWN_RESETS))
        .handshake(HeadCounter::new(stream, awaited.clone()));
    let (requests, mut connection) = tokio::time::timeout(PREFACE, handshake).await?.map_err(broken)?;
    let presence = Presence::of(&mut connection)?;
    let most_streams = (window.octets() / STREAM_WINDOW).max(1) as usize;
    tokio::task::spawn_local(async move {
        let _ = connection.await;
        drop(window);
    });
    Ok(RequestSender { requests, awaited, presence, streams: Rc::default(), most_streams })
}

impl RequestSender {
    /// Whether the upstream allows another stream (`SETTINGS_MAX_CONCURRENT_STREAMS`, RFC 9113 §5.1.2), the window has room for an answer
    /// on it that nobody reads, and the upstream would take a body. The library would hold a stream beyond those that are allowed back, and
    /// send it later even if it is dropped.
    pub(crate) fn has_room_for(&self, body: BodyLength) -> bool {
        Rc::strong_count(&*self.streams) <= self.requests.current_max_send_streams().min(self.most_streams)
            && (body == BodyLength::None || !self.streams.is_blocked())
    }

    /// Whether the upstream has ended the session, or said that it will take no more requests (GOAWAY).
    pub(crate) fn has_ended(&mut self) -> bool {
        matches!(self.requests.poll_ready(&mut Context::from_waker(Waker::noop())), Poll::Ready(Err(_)))
    }

    /// Asks the upstream whether it is there, and whether it answered in time. Those who ask at the same time share an answer.
    pub(crate) async fn is_there(&self) -> bool {
        let asked = Instant::now();
        tokio::time::timeout(PONG, self.presence.shown_since(asked)).await.unwrap_or(false)
    }

    /// Sends the head of a request. Returns where its body goes, if it has one.
    pub(super) fn send(
        &mut self,
        request: http::Request<()>,
        body: BodyLength,
    ) -> io::Result<(PendingHead, Option<SendStream<Bytes>>)> {
        let none = body == BodyLength::None;
        let (response, stream) = self.requests.send_request(request, none).map_err(broken)?;
        // The connection's task runs later, so no head has come yet.
        let place = self.awaited.expect(response.stream_id().as_u32());
        Ok((PendingHead { response, _place: place }, (!none).then_some(stream)))
    }

    /// Whether no stream is open.
    pub(crate) fn is_unused(&self) -> bool {
        Rc::strong_count(&*self.streams) == 1
    }

    /// Counts one more stream as open.
    pub(crate) fn count_stream(&self) -> OpenStream {
        Rc::clone(&*self.streams)
    }

    /// Whether a stream is one of this session's.
    pub(crate) fn has(&self, stream: &OpenStream) -> bool {
        Rc::ptr_eq(&*self.streams, stream)
    }

    /// Over a session of a test's own, whose heads are not counted.
    #[cfg(test)]
    pub(crate) fn uncounted<T: Duplex>(
        requests: SendRequest<Bytes>,
        connection: &mut h2::client::Connection<T, Bytes>,
    ) -> Self {
        let presence = Presence::of(connection).unwrap();
        let (awaited, streams) = (AwaitedHeads::default(), Rc::default());
        Self { requests, awaited, presence, streams, most_streams: usize::MAX }
    }
}

impl Presence {
    fn of<T: Duplex>(connection: &mut h2::client::Connection<T, Bytes>) -> io::Result<Rc<Self>> {
        let pings = connection.ping_pong().ok_or(io::ErrorKind::Unsupported)?;
        Ok(Rc::new(Self { pings: Mutex::new(pings), shown: Cell::new(None) }))
    }

    /// Whether the upstream is there, by an answer that came after `asked`.
    async fn shown_since(&self, asked: Instant) -> bool {
        let mut pings = self.pings.lock().await;
        if self.shown.get().is_some_and(|shown| shown >= asked) {
            return true;
        }
        // The answer to one that was given up tells nothing of now, if it has come already. If it is still under way it will do.
        let _ = pings.poll_pong(&mut Context::from_waker(Waker::noop()));
        let _ = pings.send_ping(Ping::opaque());
        let is_there = poll_fn(|cx| pings.poll_pong(cx)).await.is_ok();
        if is_there {
            self.shown.set(Some(Instant::now()));
        }
        is_there
    }
}

impl PendingHead {
    /// Returns the next head: interim ones first.
    pub(super) fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<Next<http::Response<RecvStream>>>> {
        if let Poll::Ready(Some(Ok(interim))) = self.response.poll_informational(cx) {
            return Poll::Ready(ResponseHead::of_version_2(&interim.into_parts().0).map(Next::Interim));
        }
        Pin::new(&mut self.response).poll(cx).map(|response| response.map(Next::Final).map_err(broken))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: BodyLength = BodyLength::None;

    #[tokio::test]
    async fn a_session_has_room_for_as_many_streams_as_the_upstream_allows() {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let serves = async {
            let mut connection = h2::server::Builder::new()
                .max_concurrent_streams(2)
                .handshake::<_, Bytes>(theirs)
                .await
                .unwrap();
            let (_, mut respond) = connection.accept().await.unwrap().unwrap();
            respond.send_response(http::Response::new(()), true).unwrap();
            while connection.accept().await.is_some() {}
        };
        let asks = async {
            let session = over(ours).await.unwrap();
            // The settings have come by the time that something is answered.
            let request = http::Request::get("https://a.example/").body(()).unwrap();
            let (mut pending, _) = session.clone().send(request, BodyLength::None).unwrap();
            poll_fn(|cx| pending.poll_next(cx)).await.unwrap();
            let (one, other) = (session.clone(), session.clone());
            let first = one.count_stream();
            assert!(session.has_room_for(NONE) && other.has_room_for(NONE));
            let second = other.count_stream();
            assert!(!session.has_room_for(NONE) && !one.has_room_for(NONE));
            drop(first);
            assert!(session.has_room_for(NONE));
            drop(second);
        };
        let both = async {
            tokio::select! {
                () = serves => panic!("the upstream ended first"),
                () = asks => {}
            }
        };
        tokio::task::LocalSet::new().run_until(both).await;
    }

    #[tokio::test]
    async fn a_session_has_room_for_as_many_streams_as_may_be_left_unread() {
        async fn room() -> usize {
            let (ours, theirs) = tokio::io::duplex(1 << 16);
            let (session, upstream) = tokio::join!(over(ours), h2::server::handshake(theirs));
            let (session, _upstream) = (session.unwrap(), upstream.unwrap());
            let streams = std::iter::from_fn(|| session.has_room_for(NONE).then(|| session.count_stream()));
            streams.collect::<Vec<_>>().len()
        }
        let rooms = async {
            let first = room().await;
            let _many: Vec<_> = (0..1000).map(|_| Window::take(SESSION_WINDOW)).collect();
            (first, room().await)
        };
        assert_eq!(tokio::task::LocalSet::new().run_until(rooms).await, (64, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn an_upstream_is_there_while_it_answers() {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let asks = async {
            let session = over(ours).await.unwrap();
            let mut upstream = h2::server::Builder::new().handshake::<_, Bytes>(theirs).await.unwrap();
            let answers = tokio::task::spawn_local(async move { while upstream.accept().await.is_some() {} });
            assert!(session.is_there().await && session.is_there().await);
            tokio::time::advance(PONG).await;
            // Those who gave up their question leave it to the next one.
            assert!(tokio::time::timeout(Duration::ZERO, session.is_there()).await.is_err());
            let (one, other) = tokio::join!(session.is_there(), session.is_there());
            assert!(one && other);
            let silent = over(held_open()).await.unwrap();
            let begun = Instant::now();
            let (one, other) = tokio::join!(silent.is_there(), silent.is_there());
            assert!(!one && !other && begun.elapsed() < PONG * 2);
            answers.abort();
        };
        tokio::task::LocalSet::new().run_until(asks).await;
    }

    /// A stream whose other end takes all and says nothing.
    fn held_open() -> impl Duplex {
        let (ours, mut theirs) = tokio::io::duplex(1 << 16);
        tokio::task::spawn_local(async move {
            let _ = tokio::io::copy(&mut theirs, &mut tokio::io::sink()).await;
        });
        ours
    }

    #[tokio::test]
    async fn a_session_that_the_upstream_ends_is_known_to_have_ended() {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let ends = async {
            let mut session = over(ours).await.unwrap();
            let mut upstream = h2::server::Builder::new().handshake::<_, Bytes>(theirs).await.unwrap();
            assert!(!session.has_ended());
            upstream.graceful_shutdown();
            let _ = tokio::time::timeout(Duration::from_secs(5), upstream.accept()).await;
            while !session.has_ended() {
                tokio::task::yield_now().await;
            }
        };
        tokio::task::LocalSet::new().run_until(ends).await;
    }
}
