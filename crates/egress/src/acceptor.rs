//! Accepts connections: bounded by [`ConnectionSlots`], filtered by peer, and undeterred by transient errors.
//!
//! A listener takes a slot once somebody waits to be accepted: while it is idle, the slot is another's.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{SocketAddrAny, SocketFlags};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::{TcpStream, UnixStream};

use crate::connection_slots::{ConnectionPermit, ConnectionSlots};
use crate::{idle, socket_options};

/// How long a listener pauses when the process or the machine is out of descriptors (L10).
const EXHAUSTED: Duration = Duration::from_millis(50);

/// Decides whether a connection is served, from its peer address and its local address.
#[derive(Clone)]
pub struct PeerFilter(Arc<dyn Fn(SocketAddr, SocketAddr) -> bool + Send + Sync>);

impl PeerFilter {
    /// Serves the connections for which `admits(peer, local)` is true.
    pub fn new(admits: impl Fn(SocketAddr, SocketAddr) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(admits))
    }

    fn admits(&self, stream: &TcpStream, peer: SocketAddr) -> bool {
        stream.local_addr().is_ok_and(|local| (self.0)(peer, local))
    }
}

impl fmt::Debug for PeerFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PeerFilter")
    }
}

/// A listener, and the slots its connections take.
struct Slotted {
    listener: AsyncFd<OwnedFd>,
    slots: ConnectionSlots,
}

impl Slotted {
    fn open(fd: OwnedFd, slots: ConnectionSlots) -> io::Result<Self> {
        #[expect(
            deprecated,
            reason = "unsound only for a type whose descriptor changes; its successor is unsafe"
        )]
        let listener = AsyncFd::with_interest(fd, Interest::READABLE)?;
        Ok(Self { listener, slots })
    }

    /// Waits for a connection, then for a slot, and then accepts. Without a free slot it waits for one, and does not poll the
    /// listener.
    ///
    /// # Errors
    /// When the listener itself has failed.
    async fn accept(&self) -> io::Result<(OwnedFd, Option<SocketAddrAny>, ConnectionPermit)> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        loop {
            let mut ready = self.listener.readable().await?;
            let permit = self.slots.take().await;
            let accepted = ready.try_io(|it| Ok(rustix::net::acceptfrom_with(it, flags)?));
            match accepted {
                Ok(Ok((stream, peer))) => return Ok((stream, peer, permit)),
                Ok(Err(error)) => {
                    drop(permit);
                    survive(error).await?;
                }
                // Nobody waits any more.
                Err(_) => {}
            }
        }
    }
}

/// A TCP listener, and the peers it serves.
pub(crate) struct Acceptor {
    listener: Slotted,
    peer_filter: Option<PeerFilter>,
}

impl Acceptor {
    /// Takes over a bound, non-blocking listener. Without a filter every peer is served.
    pub(crate) fn open(
        fd: OwnedFd,
        slots: ConnectionSlots,
        peer_filter: Option<PeerFilter>,
    ) -> io::Result<Self> {
        Ok(Self { listener: Slotted::open(fd, slots)?, peer_filter })
    }

    /// Waits for a connection and a slot. A connection that the filter rejects is reset.
    ///
    /// # Errors
    /// When the listener itself has failed.
    pub(crate) async fn accept(&self) -> io::Result<(TcpStream, ConnectionPermit)> {
        loop {
            let (stream, peer, permit) = self.listener.accept().await?;
            let stream = match TcpStream::from_std(stream.into()) {
                Ok(stream) => stream,
                // The kernel has no room to watch it. The listener is not at fault.
                Err(_) => {
                    tokio::time::sleep(EXHAUSTED).await;
                    continue;
                }
            };
            if self.admits(&stream, peer) && socket_options::set(&stream).is_ok() {
                idle::touch();
                return Ok((stream, permit));
            }
            let _ = stream.set_zero_linger();
        }
    }

    /// Without a filter everybody is served, and with one nobody who has no address.
    fn admits(&self, stream: &TcpStream, peer: Option<SocketAddrAny>) -> bool {
        let Some(filter) = &self.peer_filter else { return true };
        let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok());
        peer.is_some_and(|peer| filter.admits(stream, peer))
    }
}

/// The gateway's Unix socket. The socket's permissions decide who may connect.
pub(crate) struct UnixAcceptor(Slotted);

impl UnixAcceptor {
    /// Takes over a bound, non-blocking listener.
    pub(crate) fn open(fd: OwnedFd) -> io::Result<Self> {
        Slotted::open(fd, ConnectionSlots::gateway()).map(Self)
    }

    /// Waits for a connection and a slot.
    ///
    /// # Errors
    /// When the listener itself has failed.
    pub(crate) async fn accept(&self) -> io::Result<(UnixStream, ConnectionPermit)> {
        loop {
            let (stream, _, permit) = self.0.accept().await?;
            match UnixStream::from_std(stream.into()) {
                Ok(stream) => {
                    idle::touch();
                    return Ok((stream, permit));
                }
                Err(_) => tokio::time::sleep(EXHAUSTED).await,
            }
        }
    }
}

/// Returns once the socket is worth another try: at once after a connection that failed on its way, and after a pause when
/// descriptors or memory are exhausted, so that the loop does not spin.
///
/// # Errors
/// Any other error, which is the socket's own.
pub(crate) async fn survive(error: io::Error) -> io::Result<()> {
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::CONNABORTED | Errno::INTR) => Ok(()),
        Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS) => {
            tokio::time::sleep(EXHAUSTED).await;
            Ok(())
        }
        _ => Err(error),
    }
}
