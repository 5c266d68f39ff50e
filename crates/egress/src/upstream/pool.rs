//! Keeps upstream connections for later requests: idle ones of HTTP/1, of which the one used last is reused first, and sessions of
//! HTTP/2 that requests share, of which the first with room is used. A pool belongs to one sidecar, and so to one run (C21).

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use policy::{Host, ProviderId, Scheme};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::{Instant, Sleep};

use super::stream::{Upstream, UpstreamReader, UpstreamWriter};
use crate::connection_slots::most_idle;
use crate::destination::Peer;
use crate::http::{BodyLength, Buffered, OpenStream, RequestSender};

/// How long idle connections are kept.
const IDLE: Duration = Duration::from_secs(30);
/// The most HTTP/2 sessions to one destination that requests share. Another one is opened where all are full, so there are several only
/// where an upstream allows few streams, or many requests came at once before there was any.
const MOST_ALIKE: usize = 8;

/// A connection to send a request over.
pub(crate) enum Link {
    /// An HTTP/1 connection, for one request at a time.
    Version1(Buffered<UpstreamReader>, UpstreamWriter),
    /// A handle to an HTTP/2 session that requests share.
    Version2(RequestSender),
}

impl Link {
    /// Wraps an open connection, by the HTTP version that it negotiated.
    pub(crate) async fn over(upstream: Upstream) -> io::Result<Self> {
        if upstream.chose_version_2() {
            return Ok(Self::Version2(crate::http::begin_version_2(upstream).await?));
        }
        let (reader, writer) = upstream.split();
        Ok(Self::Version1(Buffered::new(reader), writer))
    }

    /// Whether an idle connection has received nothing: an unsolicited response would be read as that to the next request, and a closed
    /// connection cannot carry one. Wakes the context when something arrives.
    fn is_silent(&mut self, cx: &mut Context<'_>) -> bool {
        let Self::Version1(reader, _) = self else { return true };
        let mut octet = [0];
        Pin::new(&mut reader.reader).poll_read(cx, &mut ReadBuf::new(&mut octet)).is_pending()
    }
}

/// The requests a connection may be reused for: those to the same peer, scheme and name, with the credential of the same provider. A
/// response that an upstream sends too late must not be read under a request for which other secrets are scrubbed.
struct PoolKey {
    peer: Peer,
    scheme: Scheme,
    host: Host,
    provider: Option<ProviderId>,
}

impl PoolKey {
    fn matches(&self, peer: Peer, purpose: &Purpose<'_>) -> bool {
        self.peer == peer
            && self.scheme == purpose.scheme
            && self.host == *purpose.host
            && self.provider.as_ref() == purpose.provider
    }
}

/// What a connection is used for, whoever the peer is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Purpose<'a> {
    /// Whether over TLS.
    pub(crate) scheme: Scheme,
    /// The granted host.
    pub(crate) host: &'a Host,
    /// The provider whose credential is in the request.
    pub(crate) provider: Option<&'a ProviderId>,
}

impl Purpose<'_> {
    fn at(&self, peer: Peer) -> PoolKey {
        PoolKey { peer, scheme: self.scheme, host: self.host.clone(), provider: self.provider.cloned() }
    }
}

/// An HTTP/1 connection that waits for another request.
struct IdleLink {
    key: PoolKey,
    since: Instant,
    link: Link,
}

impl IdleLink {
    fn is_fresh(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.since) < IDLE
    }
}

/// From when on a session may have lost its network unnoticed.
const QUIET: Duration = Duration::from_secs(5);

/// How many PINGs a session answers before it must have answered a request: servers of gRPC end one that asks them more (grpc-go's
/// `maxPingStrikes`).
const MOST_ASKED: u8 = 2;

/// An HTTP/2 session, and when it last answered. One that has not answered for [`IDLE`] may be dead, so it takes no more requests.
struct Session {
    heard: Instant,
    /// How many PINGs it has answered since it answered a request.
    asked: u8,
    requests: RequestSender,
}

/// Whether a session may be used as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pulse {
    /// It answered a moment ago, or may not be asked again.
    Heard,
    /// It was quiet, so that it may be dead.
    Quiet,
}

impl Session {
    fn pulse(&self) -> Pulse {
        let may_be_asked = self.heard.elapsed() >= QUIET && self.asked < MOST_ASKED;
        if may_be_asked { Pulse::Quiet } else { Pulse::Heard }
    }

