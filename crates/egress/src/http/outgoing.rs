//! Writes bodies, to agents and upstreams, of HTTP/1 and HTTP/2: pieces of data, framed anew. Pieces that come faster than they are
//! written go out together.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWriteExt};

use super::backlog::Backlog;
use super::fields::Fields;
use super::hung_up::HungUp;
use super::incoming::Incoming;
use super::severable::{Severable, write_whole};
use super::stream::AgentWriter;
use super::version2;
use crate::patience::within;

/// How long the reader may take over one piece.
const STALLED: Duration = Duration::from_secs(120);
/// The most octets that wait to be written together: what TLS takes at once, in records of the largest size.
const MOST_WAITING: usize = 64 * 1024;

/// A body that is being written, and the octets that wait to be written before it.
pub(crate) enum Outgoing<'a, W> {
    /// To a connection of HTTP/1.
    Version1 { writer: &'a mut W, coding: TransferCoding, waiting: Vec<u8> },
    /// To a stream of HTTP/2; to an upstream's, with the backlog of its session.
    Version2(h2::SendStream<Bytes>, Option<&'a Backlog>),
    /// There is no body to write.
    Nothing,
}

/// The transfer coding of a body of HTTP/1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TransferCoding {
    /// None: the head states the length, or the connection ends with the body.
    Identity,
    /// `chunked`.
    Chunked,
}

impl Outgoing<'_, AgentWriter> {
    /// As [`Self::next_of`] for the body of a response; fails as soon as the agent resets its stream.
    pub(crate) async fn next_of_answer<R: AsyncRead + Unpin>(
        &mut self,
        body: &mut Incoming<'_, R>,
        stalled: Duration,
    ) -> io::Result<Option<Bytes>> {
        let Self::Version2(stream, _) = self else {
            return self.next_of(body, stalled).await?.map_err(HungUp::told_in_answer);
        };
        tokio::select! {
            biased;
            come = body.next_within(stalled) => come.map_err(HungUp::told_in_answer),
            reset = poll_fn(|context| stream.poll_reset(context)) => Err(version2::abandoned(reset)),
        }
    }

    /// As [`Self::send`]; an error tells that the agent has reset its stream, or its connection has ended.
    pub(crate) async fn send_answer(&mut self, piece: Bytes) -> io::Result<()> {
        self.send(piece).await.map_err(|error| self.told(error))
    }

    /// As [`Self::finish`], with the errors of [`Self::send_answer`].
    pub(crate) async fn finish_answer(&mut self, piece: Bytes, trailers: Fields) -> io::Result<()> {
        self.finish(piece, trailers).await.map_err(|error| self.told(error))
    }

    /// Breaks an answer off for this reason. Over HTTP/1 the end of its connection does.
    pub(crate) fn reset(&mut self, reason: h2::Reason) {
        if let Self::Version2(stream, _) = self {
            stream.send_reset(reason);
        }
    }

    /// Tells an error of writing for what it is if the agent has reset its stream by now, or its connection has ended.
    fn told(&mut self, error: io::Error) -> io::Error {
        let Self::Version2(stream, _) = self else { return error };
        version2::untaken(error, stream.poll_reset(&mut Context::from_waker(Waker::noop())))
    }
}

