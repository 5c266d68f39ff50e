//! Reads bodies, from agents and upstreams, of HTTP/1 and HTTP/2: pieces of data without their framing.

use std::io;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::AsyncRead;

use super::chunk::{ChunkScanner, ChunkSyntax};
use super::fields::Fields;
use super::head::{BodyLength, Buffered};
use super::response::trailers_of_version_1;
use super::version2;

/// How long a body may stand still, unless something else is said of it.
pub(super) const STALLED: Duration = Duration::from_secs(120);

/// How long the rest of a stream is read that was answered before its end, and how many octets of it: more than a stream's window,
/// which may be on its way already.
const LAST_PIECES: Duration = Duration::from_secs(1);
const MOST_SETTLED: usize = 1024 * 1024;

/// A body that is being read.
pub(crate) enum Incoming<'a, R> {
    /// From a connection of HTTP/1.
    Version1 { reader: &'a mut Buffered<R>, framing: Framing },
    /// From a stream of HTTP/2.
    Version2(h2::RecvStream),
    /// A body that is at hand.
    Whole(Option<Bytes>),
}

/// How the end of a body of HTTP/1 is found, and how much of the body is still to come.
#[derive(Debug)]
pub(crate) enum Framing {
    Sized(u64),
    Chunked(Box<ChunkScanner>),
    ToEnd,
    Done,
}

impl Framing {
    /// Returns the framing for the length that a head states.
    pub(crate) fn of(length: BodyLength, syntax: ChunkSyntax) -> Self {
        match length {
            BodyLength::None => Self::Done,
            BodyLength::Sized(size) => Self::Sized(size),
            BodyLength::Chunked => Self::Chunked(Box::new(ChunkScanner::new(syntax))),
        }
    }

    fn is_done(&self) -> bool {
        match self {
            Self::Done | Self::Sized(0) => true,
            Self::Chunked(scanner) => scanner.is_done(),
            Self::Sized(_) | Self::ToEnd => false,
        }
    }
}

impl<R: AsyncRead + Unpin> Incoming<'_, R> {
    /// Returns the body if all of it is at hand; the inner value is none if there is no body.
    pub(crate) fn whole(&self) -> Option<Option<Bytes>> {
        match self {
            Self::Whole(whole) => Some(whole.clone()),
            Self::Version1 { framing: Framing::Done, .. } => Some(None),
            Self::Version2(stream) if stream.is_end_stream() => Some(None),
            Self::Version1 { .. } | Self::Version2(_) => None,
        }
    }

    /// Returns the next piece; none at the end.
    pub(crate) async fn next(&mut self) -> io::Result<Option<Bytes>> {
        self.next_within(STALLED).await
    }

    /// As [`Self::next`], of a body that may stand still for this long.
    pub(super) async fn next_within(&mut self, stalled: Duration) -> io::Result<Option<Bytes>> {
        let next = match self {
            Self::Version1 { reader, framing } => next_of_version_1(reader, framing, stalled).await,
            Self::Version2(stream) => version2::next_data(stream, stalled).await,
            Self::Whole(whole) => Ok(whole.take()),
        };
        next.map_err(|error| stood_still(error, stalled))
    }

    /// Whether the whole body has been read.
    pub(crate) fn is_done(&self) -> bool {
        match self {
            Self::Version1 { framing, .. } => framing.is_done(),
            Self::Version2(stream) => stream.is_end_stream(),
            Self::Whole(whole) => whole.is_none(),
        }
    }

    /// Whether the end has arrived already, so that the last piece can be sent together with it.
    pub(crate) fn is_ending(&self) -> bool {
        match self {
            Self::Whole(None) => true,
            Self::Version1 { framing, .. } if framing.is_done() => true,
            Self::Version1 { reader, framing: Framing::Chunked(scanner) } => {
                let mut ahead = scanner.clone();
                ahead.scan(&reader.ahead).is_ok_and(|step| step.data == 0) && ahead.is_done()
            }
            Self::Version2(stream) => stream.is_end_stream(),
            Self::Version1 { .. } | Self::Whole(Some(_)) => false,
        }
    }

    /// Reads the rest of a stream that was answered before its end: otherwise it would be reset, and some programs (curl 7.88) discard the
    /// answer then. Over HTTP/1 the connection is closed instead.
    pub(crate) async fn settle(&mut self) {
        let Self::Version2(stream) = self else { return };
        let mut taken = 0;
        let rest = async {
            while let Ok(Some(piece)) = version2::next_data(stream, LAST_PIECES).await {
                taken += piece.len();
                if taken > MOST_SETTLED {
                    return;
                }
            }
        };
        let _ = tokio::time::timeout(LAST_PIECES, rest).await;
    }

    /// Returns the trailers of a body that has been read.
    pub(crate) async fn trailers(&mut self) -> io::Result<Fields> {
        match self {
            Self::Version2(stream) => version2::trailers(stream).await,
            Self::Version1 { framing: Framing::Chunked(scanner), .. } => {
                Ok(trailers_of_version_1(scanner.trailers()))
            }
            Self::Version1 { .. } | Self::Whole(_) => Ok(Fields::default()),
        }
    }
}