    fn begun(requests: &RequestSender) -> Self {
        Self { heard: Instant::now(), asked: 0, requests: requests.clone() }
    }

    fn is_fresh(&self) -> bool {
        self.heard.elapsed() < IDLE
    }

    fn is_usable(&mut self) -> bool {
        self.is_fresh() && !self.requests.has_ended()
    }
}

/// The upstream connections of one sidecar.
#[derive(Default)]
pub(crate) struct Pool {
    /// Ordered by last use. There are few, so they are searched linearly.
    idle: RefCell<Vec<IdleLink>>,
    /// Ordered by age.
    shared: RefCell<Vec<(PoolKey, Session)>>,
    tender: Tender,
}

/// The task that runs [`Pool::tend`].
#[derive(Default)]
struct Tender {
    waker: RefCell<Option<Waker>>,
    /// Whether it has a timer for the oldest connection. Without one it sleeps until it is woken.
    has_timer: Cell<bool>,
}

impl Tender {
    /// Calls `act` with the context of the task, or with one that nobody waits in.
    fn with_context<T>(&self, act: impl FnOnce(&mut Context<'_>) -> T) -> T {
        let waker = self.waker.borrow();
        act(&mut Context::from_waker(waker.as_ref().unwrap_or(Waker::noop())))
    }

    /// Has it set its timer if it has none.
    fn set_timer(&self) {
        if !self.has_timer.get() {
            self.waker.borrow().iter().for_each(Waker::wake_by_ref);
        }
    }
}

impl Pool {
    /// Takes the HTTP/1 connection last used for this, to the first of these peers that has one that is still fresh. Also returns how long
    /// it was idle.
    pub(crate) fn take(
        &self,
        purpose: &Purpose<'_>,
        mut peers: impl Iterator<Item = Peer>,
    ) -> Option<(Peer, Link, Duration)> {
        let (mut kept, now) = (self.idle.borrow_mut(), Instant::now());
        peers.find_map(|peer| {
            while let Some(last) = kept.iter().rposition(|it| it.key.matches(peer, purpose)) {
                let mut idle = kept.remove(last);
                let mut cx = Context::from_waker(Waker::noop());
                if idle.is_fresh(now) && idle.link.is_silent(&mut cx) {
                    return Some((peer, idle.link, now.saturating_duration_since(idle.since)));
                }
            }
            None
        })
    }

    /// Keeps an HTTP/1 connection whose last response was read to its end.
    pub(crate) fn keep(&self, purpose: &Purpose<'_>, peer: Peer, mut link: Link) {
        if !self.tender.with_context(|cx| link.is_silent(cx)) {
            return;
        }
        let (mut kept, now) = (self.idle.borrow_mut(), Instant::now());
        kept.retain(|idle| idle.is_fresh(now));
        if kept.len() >= most_idle() {
            kept.remove(0);
        }
        kept.push(IdleLink { key: purpose.at(peer), since: now, link });
        self.tender.set_timer();
    }

    /// Returns the first HTTP/2 session for this, to one of these peers, that is fresh and has room for a request with such a body. Also returns
    /// whether it may be used as it is.
    pub(crate) fn session(
        &self,
        purpose: &Purpose<'_>,
        mut peers: impl Iterator<Item = Peer>,
        body: BodyLength,
    ) -> Option<(Peer, RequestSender, Pulse)> {
        let mut shared = self.shared.borrow_mut();
        shared.retain_mut(|(_, session)| session.is_usable());
        let open = |peer: Peer| {
            let mut of_peer = shared.iter().filter(|(key, _)| key.matches(peer, purpose));
            let found = of_peer.find(|(_, session)| session.requests.has_room_for(body));
            found.map(|(_, session)| (peer, session.requests.clone(), session.pulse()))
        };
        peers.find_map(open)
    }

    /// Adds a new HTTP/2 session, for requests to share. Those to the same destination stay: they are full for a while only. Where there
    /// are many of them, the new one is for its own request: of sessions that are opened at once the first have the largest windows.
    pub(crate) fn share(&self, purpose: &Purpose<'_>, peer: Peer, session: &RequestSender) {
        let mut shared = self.shared.borrow_mut();
        shared.retain_mut(|(_, session)| session.is_usable());
        if shared.iter().filter(|(key, _)| key.matches(peer, purpose)).count() >= MOST_ALIKE {
            return;
        }
        if shared.len() >= most_idle() {
            shared.remove(0);
        }
        shared.push((purpose.at(peer), Session::begun(session)));
        self.tender.set_timer();
    }

