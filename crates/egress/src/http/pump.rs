//! Sends a request's body while its response is relayed: an upstream may answer before it has read the whole request.

use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::time::Duration;

use policy::{Provider, Target};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;

use super::incoming::Incoming;
use super::outgoing::Outgoing;
use super::replay::ReplayBuffer;
use super::upstream;
use crate::inject::tells_who_asks;

/// How long an upstream that takes no more of a request may take to answer it: it may have done so before it closed.
const LATE_ANSWER: Duration = Duration::from_secs(1);

/// The end of a request and its response.
pub(super) struct Raced<T> {
    pub(super) outcome: io::Result<T>,
    /// Whether the whole request body was sent.
    pub(super) is_sent: bool,
}

/// Runs [`pump`] and `respond` together until the response is over, or the request's body fails. Takes them pinned: they are large,
/// and a future holds what it is given by value twice.
pub(super) async fn race<T>(
    mut pump: Pin<&mut impl Future<Output = Result<(), Stopped>>>,
    mut respond: Pin<&mut impl Future<Output = io::Result<T>>>,
) -> Raced<T> {
    let (mut is_sent, mut broken) = (false, None);
    let outcome = loop {
        tokio::select! {
            biased;
            pumped = &mut pump, if !is_sent && broken.is_none() => match pumped {
                Ok(()) => is_sent = true,
                Err(Stopped::Body(error)) => break Err(error),
                Err(Stopped::Upstream(error)) => broken = Some((error, Instant::now() + LATE_ANSWER)),
            },
            responded = &mut respond => break responded,
            error = too_late(&mut broken) => break Err(error),
        }
    };
    Raced { outcome, is_sent }
}

/// Completes when the response to a request that could not be sent is awaited no longer, with the reason why it could not be sent.
async fn too_late(broken: &mut Option<(io::Error, Instant)>) -> io::Error {
    match broken {
        None => std::future::pending().await,
        Some((error, until)) => {
            tokio::time::sleep_until(*until).await;
            std::mem::replace(error, io::ErrorKind::BrokenPipe.into())
        }
    }
}

/// Why not all of a body was sent.
pub(super) enum Stopped {
    /// The agent did not send it, or it must not be passed on.
    Body(io::Error),
    /// The upstream does not take it.
    Upstream(io::Error),
}

/// Sends a request's body, and those of its trailers that the provider accepts. Records it for another attempt.
pub(super) async fn pump<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
    body: &mut Incoming<'_, R>,
    outgoing: &mut Outgoing<'_, W>,
    provider: Option<&Provider>,
    target: &Target,
    replay: &ReplayBuffer,
    count: &Cell<u64>,
) -> Result<(), Stopped> {
    let mut last = bytes::Bytes::new();
    while let Some(piece) = outgoing.next_of(body).await.map_err(Stopped::Upstream)?.map_err(Stopped::Body)? {
        count.set(count.get() + piece.len() as u64);
        replay.record(&piece);
        if body.is_ending() {
            body.next().await.map_err(Stopped::Body)?;
            last = piece;
            break;
        }
        outgoing.send(piece).await.map_err(Stopped::Upstream)?;
    }
    let mut trailers = upstream::without_hop_fields(body.trailers().await.map_err(Stopped::Body)?);
    if tells_who_asks(&trailers, provider, target) {
        return Err(Stopped::Body(io::Error::other("a placeholder or a key stands in a trailer")));
    }
    trailers.keep(|name| provider.is_none_or(|provider| provider.lets_pass(name)));
    if trailers.is_empty() {
        replay.mark_complete();
    } else {
        replay.discard(); // a replay would lack the trailers
    }
    outgoing.finish(last, trailers).await.map_err(Stopped::Upstream)
}
