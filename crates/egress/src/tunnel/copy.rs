//! Copies octets both ways between two connections. All share one buffer, so an idle connection holds none.
//!
//! Octets are copied and not moved by `splice(2)` through a pipe: most of the cost is the kernel's TCP, and the receiver pays more to
//! read spliced pages.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_rustls::client::TlsStream;

use crate::audit::Record;
use crate::cause::cause;
use crate::directions::{Broken, Ended, Failed, Side, both};
use crate::exchange::{Exchange, Flow, Pinned};
use crate::http::Buffered;
use crate::upstream::Dialled;

/// How long a peer may take what was written to it before the other one was reset.
const TAKEN: Duration = Duration::from_secs(60);

/// The size of the shared buffer.
const BUFFER: usize = 64 * 1024;

thread_local! {
    /// The buffer of all connections. It is never held across an await.
    static SHARED: RefCell<Vec<u8>> = RefCell::new(vec![0; BUFFER]);
}

/// Copies both ways until both sides have ended, or no octet has moved for `idle`.
pub(super) async fn both_ways(
    mut exchange: Exchange<Pinned>,
    mut agent: Buffered<TcpStream>,
    mut upstream: Dialled,
    idle: Duration,
) -> io::Result<()> {
    let ahead = std::mem::take(&mut agent.ahead);
    if !ahead.is_empty() {
        upstream.write_all(&ahead).await?;
        upstream.flush().await?;
    }
    let flow = Flow::of(exchange.record(), ahead.len());
    drop(ahead);
    let counts = Counts { there: &flow.sent, back: &flow.received };
    let outcome = match upstream {
        Dialled::Tcp(mut upstream) => between(&mut agent.reader, &mut upstream, counts, idle).await,
        Dialled::Tls(mut upstream) => through_tls(&mut agent.reader, &mut upstream, counts, idle).await,
    };
    drop(flow);
    match outcome {
        Ok(Ended::ByPeers) => Ok(()),
        Ok(Ended::Idle) => {
            exchange.record().note("nothing moved for too long");
            Ok(())
        }
        Err(broken) => {
            note_break(exchange.record(), &broken, ["the program inside", "the upstream"]);
            Err(broken.error)
        }
    }
}

/// Notes who broke a connection off: what moved may be less than there was to say.
pub(super) fn note_break(record: &mut Record, broken: &Broken, [first, second]: [&str; 2]) {
    if broken.is_reset() {
        let who = if broken.by == Side::First { first } else { second };
        record.note(&format!("{who} broke the connection off: {}", cause(&broken.error)));
    }
}

/// The octets that were copied to the second of two connections, and back from it.
#[derive(Clone, Copy)]
pub(super) struct Counts<'a> {
    pub(super) there: &'a Cell<u64>,
    pub(super) back: &'a Cell<u64>,
}

/// Copies both ways between two connections, and counts the octets to the second and from it. Where one is reset, so is the other.
pub(super) async fn between(
    first: &mut TcpStream,
    second: &mut TcpStream,
    counts: Counts<'_>,
    idle: Duration,
) -> Result<Ended, Broken> {
    let outcome = copy_between(first, second, counts, idle).await;
    pass_reset_on(&outcome, first, second).await;
    outcome
}

/// Resets the other connection where one was reset, once what was written to it has been sent: a reset takes the rest back.
async fn pass_reset_on(outcome: &Result<Ended, Broken>, first: &TcpStream, second: &TcpStream) {
    let Err(broken) = outcome else { return };
    if broken.is_reset() {
        let other = if broken.by == Side::First { second } else { first };
        let _ = tokio::time::timeout(TAKEN, all_sent(other)).await;
        let _ = other.set_zero_linger();
    }
}

/// Waits until the kernel has sent all that was written. A socket with this mark has room only then (`TCP_NOTSENT_LOWAT`, tcp(7)).
async fn all_sent(stream: &TcpStream) -> io::Result<()> {
    socket2::SockRef::from(stream).set_tcp_notsent_lowat(1)?;
    let has_room =
        || match rustix::event::poll(&mut [PollFd::new(stream, PollFlags::OUT)], Some(&Timespec::default()))?
        {
            0 => Err(io::ErrorKind::WouldBlock.into()),
            _ => Ok(()),
        };
    stream.async_io(Interest::WRITABLE, has_room).await
}