    /// Notes that a session has answered on one of its streams.
    pub(crate) fn heard(&self, stream: &OpenStream) {
        self.note(stream, |session| session.asked = 0);
    }

    /// Notes that the session of a stream has answered a PING.
    pub(crate) fn answered_ping(&self, stream: &OpenStream) {
        // Those who share one PING find that the session was heard.
        self.note(stream, |session| session.asked += u8::from(session.pulse() == Pulse::Quiet));
    }

    fn note(&self, stream: &OpenStream, note: impl FnOnce(&mut Session)) {
        let mut shared = self.shared.borrow_mut();
        if let Some((_, session)) = shared.iter_mut().find(|(_, session)| session.requests.has(stream)) {
            note(session);
            session.heard = Instant::now();
        }
    }

    /// Removes the session of a stream: it has ended or may be dead.
    pub(crate) fn forget(&self, stream: &OpenStream) {
        self.shared.borrow_mut().retain(|(_, session)| !session.requests.has(stream));
    }
}

impl Pool {
    /// Closes connections that have been idle for too long, and those that the upstream has closed, for ever. While none is kept it is not
    /// woken.
    pub(crate) async fn tend(&self) {
        let mut timer = pin!(None::<Sleep>);
        poll_fn(|cx| {
            if !self.tender.waker.borrow().as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
                *self.tender.waker.borrow_mut() = Some(cx.waker().clone());
            }
            loop {
                self.close_unusable(cx);
                let Some(due) = self.oldest_is_due() else { break timer.set(None) };
                if timer.as_ref().as_pin_ref().is_none_or(|timer| timer.deadline() > due) {
                    timer.set(Some(tokio::time::sleep_until(due)));
                }
                match timer.as_mut().as_pin_mut().map(|timer| timer.poll(cx)) {
                    // It was set for a connection that has been used since.
                    Some(Poll::Ready(())) => timer.set(None),
                    _ => break,
                }
            }
            self.tender.has_timer.set(timer.is_some());
            Poll::<()>::Pending
        })
        .await;
    }

    /// Closes what can carry no more requests. A session that has yet to answer one may still do so, and is fresh then.
    fn close_unusable(&self, cx: &mut Context<'_>) {
        let now = Instant::now();
        self.idle.borrow_mut().retain_mut(|idle| idle.is_fresh(now) && idle.link.is_silent(cx));
        self.shared.borrow_mut().retain_mut(|(_, session)| {
            !session.requests.has_ended() && (session.is_fresh() || !session.requests.is_unused())
        });
    }

