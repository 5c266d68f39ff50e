//! Sends a request's body while its response is relayed: an upstream may answer before it has read the whole request.

use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::time::Duration;

use policy::{Provider, Target};
use tokio::io::AsyncRead;
use tokio::time::Instant;

use super::chunk::RefusedBody;
use super::fields::Fields;
use super::incoming::{Incoming, STALLED};
use super::outgoing::Outgoing;
use super::progress::Progress;
use super::replay::ReplayBuffer;
use super::severable::Severable;
use crate::inject::tells_who_asks;

/// How long an upstream that takes no more of a request may take to begin its answer: it may have done so before it closed.
const LATE_ANSWER: Duration = Duration::from_secs(1);

/// Runs [`pump`] and `respond` together until the response is over, or the request's body fails. Notes when the whole request has been sent;
/// is told when the response has begun, by its status. Takes both pinned: they are large, and a future that takes them by value
/// would hold each twice.
pub(super) async fn race<T>(
    mut pump: Pin<&mut impl Future<Output = Result<(), Stopped>>>,
    mut respond: Pin<&mut impl Future<Output = io::Result<T>>>,
    progress: &Progress<'_>,
) -> io::Result<T> {
    let mut broken = None;
    loop {
        tokio::select! {
            biased;
            pumped = &mut pump, if !progress.is_sent.get() && broken.is_none() => match pumped {
                Ok(()) => progress.is_sent.set(true),
                Err(Stopped::Body(error)) => return Err(error),
                Err(Stopped::Upstream(error)) => broken = Some((error, Instant::now() + LATE_ANSWER)),
            },
            responded = &mut respond => return responded,
            error = too_late(&mut broken, &progress.status) => return Err(error),
        }
    }
}

/// Completes when the response to a request that could not be sent is awaited no longer, with the reason why it could not be sent. One that
/// has begun has the time that any has.
async fn too_late(broken: &mut Option<(io::Error, Instant)>, status: &Cell<Option<u16>>) -> io::Error {
    let Some((error, until)) = broken else { return std::future::pending().await };
    tokio::time::sleep_until(*until).await;
    match status.get() {
        None => std::mem::replace(error, io::ErrorKind::BrokenPipe.into()),
        Some(_) => std::future::pending().await,
    }
}

/// Why a body is refused whose trailers tell who asks.
pub(super) const KEY_IN_TRAILER: &str =
    "a placeholder, a key or a cookie stands in a trailer; send it in the request's head";

/// What became of the trailers of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trailers {
    /// They were passed on, or there were none.
    PassedOn,
    /// The upstream takes none.
    LeftOut,
}

/// Why not all of a body was sent.
pub(super) enum Stopped {
    /// The agent did not send it, or it must not be passed on.
    Body(io::Error),
    /// The upstream does not take it.
    Upstream(io::Error),
}