async fn copy_between(
    first: &mut TcpStream,
    second: &mut TcpStream,
    counts: Counts<'_>,
    idle: Duration,
) -> Result<Ended, Broken> {
    let (moved, ended) = (Cell::new(Instant::now()), Cell::new(false));
    let (first, second) = (&*first, &*second);
    let there = one_way(Octets(first), second, counts.there, &moved, &ended);
    let back = one_way(Octets(second), first, counts.back, &moved, &ended);
    both(there, back, &moved, idle).await
}

/// Copies both ways between the agent and an upstream inside the TLS of a proxy, with buffers of their own.
async fn through_tls(
    agent: &mut TcpStream,
    upstream: &mut TlsStream<TcpStream>,
    counts: Counts<'_>,
    idle: Duration,
) -> Result<Ended, Broken> {
    let moved = Cell::new(Instant::now());
    let outcome = {
        let (from_upstream, to_upstream) = tokio::io::split(&mut *upstream);
        let (from_agent, to_agent) = agent.split();
        let there = through(Octets(from_agent.as_ref()), to_upstream, counts.there, &moved);
        let back = through(from_upstream, to_agent, counts.back, &moved);
        both(there, back, &moved, idle).await
    };
    pass_reset_on(&outcome, agent, upstream.get_ref().0).await;
    outcome
}

/// Copies one way between any two streams, with a buffer of its own.
async fn through(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    count: &Cell<u64>,
    moved: &Cell<Instant>,
) -> Result<(), Failed> {
    let mut buffer = vec![0; 16 * 1024];
    loop {
        let read = from.read(&mut buffer).await.map_err(Failed::Reading)?;
        if read == 0 {
            return to.shutdown().await.map_err(Failed::Writing);
        }
        to.write_all(&buffer[..read]).await.map_err(Failed::Writing)?;
        to.flush().await.map_err(Failed::Writing)?;
        count.set(count.get() + read as u64);
        moved.set(Instant::now());
    }
}

/// Copies one way, then shuts the writing side down unless the other direction has ended first.
async fn one_way(
    from: Octets<'_>,
    to: &TcpStream,
    count: &Cell<u64>,
    moved: &Cell<Instant>,
    ended: &Cell<bool>,
) -> Result<(), Failed> {
    let copied = until_end(from, to, count, moved).await;
    if ended.replace(true) {
        return copied; // both directions have ended, and the connections are closed now
    }
    copied?;
    rustix::net::shutdown(to, rustix::net::Shutdown::Write).or_else(|errno| match errno {
        rustix::io::Errno::NOTCONN => Ok(()),
        other => Err(Failed::Writing(other.into())),
    })
}

/// Copies one way until its peer has ended it.
async fn until_end(
    mut from: Octets<'_>,
    to: &TcpStream,
    count: &Cell<u64>,
    moved: &Cell<Instant>,
) -> Result<(), Failed> {
    loop {
        let (read, left) = poll_fn(|context| {
            SHARED.with_borrow_mut(|buffer| read_and_write(Pin::new(&mut from), to, buffer, context))
        })
        .await?;
        if read == 0 {
            return Ok(());
        }
        write_left(to, &left).await.map_err(Failed::Writing)?;
        count.set(count.get() + read as u64);
        moved.set(Instant::now());
    }
}

/// What a connection says. The kernel ends a read at an urgent octet, with more behind it, where tokio would take a read that leaves room
/// in the buffer for the last of what there is.
struct Octets<'a>(&'a TcpStream);

impl AsyncRead for Octets<'_> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        room: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.0.poll_read_ready(context))?;
            match self.0.try_read(room.initialize_unfilled()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return Poll::Ready(read.map(|read| room.advance(read))),
            }
        }
    }
}

/// Reads once and writes as much as it can without waiting. Returns the length read, and the octets not yet written.
fn read_and_write(
    from: Pin<&mut Octets<'_>>,
    to: &TcpStream,
    buffer: &mut [u8],
    context: &mut Context<'_>,
) -> Poll<Result<(usize, Vec<u8>), Failed>> {
    let mut room = ReadBuf::new(buffer);
    ready!(from.poll_read(context, &mut room)).map_err(Failed::Reading)?;
    let read = room.filled();
    if read.is_empty() {
        return Poll::Ready(Ok((0, Vec::new())));
    }
    let written = write_at_once(to, read).map_err(Failed::Writing)?;
    Poll::Ready(Ok((read.len(), read[written..].to_vec())))
}

