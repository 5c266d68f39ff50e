//! Accepts connections: bounded by [`ConnectionSlots`], filtered by peer, and undeterred by transient errors.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use crate::connection_slots::{ConnectionPermit, ConnectionSlots};
use crate::idle;

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

/// A TCP listener, the slots its connections take, and the peers it serves.
pub(crate) struct Acceptor {
    listener: TcpListener,
    slots: ConnectionSlots,
    peer_filter: Option<PeerFilter>,
}

impl Acceptor {
    /// Takes over a bound, non-blocking listener. Without a filter every peer is served.
    pub(crate) fn open(
        fd: OwnedFd,
        slots: ConnectionSlots,
        peer_filter: Option<PeerFilter>,
    ) -> io::Result<Self> {
        let listener = TcpListener::from_std(StdListener::from(fd))?;
        Ok(Self { listener, slots, peer_filter })
    }

    /// Waits for a slot, then for a connection. A connection that the filter rejects is reset.
    ///
    /// # Errors
    /// When the listener itself has failed.
    pub(crate) async fn accept(&self) -> io::Result<(TcpStream, ConnectionPermit)> {
        let permit = self.slots.take().await;
        loop {
            match self.listener.accept().await {
                Ok((stream, peer)) if self.admits(&stream, peer) => {
                    idle::touch();
                    return Ok((stream, permit));
                }
                Ok((stream, _)) => {
                    let _ = stream.set_zero_linger();
                }
                Err(error) => survive(error).await?,
            }
        }
    }

    fn admits(&self, stream: &TcpStream, peer: SocketAddr) -> bool {
        self.peer_filter.as_ref().is_none_or(|filter| filter.admits(stream, peer))
    }
}

/// Accepts a connection on the gateway's Unix socket. The socket's permissions decide who may connect.
///
/// # Errors
/// When the listener itself has failed.
pub(crate) async fn accept_unix(listener: &UnixListener) -> io::Result<(UnixStream, ConnectionPermit)> {
    let permit = ConnectionSlots::gateway().take().await;
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                idle::touch();
                return Ok((stream, permit));
            }
            Err(error) => survive(error).await?,
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