/// Sends a request's body, and those of its trailers that the provider accepts and the upstream takes. Records it for another attempt.
pub(super) async fn pump<R: AsyncRead + Unpin, W: Severable>(
    body: &mut Incoming<'_, R>,
    outgoing: &mut Outgoing<'_, W>,
    provider: Option<&Provider>,
    target: &Target,
    replay: &ReplayBuffer,
    count: &Cell<u64>,
) -> Result<Trailers, Stopped> {
    let mut last = bytes::Bytes::new();
    while let Some(piece) =
        outgoing.next_of(body, STALLED).await.map_err(Stopped::Upstream)?.map_err(Stopped::Body)?
    {
        count.set(count.get() + piece.len() as u64);
        replay.record(&piece);
        if body.is_ending() {
            body.next().await.map_err(Stopped::Body)?;
            last = piece;
            break;
        }
        outgoing.send(piece).await.map_err(Stopped::Upstream)?;
    }
    let mut trailers = body.trailers().await.map_err(Stopped::Body)?;
    if tells_who_asks(&trailers, provider, target) {
        return Err(Stopped::Body(io::Error::other(RefusedBody(KEY_IN_TRAILER))));
    }
    trailers.leave_hop();
    trailers.keep(|name| provider.is_none_or(|provider| provider.lets_pass(name)));
    let became = match trailers.is_empty() || outgoing.takes_trailers() {
        true => Trailers::PassedOn,
        false => {
            // The upstream may have the whole body, and act on it: its answer must not be lost for them (RFC 9110 §6.5.1).
            trailers = Fields::default();
            Trailers::LeftOut
        }
    };
    if trailers.is_empty() {
        replay.mark_complete();
    } else {
        replay.discard(); // a replay would lack the trailers
    }
    outgoing.finish(last, trailers).await.map_err(Stopped::Upstream)?;
    Ok(became)
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use tokio::io::AsyncReadExt;

    use super::*;
    use crate::http::outgoing::TransferCoding;

    /// What an upstream of HTTP/1 gets of a request of HTTP/2 with this trailer, and what became of that.
    async fn pumped_with(value: &str, coding: TransferCoding) -> (Result<Trailers, Stopped>, String) {
        let (ours, theirs) = tokio::io::duplex(4096);
        let (mut requests, agent) = h2::client::handshake(ours).await.unwrap();
        let request = http::Request::post("https://a.example/").body(()).unwrap();
        let (_response, mut sends) = requests.send_request(request, false).unwrap();
        let trailers = http::HeaderMap::from_iter([("x-sum".parse().unwrap(), value.parse().unwrap())]);
        let relays = async {
            sends.send_data("body".into(), false).unwrap();
            sends.send_trailers(trailers).unwrap();
            let mut connection = h2::server::handshake(theirs).await.unwrap();
            let (request, _respond) = connection.accept().await.unwrap().unwrap();
            let (upstream, mut seen) = tokio::net::UnixStream::pair().unwrap();
            let (reader, mut writer) = crate::http::stream::AgentStream::Unix(upstream).split();
            let mut outgoing = Outgoing::Version1 { writer: &mut writer, coding, waiting: Vec::new() };
            let mut body = Incoming::<&[u8]>::Version2(request.into_body());
            let target = Target::parse("https://a.example/").unwrap();
            let (replay, count) = (ReplayBuffer::disabled(), Cell::new(0));
            let pumped = pump(&mut body, &mut outgoing, None, &target, &replay, &count);
            let pumped = tokio::select! { biased; pumped = pumped => pumped, _ = connection.accept() => unreachable!() };
            drop((reader, writer));
            let mut read = String::new();
            seen.read_to_string(&mut read).await.unwrap();
            (pumped, read)
        };
        tokio::select! { pumped = relays => pumped, _ = agent => unreachable!() }
    }

    #[tokio::test]
    async fn trailers_that_an_upstream_would_not_get_are_left_out() {
        for (coding, whole) in
            [(TransferCoding::Identity, "body"), (TransferCoding::Chunked, "4\r\nbody\r\n0\r\n\r\n")]
        {
            let (pumped, read) = pumped_with("1", coding).await;
            assert!(matches!(pumped, Ok(Trailers::LeftOut)), "{coding:?}");
            assert_eq!(read, whole);
        }
        let placeholder = "lgph_0123456789abcdefghijklmnopqrstuvwxyz";
        let (pumped, read) = pumped_with(placeholder, TransferCoding::Chunked).await;
        assert!(matches!(pumped, Err(Stopped::Body(_))) && !read.ends_with("0\r\n\r\n"), "{read}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_to_what_could_not_be_sent_must_begin_soon_and_may_take_its_time() {
        for (begins_after, passes) in [(LATE_ANSWER / 2, true), (LATE_ANSWER * 2, false)] {
            let received = Cell::new(0);
            let progress = Progress::begin(&received);
            let fails = async { Err(Stopped::Upstream(io::ErrorKind::ConnectionReset.into())) };
            let responds = async {
                tokio::time::sleep(begins_after).await;
                progress.status.set(Some(413));
                tokio::time::sleep(LATE_ANSWER * 10).await;
                Ok(())
            };
            let ended = race(pin!(fails), pin!(responds), &progress).await;
            let kind = ended.err().map(|error| error.kind());
            assert_eq!(kind, (!passes).then_some(io::ErrorKind::ConnectionReset), "{begins_after:?}");
        }
    }
}