/// Writes as much as the socket takes without waiting.
fn write_at_once(to: &TcpStream, octets: &[u8]) -> io::Result<usize> {
    match to.try_write(octets) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
        written => written,
    }
}

async fn write_left(to: &TcpStream, mut left: &[u8]) -> io::Result<()> {
    while !left.is_empty() {
        to.writable().await?;
        match to.try_write(left) {
            Ok(written) => left = &left[written..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use rustix::net::SendFlags;

    use super::*;
    use crate::directions::{BROKEN, HALF_CLOSED};
    use crate::socket_options;

    const IDLE: Duration = Duration::from_secs(60);

    /// A connection, by both its ends.
    async fn pair() -> (TcpStream, TcpStream) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        #[expect(clippy::disallowed_methods, reason = "a test on this machine")]
        let (dialled, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        let pair = (dialled.unwrap(), accepted.unwrap().0);
        socket_options::set(&pair.0).and(socket_options::set(&pair.1)).unwrap();
        pair
    }

    /// Copies between two connections while `others` plays their peers. Returns the outcome, how long it took, and how many octets
    /// went there and back.
    async fn copy_while<F: Future<Output = ()>>(
        idle: Duration,
        others: impl FnOnce(TcpStream, TcpStream) -> F,
    ) -> (Result<Ended, Broken>, Duration, (u64, u64)) {
        let ((left, first), (right, second)) = (pair().await, pair().await);
        let began = Instant::now();
        let (there, back) = (Cell::new(0), Cell::new(0));
        let copy = async {
            let (mut first, mut second) = (first, second); // moved here, so that they are closed when the copy has ended
            let outcome = between(&mut first, &mut second, Counts { there: &there, back: &back }, idle).await;
            (outcome, began.elapsed())
        };
        let ((outcome, took), ()) = tokio::join!(copy, others(left, right));
        (outcome, took, (there.get(), back.get()))
    }

    #[tokio::test(start_paused = true)]
    async fn what_says_nothing_is_ended_and_what_speaks_is_not() {
        let (outcome, took, moved) = copy_while(IDLE, |mut left, mut right| async move {
            for _ in 0..5 {
                tokio::time::sleep(IDLE * 2 / 3).await;
                left.write_all(b"question").await.unwrap();
                right.read_exact(&mut [0; 8]).await.unwrap();
                right.write_all(b"answer").await.unwrap();
                left.read_exact(&mut [0; 6]).await.unwrap();
            }
            tokio::time::sleep(IDLE * 3).await;
        })
        .await;
        assert_eq!(outcome.unwrap(), Ended::Idle);
        assert_eq!(moved, (40, 30));
        let last = IDLE * 10 / 3;
        // The paused clock may advance to the next timer while octets are on their way.
        assert!(took >= last + IDLE && took <= last + IDLE * 2, "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_end_is_passed_on_and_the_other_way_goes_on_for_a_while() {
        let idle = HALF_CLOSED * 6;
        let (outcome, took, moved) = copy_while(idle, |mut left, mut right| async move {
            left.write_all(b"all").await.unwrap();
            left.shutdown().await.unwrap();
            let mut heard = Vec::new();
            right.read_to_end(&mut heard).await.unwrap();
            assert_eq!(heard, b"all");
            tokio::time::sleep(HALF_CLOSED / 2).await;
            right.write_all(b"answer").await.unwrap();
            left.read_exact(&mut [0; 6]).await.unwrap();
            // Neither peer sends more, and only one direction has ended.
            tokio::time::sleep(idle).await;
        })
        .await;
        assert_eq!(outcome.unwrap(), Ended::Idle);
        assert_eq!(moved, (3, 6));
        assert!(took >= HALF_CLOSED * 3 / 2 && took <= HALF_CLOSED * 5 / 2, "{took:?}");
    }

    #[tokio::test]
    async fn an_urgent_octet_stays_in_its_place() {
        async fn tell(says: &TcpStream, hears: &mut TcpStream) {
            for (octets, flags) in
                [(b"abc", SendFlags::empty()), (b"XYZ", SendFlags::OOB), (b"def", SendFlags::empty())]
            {
                rustix::net::send(says, octets, flags).unwrap();
            }
            let mut heard = [0; 9];
            hears.read_exact(&mut heard).await.unwrap();
            assert_eq!(&heard, b"abcXYZdef");
        }
        let (outcome, _, moved) = copy_while(IDLE, |mut left, mut right| async move {
            tell(&left, &mut right).await;
            tell(&right, &mut left).await;
        })
        .await;
        assert_eq!((outcome.unwrap(), moved), (Ended::ByPeers, (9, 9)));
    }

    #[tokio::test]
    async fn what_was_said_before_nothing_more_was_taken_still_comes() {
        // Like a server that answers that a request is too large, and closes with most of it unread, which resets the connection.
        let (outcome, _, _) = copy_while(IDLE, |mut left, mut right| async move {
            let (mut from, mut to) = left.split();
            let sends = async { while to.write_all(&[1; 1 << 16]).await.is_ok() {} };
            let answers = async move {
                right.read_exact(&mut [0; 1 << 16]).await.unwrap();
                right.write_all(b"too large").await.unwrap();
            };
            let mut heard = Vec::new();
            let hears = async {
                let _ = from.read_to_end(&mut heard).await;
            };
            tokio::join!(sends, answers, hears);
            assert_eq!(heard, b"too large");
        })
        .await;
        assert!(outcome.is_err());
    }

    #[tokio::test]
    async fn a_reset_is_passed_on_as_one_behind_what_was_said_before() {
        for (said, by) in [(1000, Side::Second), (1000, Side::First), (16 << 20, Side::Second)] {
            let (outcome, took, _) = copy_while(IDLE, |left, right| async move {
                let (mut resets, mut hears) = if by == Side::First { (left, right) } else { (right, left) };
                let mut heard = Vec::new();
                let hears = async {
                    // More is on its way than the connection to this peer holds.
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    let read = hears.read_to_end(&mut heard).await;
                    assert_eq!(read.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
                };
                let says = async move {
                    resets.write_all(&vec![1; said]).await.unwrap();
                    all_sent(&resets).await.unwrap();
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    resets.set_zero_linger().unwrap();
                };
                tokio::join!(hears, says);
                if said == 1000 {
                    assert_eq!(heard.len(), said);
                }
            })
            .await;
            let broken = outcome.unwrap_err();
            assert!(broken.by == by && broken.is_reset(), "{broken:?}");
            assert!(took < BROKEN / 2, "{took:?}");
        }
    }

    #[tokio::test]
    async fn what_was_written_is_sent_before_a_reset() {
        let (ours, mut theirs) = pair().await;
        let mut written = 0;
        while let Ok(more) = ours.try_write(&[1; 4096]) {
            written += more;
        }
        let broken = Broken { by: Side::First, error: io::ErrorKind::ConnectionReset.into(), is_over: true };
        let mut heard = Vec::new();
        let resets = async {
            pass_reset_on(&Err(broken), &ours, &ours).await;
            drop(ours);
        };
        let ((), read) = tokio::join!(resets, theirs.read_to_end(&mut heard));
        assert_eq!((read.unwrap_err().kind(), heard.len()), (io::ErrorKind::ConnectionReset, written));
    }

    #[tokio::test]
    async fn much_goes_both_ways_at_once_and_both_ends_end_it() {
        const MUCH: usize = 3 << 20;
        let (outcome, _, moved) = copy_while(IDLE, |left, right| async move {
            let both = |stream: TcpStream, octet: u8| async move {
                let (mut from, mut to) = stream.into_split();
                let send = async move {
                    to.write_all(&vec![octet; MUCH]).await.unwrap();
                    to.shutdown().await.unwrap();
                };
                let mut heard = Vec::new();
                let (_, read) = tokio::join!(send, from.read_to_end(&mut heard));
                assert_eq!(read.unwrap(), MUCH);
                assert!(heard.iter().all(|heard| *heard == 3 - octet));
            };
            tokio::join!(both(left, 1), both(right, 2));
        })
        .await;
        assert_eq!(outcome.unwrap(), Ended::ByPeers);
        assert_eq!(moved, (MUCH as u64, MUCH as u64));
    }
}
