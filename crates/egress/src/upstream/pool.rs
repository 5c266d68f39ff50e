//! Connections that wait for another request. They belong to one sidecar, and so to one run (C21); the one used last is
//! used next.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::client::SendRequest;
use policy::{Host, ProviderId, Scheme};
use tokio::io::{ReadHalf, WriteHalf};

use super::stream::Upstream;
use crate::exchange::{Exchange, PinnedAddr, Ready};
use crate::http::Buffered;

/// How many idle connections are kept, and for how long.
const MOST_IDLE: usize = 64;
const IDLE: Duration = Duration::from_secs(30);

/// The halves of a connection that carries HTTP/1.
pub(crate) type UpstreamReader = ReadHalf<Upstream>;
pub(crate) type UpstreamWriter = WriteHalf<Upstream>;

/// A way to send a request.
pub(crate) enum Link {
    /// A connection of its own.
    Version1(Buffered<UpstreamReader>, UpstreamWriter),
    /// A stream among others.
    Version2(SendRequest<Bytes>),
}

impl Link {
    /// Makes a link of an open connection.
    pub(crate) async fn over(upstream: Upstream) -> io::Result<Self> {
        if upstream.chose_version_2() {
            return Ok(Self::Version2(crate::http::begin_version_2(upstream).await?));
        }
        let (reader, writer) = tokio::io::split(upstream);
        Ok(Self::Version1(Buffered::new(reader), writer))
    }
}

/// What a connection may be used for again: the same pinned address, scheme, name, and credential. What an upstream sends too
/// late or too much of must not be read under a request that it is not searched for.
type Key = (PinnedAddr, Scheme, Host, Option<ProviderId>);

fn key(exchange: &Exchange<Ready>, address: PinnedAddr, scheme: Scheme) -> Key {
    let provider = exchange.held().map(|held| held.provider().clone());
    (address, scheme, exchange.grant().host().clone(), provider)
}

/// The connections of one sidecar.
#[derive(Default)]
pub(crate) struct Pool {
    idle: RefCell<HashMap<Key, Vec<(Instant, Link)>>>,
    shared: RefCell<HashMap<Key, SendRequest<Bytes>>>,
}

impl Pool {
    /// The connection of HTTP/1 used last for where an exchange goes, if one is still fresh.
    pub(crate) fn take(&self, exchange: &mut Exchange<Ready>, scheme: Scheme) -> Option<Link> {
        let mut kept = self.idle.borrow_mut();
        for address in exchange.addresses().to_vec() {
            let key = key(exchange, address, scheme);
            let Some(list) = kept.get_mut(&key) else { continue };
            while let Some((since, link)) = list.pop() {
                if since.elapsed() < IDLE {
                    exchange.reach(address);
                    return Some(link);
                }
            }
        }
        None
    }

    /// Keeps a connection whose last response was read to its end.
    pub(crate) fn keep(&self, exchange: &Exchange<Ready>, scheme: Scheme, link: Link) {
        let Some(reached) = exchange.reached() else { return };
        let mut kept = self.idle.borrow_mut();
        let count: usize = kept.values().map(Vec::len).sum();
        if count >= MOST_IDLE {
            kept.clear();
        }
        let key = key(exchange, reached, scheme);
        kept.entry(key).or_default().push((Instant::now(), link));
    }

    /// A session of HTTP/2 that is still open to where an exchange goes.
    pub(crate) fn session(
        &self,
        exchange: &mut Exchange<Ready>,
        scheme: Scheme,
    ) -> Option<SendRequest<Bytes>> {
        let shared = self.shared.borrow();
        for address in exchange.addresses().to_vec() {
            let key = key(exchange, address, scheme);
            if let Some(session) = shared.get(&key) {
                let session = session.clone();
                drop(shared);
                exchange.reach(address);
                return Some(session);
            }
        }
        None
    }

    /// Shares a new session of HTTP/2.
    pub(crate) fn share(&self, exchange: &Exchange<Ready>, scheme: Scheme, session: &SendRequest<Bytes>) {
        let Some(reached) = exchange.reached() else { return };
        let mut shared = self.shared.borrow_mut();
        if shared.len() >= MOST_IDLE {
            shared.clear();
        }
        shared.insert(key(exchange, reached, scheme), session.clone());
    }

    /// Forgets a session that has ended.
    pub(crate) fn forget(&self, exchange: &Exchange<Ready>, scheme: Scheme) {
        if let Some(reached) = exchange.reached() {
            self.shared.borrow_mut().remove(&key(exchange, reached, scheme));
        }
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pool({})", self.idle.borrow().values().map(Vec::len).sum::<usize>())
    }
}
