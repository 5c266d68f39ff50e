//! A session of HTTP/2 with an upstream: opens it, and sends requests over it. It never holds more heads of answers than may come.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::{RecvStream, SendStream};

use super::awaited_heads::{AwaitedHeads, HeadCounter, Place};
use super::head::{BodyLength, LARGEST_HEAD};
use super::http2_limits::Window;
use super::interim::Next;
use super::response::{MOST_FIELDS, ResponseHead};
use super::version2::{PREFACE, SEND_BUFFER, STREAM_WINDOW, broken};
use crate::duplex::Duplex;
use crate::upstream::Upstream;

/// How long an upstream may take nothing of what was sent to it.
const UNTAKEN: Duration = Duration::from_secs(120);
/// The window of one connection to an upstream: 64 streams may be left unread before they stall the others.
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
}

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
        .handshake(HeadCounter::new(stream, awaited.clone()));
    let (requests, connection) = tokio::time::timeout(PREFACE, handshake).await?.map_err(broken)?;
    tokio::task::spawn_local(async move {
        let _ = connection.await;
        drop(window);
    });
    Ok(RequestSender { requests, awaited })
}

impl RequestSender {
    /// Waits until the session has room for another stream.
    pub(super) async fn ready(self) -> io::Result<Self> {
        Ok(Self { requests: self.requests.ready().await.map_err(broken)?, ..self })
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

    /// Over a session of a test's own, whose heads are not counted.
    #[cfg(test)]
    pub(crate) fn uncounted(requests: SendRequest<Bytes>) -> Self {
        Self { requests, awaited: AwaitedHeads::default() }
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
