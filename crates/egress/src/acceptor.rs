//! Accepts connections: bounded by [`ConnectionSlots`], and undeterred by transient errors.
//!
//! A listener takes a slot once somebody waits to be accepted: while it is idle, the slot is another's.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::SocketFlags;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::{TcpStream, UnixStream};

use crate::connection_slots::{ConnectionPermit, ConnectionSlots};
use crate::{idle, socket_options};

/// How long a listener pauses when the process or the machine is out of descriptors (L10).
const EXHAUSTED: Duration = Duration::from_millis(50);

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
    async fn accept(&self) -> io::Result<(OwnedFd, ConnectionPermit)> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        loop {
            let mut ready = self.listener.readable().await?;
            let permit = self.slots.take().await;
            let accepted = ready.try_io(|it| Ok(rustix::net::accept_with(it, flags)?));
            match accepted {
                Ok(Ok(stream)) => return Ok((stream, permit)),
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

/// A TCP listener.
pub(crate) struct Acceptor(Slotted);

impl Acceptor {
    /// Takes over a bound, non-blocking listener.
    pub(crate) fn open(fd: OwnedFd, slots: ConnectionSlots) -> io::Result<Self> {
        Slotted::open(fd, slots).map(Self)
    }

    /// Waits for a connection and a slot.
    ///
    /// # Errors
    /// When the listener itself has failed.
    pub(crate) async fn accept(&self) -> io::Result<(TcpStream, ConnectionPermit)> {
        loop {
            let (stream, permit) = self.0.accept().await?;
            // The kernel has no room to watch it. The listener is not at fault.
            let Ok(stream) = TcpStream::from_std(stream.into()) else {
                tokio::time::sleep(EXHAUSTED).await;
                continue;
            };
            if socket_options::set(&stream).is_ok() {
                idle::touch();
                return Ok((stream, permit));
            }
        }
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
            let (stream, permit) = self.0.accept().await?;
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
