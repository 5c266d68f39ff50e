//! Counts the heads that an upstream sends in a session of HTTP/2, before the library reads them: it queues all that come for a request
//! until the request's task takes them, and interim responses have no flow control (RFC 9113 §5.2.1).

use std::cell::RefCell;
use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::interim::MOST_INTERIM;

/// How many heads may come for a request without ending its stream: the interim responses and the final one.
const MOST_HEADS: usize = MOST_INTERIM + 1;
/// How many octets of heads are read before the tasks of requests have a turn, to take them.
const HEADS_AT_ONCE: usize = 4 * 1024;

/// A frame begins with its length in 24 bits, its type, its flags, and its stream in 31 bits (RFC 9113 §4.1).
const FRAME_HEADER: usize = 9;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;

/// How many heads may still come for each request of a session whose final response is awaited, by its stream.
#[derive(Clone, Default)]
pub(super) struct AwaitedHeads(Rc<RefCell<HashMap<u32, usize>>>);

/// A request's place among those whose response is awaited; given back on drop. Heads for others are not queued: the library refuses them.
pub(super) struct Place {
    awaited: AwaitedHeads,
    stream: u32,
}

impl AwaitedHeads {
    /// Lets heads come for a request that begins.
    pub(super) fn expect(&self, stream: u32) -> Place {
        self.0.borrow_mut().insert(stream, MOST_HEADS);
        Place { awaited: self.clone(), stream }
    }

    /// Counts a head.
    ///
    /// # Errors
    /// It is one too many.
    fn count(&self, stream: u32) -> io::Result<()> {
        let mut awaited = self.0.borrow_mut();
        let Some(left) = awaited.get_mut(&stream) else { return Ok(()) };
        *left = left.checked_sub(1).ok_or_else(|| {
            let why = "the upstream answers and answers before it answers";
            io::Error::new(io::ErrorKind::ConnectionAborted, why)
        })?;
        Ok(())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.awaited.0.borrow_mut().remove(&self.stream);
    }
}

/// Where a reader is in the frames of a connection.
#[derive(Default)]
struct Frames {
    header: [u8; FRAME_HEADER],
    /// How much of the header has come.
    begun: usize,
    /// How much of the frame is still to come behind its header.
    left: usize,
    is_head: bool,
}

impl Frames {
    /// Follows what has come. Tells the stream of each head that does not end it, and returns how many octets were of heads.
    fn follow(
        &mut self,
        mut octets: &[u8],
        mut head: impl FnMut(u32) -> io::Result<()>,
    ) -> io::Result<usize> {
        let mut of_heads = 0;
        while !octets.is_empty() {
            if self.left > 0 {
                let taken = self.left.min(octets.len());
                self.left -= taken;
                of_heads += if self.is_head { taken } else { 0 };
                octets = &octets[taken..];
                continue;
            }
            let taken = (FRAME_HEADER - self.begun).min(octets.len());
            self.header[self.begun..self.begun + taken].copy_from_slice(&octets[..taken]);
            self.begun += taken;
            octets = &octets[taken..];
            if self.begun < FRAME_HEADER {
                break;
            }
            let [l0, l1, l2, kind, flags, s0, s1, s2, s3] = self.header;
            self.begun = 0;
            self.left = u32::from_be_bytes([0, l0, l1, l2]) as usize;
            self.is_head = matches!(kind, HEADERS | CONTINUATION);
            of_heads += if self.is_head { FRAME_HEADER } else { 0 };
            if kind == HEADERS && flags & END_STREAM == 0 {
                head(u32::from_be_bytes([s0 & 0x7f, s1, s2, s3]))?;
            }
        }
        Ok(of_heads)
    }
}

/// A connection whose heads are counted as they are read. Reading fails at the first that is one too many.
pub(super) struct HeadCounter<T> {
    inner: T,
    awaited: AwaitedHeads,
    frames: Frames,
    /// The octets of heads that were read since others had a turn.
    read: usize,
}