impl<W: Severable> Outgoing<'_, W> {
    /// Whether trailers may follow the body of a request: over HTTP/1 an upstream may take none, or take them for more than they are.
    pub(crate) fn takes_trailers(&self) -> bool {
        matches!(self, Self::Version2(..))
    }

    /// Returns the next piece of the body that is written here, and may stand still for so long. Writes out what waits, unless that piece
    /// has arrived already. The outer error is that of writing.
    pub(crate) async fn next_of<R: AsyncRead + Unpin>(
        &mut self,
        body: &mut Incoming<'_, R>,
        stalled: Duration,
    ) -> io::Result<io::Result<Option<Bytes>>> {
        let mut next = pin!(body.next_within(stalled));
        if let Poll::Ready(come) = poll_fn(|context| Poll::Ready(next.as_mut().poll(context))).await {
            return Ok(come);
        }
        self.flush().await?;
        Ok(next.await)
    }

    /// Writes a piece, or lets it wait for the next one: until [`Self::next_of`] finds none, or too much waits.
    pub(crate) async fn send(&mut self, piece: Bytes) -> io::Result<()> {
        if piece.is_empty() {
            return Ok(());
        }
        match self {
            Self::Version1 { writer, coding, waiting } => {
                let length = match coding {
                    TransferCoding::Chunked => format!("{:x}\r\n", piece.len()),
                    TransferCoding::Identity => String::new(),
                };
                if waiting.len() + length.len() + piece.len() > MOST_WAITING {
                    write_waiting(*writer, waiting).await?;
                }
                waiting.extend(length.bytes());
                if piece.len() > MOST_WAITING {
                    write_waiting(*writer, waiting).await?;
                    write_whole(*writer, STALLED, async |writer| writer.write_all(&piece).await).await?;
                } else {
                    waiting.extend(&piece);
                }
                if *coding == TransferCoding::Chunked {
                    waiting.extend(b"\r\n");
                }
                Ok(())
            }
            Self::Version2(stream, backlog) => version2::send_data(stream, piece, STALLED, *backlog).await,
            Self::Nothing => Ok(()),
        }
    }

    /// Writes the last piece and the end of the body, in one write where that is possible.
    pub(crate) async fn finish(&mut self, piece: Bytes, trailers: Fields) -> io::Result<()> {
        match self {
            Self::Version1 { coding, waiting, .. } if piece.len() <= MOST_WAITING => {
                if *coding == TransferCoding::Chunked && !piece.is_empty() {
                    waiting.extend(format!("{:x}\r\n", piece.len()).bytes());
                    waiting.extend(&piece);
                    waiting.extend(b"\r\n");
                } else {
                    waiting.extend(&piece);
                }
            }
            _ => self.send(piece).await?,
        }
        self.end(trailers).await
    }

    /// Writes out what waits. After a write that failed or was given up it fails at once, and writes nothing.
    pub(crate) async fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Version1 { writer, waiting, .. } => {
                if !waiting.is_empty() {
                    write_waiting(*writer, waiting).await?;
                }
                write_whole(*writer, STALLED, async |writer| writer.flush().await).await
            }
            // The task of the connection writes what it was given, as far as it can at once. It is on this thread, and has its turn before
            // this one. A reset before that would throw all of it away.
            Self::Version2(..) => {
                tokio::task::yield_now().await;
                Ok(())
            }
            Self::Nothing => Ok(()),
        }
    }

    /// Ends the body. Over HTTP/1 a body that is not chunked has no trailers.
    pub(crate) async fn end(&mut self, trailers: Fields) -> io::Result<()> {
        match self {
            Self::Version1 { coding, waiting, .. } => {
                if *coding == TransferCoding::Chunked {
                    waiting.extend(b"0\r\n");
                    trailers.write(waiting);
                    waiting.extend(b"\r\n");
                }
                self.flush().await
            }
            Self::Version2(stream, _) => version2::end(stream, &trailers),
            Self::Nothing => Ok(()),
        }
    }
}

/// Writes what waits. It is taken out first: whatever becomes of the write, no octet is written twice. What a large head took is given
/// back.
async fn write_waiting(writer: &mut impl Severable, waiting: &mut Vec<u8>) -> io::Result<()> {
    let mut octets = std::mem::take(waiting);
    write_whole(writer, STALLED, async |writer| writer.write_all(&octets).await).await?;
    octets.clear();
    octets.shrink_to(MOST_WAITING);
    *waiting = octets;
    Ok(())
}

/// Runs a write that must not stall, and behind which nothing is written if it fails.
pub(super) async fn within_stall_limit<T>(work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    within(STALLED, work).await
}