/// How much of a body is joined into one piece when it comes in small chunks.
const JOINED_SIZE: usize = 16 * 1024;

/// Joins a chunk with those that have arrived after it, because a body is searched once for each piece. A malformed chunk is left for
/// the next call to refuse.
fn joined(mut piece: BytesMut, scanner: &mut ChunkScanner, ahead: &mut BytesMut) -> BytesMut {
    while piece.len() < JOINED_SIZE && !ahead.is_empty() {
        let mut beyond = scanner.clone();
        let Ok(step) = beyond.scan(ahead) else { break };
        *scanner = beyond;
        ahead.advance(step.framing);
        if scanner.is_done() {
            break;
        }
        piece.unsplit(ahead.split_to(step.data));
    }
    piece
}

/// Says why a body is broken that ends with its connection, where TLS did not end first: whoever cuts the line could end it so, and nothing
/// else tells whether it is whole (RFC 9112 §8, §9.8).
fn untold_end(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => io::Error::new(
            error.kind(),
            "the upstream told neither the length nor the end of its answer: TLS ended without close_notify",
        ),
        _ => error,
    }
}

/// A body stood still, for so many seconds.
#[derive(Debug, thiserror::Error)]
#[error("the body stood still for {0} s")]
struct StoodStill(u64);

/// Whether an error says that a body stood still.
pub(super) fn has_stood_still(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<StoodStill>())
}

/// Says how long a body stood still that is waited for no longer. The kernel's `ETIMEDOUT` tells another thing.
fn stood_still(error: io::Error, stalled: Duration) -> io::Error {
    match error.kind() {
        kind @ io::ErrorKind::TimedOut if error.raw_os_error().is_none() && error.get_ref().is_none() => {
            io::Error::new(kind, StoodStill(stalled.as_secs()))
        }
        _ => error,
    }
}