impl<T> HeadCounter<T> {
    pub(super) fn new(inner: T, awaited: AwaitedHeads) -> Self {
        Self { inner, awaited, frames: Frames::default(), read: 0 }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for HeadCounter<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.read >= HEADS_AT_ONCE {
            this.read = 0;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut this.inner).poll_read(cx, buf))?;
        let awaited = &this.awaited;
        this.read += this.frames.follow(&buf.filled()[before..], |stream| awaited.count(stream))?;
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for HeadCounter<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, octets: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, octets)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use proptest::prelude::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::http::head::BodyLength;
    use crate::http::session::over;

    /// A frame without sense in its payload.
    fn frame(kind: u8, flags: u8, stream: u32, payload: usize) -> Vec<u8> {
        let length = u32::try_from(payload).unwrap().to_be_bytes();
        let header = [&length[1..], &[kind, flags], &stream.to_be_bytes()].concat();
        [header, vec![HEADERS; payload]].concat()
    }

    /// The streams of the heads, and the octets of heads, in what comes in these pieces.
    fn followed<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> (Vec<u32>, usize) {
        let (mut frames, mut heads) = (Frames::default(), Vec::new());
        let octets = pieces.into_iter().map(|piece| {
            let followed = frames.follow(piece, |stream| {
                heads.push(stream);
                Ok(())
            });
            followed.unwrap()
        });
        let octets = octets.sum();
        (heads, octets)
    }

    #[test]
    fn heads_are_found_wherever_the_octets_are_cut() {
        let all = [
            frame(4, 0, 0, 18),
            frame(HEADERS, 0, 1, 30),
            frame(CONTINUATION, 4, 1, 7),
            frame(HEADERS, 4, 0x8000_0003, 0),
            frame(0, 0, 1, 300),
            frame(HEADERS, 4 | END_STREAM, 1, 5),
            frame(HEADERS, 4, 5, 1),
        ]
        .concat();
        let seen = (vec![1, 3, 5], 5 * FRAME_HEADER + 30 + 7 + 5 + 1);
        assert_eq!(followed([&all[..]]), seen);
        for cut in 0..all.len() {
            let (before, after) = all.split_at(cut);
            assert_eq!(followed([before, after]), seen, "cut at {cut}");
        }
        assert_eq!(followed(all.chunks(1)), seen);
    }

    #[test]
    fn each_request_has_its_own_count_until_its_response_has_come() {
        let awaited = AwaitedHeads::default();
        let (one, three) = (awaited.expect(1), awaited.expect(3));
        for _ in 0..MOST_HEADS {
            awaited.count(1).unwrap();
        }
        assert!(awaited.count(1).is_err());
        awaited.count(3).unwrap();
        drop(one);
        awaited.count(1).unwrap();
        drop(three);
        assert!(awaited.0.borrow().is_empty());
    }

    #[test]
    fn after_many_octets_of_heads_others_have_a_turn_and_after_data_not() {
        for (kind, rests) in [(HEADERS, true), (CONTINUATION, true), (0, false)] {
            let wire = frame(kind, 0, 1, HEADS_AT_ONCE).repeat(2);
            let mut reader = HeadCounter::new(&wire[..], AwaitedHeads::default());
            let mut context = Context::from_waker(Waker::noop());
            let mut turns = 0;
            let mut read = 0;
            while read < wire.len() {
                let mut room = [0; 512];
                let mut room = ReadBuf::new(&mut room);
                match Pin::new(&mut reader).poll_read(&mut context, &mut room) {
                    Poll::Ready(outcome) => outcome.unwrap(),
                    Poll::Pending => turns += 1,
                }
                read += room.filled().len();
            }
            assert_eq!(turns > 0, rests, "frames of type {kind}");
        }
    }

    /// Whether a session holds in which so many interim responses come for a request, while its task takes none of them.
    async fn holds(interims: usize) -> bool {
        const PREFACE: usize = 24; // RFC 9113 §3.4
        const PING: [u8; 8] = [1, 2, 3, 4, 5, 6, 7, 8];
        let (ours, mut theirs) = tokio::io::duplex(1 << 20);
        theirs.write_all(&frame(4, 0, 0, 0)).await.unwrap(); // SETTINGS
        let mut session = over(ours).await.unwrap();
        let request = http::Request::builder().uri("https://a.example/").body(()).unwrap();
        let (_untaken, _) = session.send(request, BodyLength::None).unwrap();
        let mut said = Vec::new();
        while said.len() < PREFACE || followed([&said[PREFACE..]]).1 == 0 {
            theirs.read_buf(&mut said).await.unwrap();
        }
        // `:status: 103`, as a literal with an indexed name (RFC 7541 §6.2.2, Appendix A).
        let interim = [&[0, 0, 5, HEADERS, 4, 0, 0, 0, 1][..], b"\x08\x03103"].concat();
        let ping = [&[0, 0, 8, 6, 0, 0, 0, 0, 0][..], &PING].concat();
        theirs.write_all(&[interim.repeat(interims), ping].concat()).await.unwrap();
        while !said.windows(PING.len()).any(|eight| eight == PING) {
            if theirs.read_buf(&mut said).await.unwrap_or(0) == 0 {
                return false;
            }
        }
        true
    }

    #[tokio::test]
    async fn no_more_heads_are_queued_than_may_come() {
        let local = tokio::task::LocalSet::new();
        local
            .run_until(async {
                assert!(holds(0).await && holds(MOST_HEADS).await);
                assert!(!holds(MOST_HEADS + 1).await && !holds(2000).await);
            })
            .await;
    }

    proptest! {
        #[test]
        fn pieces_change_nothing(
            frames in prop::collection::vec((0u8..12, any::<u8>(), any::<u32>(), 0usize..40), 0..20),
            cuts in prop::collection::vec(1usize..50, 1..40),
        ) {
            let mut wire = Vec::new();
            let (mut heads, mut octets) = (Vec::new(), 0);
            for (kind, flags, stream, payload) in frames {
                wire.extend(frame(kind, flags, stream, payload));
                if [HEADERS, CONTINUATION].contains(&kind) {
                    octets += FRAME_HEADER + payload;
                }
                if kind == HEADERS && flags % 2 == 0 {
                    heads.push(stream % (1 << 31));
                }
            }
            let mut rest = &wire[..];
            let mut pieces = Vec::new();
            for cut in cuts {
                let (piece, after) = rest.split_at(cut.min(rest.len()));
                pieces.push(piece);
                rest = after;
            }
            pieces.push(rest);
            prop_assert_eq!(followed(pieces), (heads, octets));
        }
    }
}