    /// When the connection that was used least recently will have been idle for too long; for one that still awaits an answer, when to look
    /// again.
    fn oldest_is_due(&self) -> Option<Instant> {
        let (idle, shared) = (self.idle.borrow(), self.shared.borrow());
        let heard = shared.iter().map(|(_, session)| match session.is_fresh() {
            true => session.heard,
            false => Instant::now(),
        });
        idle.iter().map(|idle| idle.since).chain(heard).min().map(|used| used + IDLE)
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pool({})", self.idle.borrow().len())
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tokio::io::{AsyncWriteExt, DuplexStream};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::exchange::tests::ready;
    use crate::exchange::{Exchange, Ready};
    use crate::fixture::gate_for;
    use crate::upstream::Dialled;

    /// Whether a link is silent after its peer has done something.
    async fn is_silent_after<F: Future<Output = TcpStream>>(does: impl FnOnce(TcpStream) -> F) -> bool {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        #[expect(clippy::disallowed_methods, reason = "a test on this machine")]
        let (ours, theirs) = tokio::join!(TcpStream::connect(address), listener.accept());
        let mut link = Link::over(Upstream::Plain(Dialled::Tcp(ours.unwrap()))).await.unwrap();
        let mut cx = Context::from_waker(Waker::noop());
        assert!(link.is_silent(&mut cx));
        let _theirs = does(theirs.unwrap().0).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        link.is_silent(&mut cx)
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_that_has_not_answered_for_long_is_not_used() {
        let (ours, _theirs) = tokio::io::duplex(4096);
        let (requests, mut connection) = h2::client::handshake(ours).await.unwrap();
        let mut session = Session::begun(&RequestSender::uncounted(requests, &mut connection));
        assert_eq!(session.pulse(), Pulse::Heard);
        tokio::time::advance(QUIET).await;
        assert_eq!(session.pulse(), Pulse::Quiet);
        session.asked = MOST_ASKED;
        assert_eq!(session.pulse(), Pulse::Heard, "a server may take more questions amiss");
        (session.heard, session.asked) = (Instant::now(), 0);
        for _ in 0..3 {
            tokio::time::advance(IDLE - Duration::from_secs(1)).await;
            assert!(session.is_fresh());
            session.heard = Instant::now();
        }
        tokio::time::advance(IDLE).await;
        assert!(!session.is_fresh());
    }

    const URL: &str = "http://127.0.0.1:9/";

    /// What a session must have to go on: its connection, and the other end.
    type Alive = (h2::client::Connection<DuplexStream, Bytes>, DuplexStream);

    /// So many sessions to one destination that are shared in a pool, in this order.
    async fn sessions_in(
        pool: &Pool,
        exchange: &mut Exchange<Ready>,
        many: usize,
    ) -> (Vec<RequestSender>, Vec<Alive>) {
        let peer = exchange.destination().peers().next().unwrap();
        exchange.reach(peer);
        let (mut sessions, mut alive) = (Vec::new(), Vec::new());
        for _ in 0..many {
            let (ours, theirs) = tokio::io::duplex(4096);
            let (requests, mut connection) =
                h2::client::Builder::new().initial_max_send_streams(4).handshake(ours).await.unwrap();
            sessions.push(RequestSender::uncounted(requests, &mut connection));
            alive.push((connection, theirs));
            pool.share(&exchange.purpose(Scheme::Http), peer, &sessions[sessions.len() - 1]);
        }
        (sessions, alive)
    }

    /// Which of the sessions the pool gives to the next request.
    fn next_of(pool: &Pool, exchange: &mut Exchange<Ready>, sessions: &[RequestSender]) -> Option<usize> {
        let peers = exchange.destination().peers();
        let stream = pool.session(&exchange.purpose(Scheme::Http), peers, BodyLength::None)?.1.count_stream();
        sessions.iter().position(|session| session.has(&stream))
    }

    fn fill(session: &RequestSender) -> Vec<OpenStream> {
        std::iter::from_fn(|| session.has_room_for(BodyLength::None).then(|| session.count_stream()))
            .collect()
    }

    #[tokio::test(start_paused = true)]
    async fn sessions_to_one_destination_live_and_end_each_by_itself() {
        let gate = gate_for("[egress]\nallow = [{ url = \"http://127.0.0.1:9/*\" }]\n", Vec::new(), None);
        let (pool, mut exchange) = (Pool::default(), ready(&gate, URL).await);
        let (sessions, _others) = sessions_in(&pool, &mut exchange, 3).await;
        let mut next = || next_of(&pool, &mut exchange, &sessions);
        // The first one with room is used, and once more when it has room again.
        assert_eq!(next(), Some(0));
        let (full, other) = (fill(&sessions[0]), fill(&sessions[1]));
        assert_eq!(next(), Some(2));
        let third = fill(&sessions[2]);
        assert_eq!(next(), None);
        drop((full, other, third));
        assert_eq!(next(), Some(0));
        // One that fails takes no other with it.
        pool.forget(&sessions[0].count_stream());
        assert_eq!(next(), Some(1));
        // One that answers keeps no other.
        tokio::time::advance(IDLE - Duration::from_secs(1)).await;
        pool.heard(&sessions[2].count_stream());
        assert_eq!(next(), Some(1));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(next(), Some(2));
    }

    #[tokio::test]
    async fn of_too_many_sessions_to_one_destination_the_first_are_shared() {
        let rule =
            "[egress]\nallow = [{ url = \"http://127.0.0.1:9/*\" }, { url = \"http://127.0.0.1:10/*\" }]\n";
        let gate = gate_for(rule, Vec::new(), None);
        let (pool, mut exchange) = (Pool::default(), ready(&gate, URL).await);
        let mut another = ready(&gate, "http://127.0.0.1:10/").await;
        let (apart, _alive) = sessions_in(&pool, &mut another, 1).await;
        let (sessions, _others) = sessions_in(&pool, &mut exchange, MOST_ALIKE + 2).await;
        assert_eq!(next_of(&pool, &mut exchange, &sessions), Some(0));
        assert_eq!(pool.shared.borrow().len(), MOST_ALIKE + 1);
        assert_eq!(next_of(&pool, &mut another, &apart), Some(0));
    }

    /// Keeps a connection, and returns its other end.
    async fn kept_in(pool: &Pool, exchange: &mut Exchange<Ready>) -> TcpStream {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        #[expect(clippy::disallowed_methods, reason = "a test on this machine")]
        let (ours, theirs) = tokio::join!(TcpStream::connect(address), listener.accept());
        let peer = exchange.destination().peers().next().unwrap();
        exchange.reach(peer);
        let link = Link::over(Upstream::Plain(Dialled::Tcp(ours.unwrap()))).await.unwrap();
        pool.keep(&exchange.purpose(Scheme::Http), peer, link);
        theirs.unwrap().0
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_idle_is_closed_though_nobody_asks_for_it() {
        use tokio::io::AsyncReadExt;
        let gate = gate_for("[egress]\nallow = [{ url = \"http://127.0.0.1:9/*\" }]\n", Vec::new(), None);
        let (pool, mut exchange) = (Pool::default(), ready(&gate, URL).await);
        let lives = async {
            for _ in 0..2 {
                // Nothing has been kept for long, so the task sleeps.
                tokio::time::sleep(10 * IDLE).await;
                assert!(!pool.tender.has_timer.get());
                let kept = Instant::now();
                let mut first = kept_in(&pool, &mut exchange).await;
                let (_sessions, _others) = sessions_in(&pool, &mut exchange, 1).await;
                tokio::time::sleep(IDLE / 2).await;
                let mut second = kept_in(&pool, &mut exchange).await;
                assert_eq!(first.read(&mut [0]).await.unwrap(), 0);
                assert_eq!(kept.elapsed().as_secs(), IDLE.as_secs());
                assert!(pool.shared.borrow().is_empty() && pool.idle.borrow().len() == 1);
                assert_eq!(second.read(&mut [0]).await.unwrap(), 0);
                assert_eq!(kept.elapsed().as_secs(), (IDLE + IDLE / 2).as_secs());
            }
        };
        tokio::select! {
            () = pool.tend() => unreachable!(),
            () = lives => {}
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_that_answers_late_is_kept_for_the_next_request() {
        let gate = gate_for("[egress]\nallow = [{ url = \"http://127.0.0.1:9/*\" }]\n", Vec::new(), None);
        let (pool, mut exchange) = (Pool::default(), ready(&gate, URL).await);
        let lives = async {
            let (sessions, _others) = sessions_in(&pool, &mut exchange, 1).await;
            let stream = sessions[0].count_stream();
            tokio::time::sleep(10 * IDLE).await;
            pool.heard(&stream);
            drop(stream);
            tokio::time::sleep(IDLE / 2).await;
            assert_eq!(next_of(&pool, &mut exchange, &sessions), Some(0));
            tokio::time::sleep(2 * IDLE).await;
            assert!(pool.shared.borrow().is_empty() && !pool.tender.has_timer.get());
        };
        tokio::select! {
            () = pool.tend() => unreachable!(),
            () = lives => {}
        }
    }

    #[tokio::test]
    async fn what_the_upstream_closes_is_closed_at_once() {
        use tokio::io::AsyncReadExt;
        let gate = gate_for("[egress]\nallow = [{ url = \"http://127.0.0.1:9/*\" }]\n", Vec::new(), None);
        let (pool, mut exchange) = (Pool::default(), ready(&gate, URL).await);
        let lives = async {
            let (mut first, _second) =
                (kept_in(&pool, &mut exchange).await, kept_in(&pool, &mut exchange).await);
            first.shutdown().await.unwrap();
            let closed = tokio::time::timeout(Duration::from_secs(5), first.read(&mut [0])).await;
            assert_eq!(closed.expect("it is closed").unwrap(), 0);
            assert_eq!(pool.idle.borrow().len(), 1);
        };
        tokio::select! {
            () = pool.tend() => unreachable!(),
            () = lives => {}
        }
    }

    #[tokio::test]
    async fn what_came_unasked_and_an_end_are_heard() {
        assert!(is_silent_after(|theirs| async { theirs }).await);
        let speaks = |mut theirs: TcpStream| async {
            theirs.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
            theirs
        };
        assert!(!is_silent_after(speaks).await);
        let ends = |mut theirs: TcpStream| async {
            theirs.shutdown().await.unwrap();
            theirs
        };
        assert!(!is_silent_after(ends).await);
    }
}
