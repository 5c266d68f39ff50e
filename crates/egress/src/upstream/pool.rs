//! Keeps idle upstream connections for later requests. A pool belongs to one sidecar, and so to one run (C21). The connection used
//! last is reused first.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::Duration;

use policy::{Host, ProviderId, Scheme};
use tokio::io::{AsyncRead, ReadBuf, ReadHalf, WriteHalf};
use tokio::time::Instant;

use super::stream::Upstream;
use crate::connection_slots::most_idle;
use crate::destination::Peer;
use crate::exchange::{Exchange, Ready};
use crate::http::{Buffered, RequestSender};

/// How long idle connections are kept.
const IDLE: Duration = Duration::from_secs(30);

/// The halves of an HTTP/1 connection.
pub(crate) type UpstreamReader = ReadHalf<Upstream>;
pub(crate) type UpstreamWriter = WriteHalf<Upstream>;

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
        let (reader, writer) = tokio::io::split(upstream);
        Ok(Self::Version1(Buffered::new(reader), writer))
    }

    /// Whether an idle connection has received nothing: an unsolicited response would be read as that to the next request, and a closed
    /// connection cannot carry one.
    fn is_silent(&mut self) -> bool {
        let Self::Version1(reader, _) = self else { return true };
        let (mut octet, mut context) = ([0], Context::from_waker(Waker::noop()));
        Pin::new(&mut reader.reader).poll_read(&mut context, &mut ReadBuf::new(&mut octet)).is_pending()
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
    fn of(exchange: &Exchange<Ready>, peer: Peer, scheme: Scheme) -> Self {
        let provider = exchange.held().map(|held| held.provider().clone());
        Self { peer, scheme, host: exchange.grant().host().clone(), provider }
    }

    fn matches(&self, exchange: &Exchange<Ready>, peer: Peer, scheme: Scheme) -> bool {
        self.peer == peer
            && self.scheme == scheme
            && self.host == *exchange.grant().host()
            && self.provider.as_ref() == exchange.held().map(|held| held.provider())
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

/// An HTTP/2 session, and when it last answered. One that has not answered for [`IDLE`] may be dead, so it takes no more requests.
struct Session {
    heard: Instant,
    requests: RequestSender,
}

impl Session {
    fn begun(requests: &RequestSender) -> Self {
        Self { heard: Instant::now(), requests: requests.clone() }
    }

    fn is_fresh(&self) -> bool {
        self.heard.elapsed() < IDLE
    }
}

/// The upstream connections of one sidecar.
#[derive(Default)]
pub(crate) struct Pool {
    /// Ordered by last use. There are few, so they are searched linearly.
    idle: RefCell<Vec<IdleLink>>,
    shared: RefCell<Vec<(PoolKey, Session)>>,
}

impl Pool {
    /// Takes the HTTP/1 connection last used for the exchange's destination, if one is still fresh.
    pub(crate) fn take(&self, exchange: &mut Exchange<Ready>, scheme: Scheme) -> Option<Link> {
        let (mut kept, now) = (self.idle.borrow_mut(), Instant::now());
        let (peer, link) = exchange.destination().peers().find_map(|peer| {
            while let Some(last) = kept.iter().rposition(|it| it.key.matches(exchange, peer, scheme)) {
                let mut idle = kept.remove(last);
                if idle.is_fresh(now) && idle.link.is_silent() {
                    return Some((peer, idle.link));
                }
            }
            None
        })?;
        exchange.reach(peer);
        Some(link)
    }

    /// Keeps an HTTP/1 connection whose last response was read to its end.
    pub(crate) fn keep(&self, exchange: &Exchange<Ready>, scheme: Scheme, link: Link) {
        let Some(reached) = exchange.reached() else { return };
        let (mut kept, now) = (self.idle.borrow_mut(), Instant::now());
        kept.retain(|idle| idle.is_fresh(now));
        if kept.len() >= most_idle() {
            kept.remove(0);
        }
        kept.push(IdleLink { key: PoolKey::of(exchange, reached, scheme), since: now, link });
    }

    /// Returns an HTTP/2 session to the exchange's destination, if one is still fresh.
    pub(crate) fn session(&self, exchange: &mut Exchange<Ready>, scheme: Scheme) -> Option<RequestSender> {
        let mut shared = self.shared.borrow_mut();
        shared.retain(|(_, session)| session.is_fresh());
        let open = |peer: Peer| {
            let found = shared.iter().find(|(key, _)| key.matches(exchange, peer, scheme));
            found.map(|(_, session)| (peer, session.requests.clone()))
        };
        let (peer, session) = exchange.destination().peers().find_map(open)?;
        exchange.reach(peer);
        Some(session)
    }

    /// Adds a new HTTP/2 session, for requests to share.
    pub(crate) fn share(&self, exchange: &Exchange<Ready>, scheme: Scheme, session: &RequestSender) {
        let Some(reached) = exchange.reached() else { return };
        let mut shared = self.shared.borrow_mut();
        shared.retain(|(key, _)| !key.matches(exchange, reached, scheme));
        if shared.len() >= most_idle() {
            shared.remove(0);
        }
        shared.push((PoolKey::of(exchange, reached, scheme), Session::begun(session)));
    }

    /// Notes that the exchange's session has answered.
    pub(crate) fn heard(&self, exchange: &Exchange<Ready>, scheme: Scheme) {
        let Some(reached) = exchange.reached() else { return };
        let mut shared = self.shared.borrow_mut();
        if let Some((_, session)) = shared.iter_mut().find(|(key, _)| key.matches(exchange, reached, scheme))
        {
            session.heard = Instant::now();
        }
    }

    /// Removes a session that has ended or may be dead.
    pub(crate) fn forget(&self, exchange: &Exchange<Ready>, scheme: Scheme) {
        if let Some(reached) = exchange.reached() {
            self.shared.borrow_mut().retain(|(key, _)| !key.matches(exchange, reached, scheme));
        }
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pool({})", self.idle.borrow().len())
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::upstream::Dialled;

    /// Whether a link is silent after its peer has done something.
    async fn is_silent_after<F: Future<Output = TcpStream>>(does: impl FnOnce(TcpStream) -> F) -> bool {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        #[expect(clippy::disallowed_methods, reason = "a test on this machine")]
        let (ours, theirs) = tokio::join!(TcpStream::connect(address), listener.accept());
        let mut link = Link::over(Upstream::Plain(Dialled::Tcp(ours.unwrap()))).await.unwrap();
        assert!(link.is_silent());
        let _theirs = does(theirs.unwrap().0).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        link.is_silent()
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_that_has_not_answered_for_long_is_not_used() {
        let (ours, _theirs) = tokio::io::duplex(4096);
        let (requests, _connection) = h2::client::handshake(ours).await.unwrap();
        let mut session = Session::begun(&RequestSender::uncounted(requests));
        for _ in 0..3 {
            tokio::time::advance(IDLE - Duration::from_secs(1)).await;
            assert!(session.is_fresh());
            session.heard = Instant::now();
        }
        tokio::time::advance(IDLE).await;
        assert!(!session.is_fresh());
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