/// Writes a short text of the sidecar's own, and flushes it. Whoever asks and never reads would hold a connection for ever.
pub(crate) async fn write_within_limit(writer: &mut impl Severable, octets: &[u8]) -> io::Result<()> {
    write_whole(writer, STALLED, async |writer| {
        writer.write_all(octets).await?;
        writer.flush().await
    })
    .await
}

/// As [`write_within_limit`], and ends the connection's writing side.
pub(crate) async fn write_last_within_limit(writer: &mut impl Severable, octets: &[u8]) -> io::Result<()> {
    write_whole(writer, STALLED, async |writer| {
        writer.write_all(octets).await?;
        writer.shutdown().await
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::pin::Pin;

    use tokio::io::{AsyncWrite, ReadBuf};

    use super::*;
    use crate::http::head::Buffered;
    use crate::http::incoming::Framing;

    /// Reads the prepared pieces; a `None` is a piece that has not arrived when it is first polled.
    struct Prepared(VecDeque<Option<Vec<u8>>>);

    impl AsyncRead for Prepared {
        fn poll_read(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
            into: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            match self.0.pop_front() {
                Some(None) => {
                    context.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Some(Some(piece)) => into.put_slice(&piece),
                None => {}
            }
            Poll::Ready(Ok(()))
        }
    }

    /// The sizes of the writes.
    #[derive(Default)]
    struct Writings(Vec<usize>);

    impl AsyncWrite for Writings {
        fn poll_write(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            octets: &[u8],
        ) -> Poll<io::Result<usize>> {
            self.0.push(octets.len());
            Poll::Ready(Ok(octets.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    impl Severable for Writings {
        fn sever(&mut self) {}
    }

    /// The sizes of the writes for these pieces, behind a head of ten octets.
    async fn writings(pieces: impl IntoIterator<Item = Option<usize>>, coding: TransferCoding) -> Vec<usize> {
        let pieces = pieces.into_iter().map(|length| length.map(|length| vec![b'x'; length]));
        let mut reader = Buffered::new(Prepared(pieces.collect()));
        let mut body = Incoming::Version1 { reader: &mut reader, framing: Framing::ToEnd };
        let mut writer = Writings::default();
        let mut out = Outgoing::Version1 { writer: &mut writer, coding, waiting: vec![b'h'; 10] };
        while let Some(piece) = out.next_of(&mut body, STALLED).await.unwrap().unwrap() {
            out.send(piece).await.unwrap();
        }
        out.end(Fields::default()).await.unwrap();
        writer.0
    }

    #[tokio::test]
    async fn what_has_come_goes_out_together_and_nothing_waits_for_what_has_not() {
        for (pieces, expected) in [
            (vec![Some(5), Some(6)], vec![21]),
            (vec![None, Some(5), Some(6)], vec![10, 11]),
            (vec![Some(5), None, Some(6), None, None, Some(7)], vec![15, 6, 7]),
            (vec![], vec![10]),
        ] {
            assert_eq!(writings(pieces.clone(), TransferCoding::Identity).await, expected, "{pieces:?}");
        }
        assert_eq!(writings([Some(5), Some(0x1f)], TransferCoding::Chunked).await, [10 + 10 + 37 + 5]);
    }

    #[tokio::test]
    async fn as_much_as_tls_takes_at_once_goes_out_at_a_time() {
        let pieces = |many| std::iter::repeat_n(Some(16 << 10), many);
        let whole = 64 << 10;
        assert_eq!(
            writings(pieces(9), TransferCoding::Identity).await,
            [whole - (16 << 10) + 10, whole, 2 * (16 << 10)]
        );
        // With `4000`, and two line ends.
        let chunk = (16 << 10) + 8;
        assert_eq!(writings(pieces(4), TransferCoding::Chunked).await, [10 + 3 * chunk, chunk + 5]);
    }
}