async fn next_of_version_1<R: AsyncRead + Unpin>(
    reader: &mut Buffered<R>,
    framing: &mut Framing,
    stalled: Duration,
) -> io::Result<Option<Bytes>> {
    loop {
        if framing.is_done() {
            return Ok(None);
        }
        let is_to_end = matches!(framing, Framing::ToEnd);
        let tells_more = |error| if is_to_end { untold_end(error) } else { error };
        if reader.ahead.is_empty() && reader.fill(stalled).await.map_err(tells_more)? == 0 {
            if is_to_end {
                *framing = Framing::Done;
                return Ok(None);
            }
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        match framing {
            Framing::Done => {}
            Framing::ToEnd => return Ok(Some(reader.ahead.split().freeze())),
            Framing::Sized(left) => {
                let take = usize::try_from(*left).unwrap_or(usize::MAX).min(reader.ahead.len());
                *left -= take as u64;
                return Ok(Some(reader.ahead.split_to(take).freeze()));
            }
            Framing::Chunked(scanner) => {
                let step = scanner.scan(&reader.ahead).map_err(|why| scanner.error(why))?;
                reader.ahead.advance(step.framing);
                if step.data > 0 {
                    let first = reader.ahead.split_to(step.data);
                    return Ok(Some(joined(first, scanner, &mut reader.ahead).freeze()));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use tokio::io::{AsyncReadExt, ReadBuf};

    use super::*;

    /// The pieces of a chunked body that comes in two parts.
    async fn pieces(first: &[u8], then: &'static [u8]) -> Vec<io::Result<Bytes>> {
        let mut reader = Buffered { ahead: BytesMut::from(first), reader: then };
        let framing = Framing::of(BodyLength::Chunked, ChunkSyntax::Lenient);
        let mut body = Incoming::Version1 { reader: &mut reader, framing };
        let mut pieces = Vec::new();
        loop {
            match body.next().await {
                Ok(Some(piece)) => pieces.push(Ok(piece)),
                Ok(None) => return pieces,
                Err(error) => {
                    pieces.push(Err(error));
                    return pieces;
                }
            }
        }
    }

    #[tokio::test]
    async fn chunks_that_have_come_are_one_piece() {
        let pieces_of = async |first: &[u8], then| -> Vec<Bytes> {
            pieces(first, then).await.into_iter().map(Result::unwrap).collect()
        };
        let whole = b"1\r\na\r\n2;x\r\nbc\r\n3\r\ndef\r\n0\r\nX: y\r\n\r\n";
        assert_eq!(pieces_of(whole, b"").await, ["abcdef"]);
        // Nothing is waited for.
        assert_eq!(pieces_of(b"1\r\na\r\n2\r", b"\nbc\r\n0\r\n\r\n").await, ["a", "bc"]);
        assert_eq!(pieces_of(b"1\r\na\r\n2\r\nb", b"c\r\n0\r\n\r\n").await, ["ab", "c"]);
        let many = b"1\r\nx\r\n".repeat(JOINED_SIZE + 10);
        let lengths: Vec<usize> = pieces_of(&many, b"0\r\n\r\n").await.iter().map(Bytes::len).collect();
        assert_eq!(lengths, [JOINED_SIZE, 10]);
    }

    /// A connection that ended before its TLS did.
    struct Cut;

    impl AsyncRead for Cut {
        fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()))
        }
    }

    #[tokio::test]
    async fn an_end_that_tls_does_not_tell_is_named() {
        let mut reader = Buffered::new(AsyncReadExt::chain(&b"all"[..], Cut));
        let mut body = Incoming::Version1 { reader: &mut reader, framing: Framing::ToEnd };
        assert_eq!(body.next().await.unwrap().unwrap(), "all");
        let error = body.next().await.unwrap_err();
        assert!(error.to_string().contains("close_notify"), "{error}");
    }

    #[tokio::test]
    async fn trailers_of_an_upstream_are_read_however_they_come() {
        let body = b"1\r\na\r\n0\r\nX-Sum: 1\r\nx-other:2\r\n\r\nHTTP/1.1";
        for at in 0..body.len() {
            let reader = AsyncReadExt::chain(&body[..at], &body[at..]);
            let mut reader = Buffered::new(reader);
            let framing = Framing::of(BodyLength::Chunked, ChunkSyntax::Lenient);
            let mut incoming = Incoming::Version1 { reader: &mut reader, framing };
            assert_eq!(incoming.next().await.unwrap().unwrap(), "a");
            assert!(incoming.next().await.unwrap().is_none() && incoming.is_done());
            let trailers = incoming.trailers().await.unwrap();
            assert_eq!(
                trailers.iter().collect::<Vec<_>>(),
                [("x-sum", &b"1"[..]), ("x-other", b"2")],
                "{at}"
            );
        }
        let none = async |section: &str| {
            let body = format!("0\r\n{section}\r\n");
            let mut reader = Buffered::new(body.as_bytes());
            let framing = Framing::of(BodyLength::Chunked, ChunkSyntax::Lenient);
            let mut incoming = Incoming::Version1 { reader: &mut reader, framing };
            assert!(incoming.next().await.unwrap().is_none());
            incoming.trailers().await.unwrap().is_empty()
        };
        assert!(none("").await && none("no field\r\n").await && none(&"a: b\r\n".repeat(129)).await);
        assert!(!none(&"a: b\r\n".repeat(128)).await);
    }

    #[tokio::test]
    async fn what_came_before_a_broken_chunk_is_given_first() {
        let pieces = pieces(b"1\r\na\r\n1\r\nb\r\n5\nc", b"").await;
        assert!(matches!(&pieces[..], [Ok(piece), Err(_)] if piece == "ab"), "{pieces:?}");
    }
}
