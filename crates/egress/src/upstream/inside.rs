//! The way into a sandbox: a line on which its init hands out sockets of the sandbox's own network, which are then connected to
//! what listens there. Nothing but the sandbox itself can be reached by one of them. Where an engine makes the sandbox it is
//! the address of its container, on a network of which this sidecar has a place.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use policy::{Hostname, Port};
use tokio::io::Interest;
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::{Mutex, OnceCell};

use super::dial::CONNECT;

/// A way into a sandbox.
#[derive(Debug)]
pub struct Entrance(Way);

#[derive(Debug)]
enum Way {
    Line(Line),
    Address(Ipv4Addr),
}

/// A line on which sockets of a sandbox's network are asked for, one after the other.
struct Line {
    line: OwnedFd,
    /// Asks for a socket of IPv6, or of IPv4; the line is readable when it is there.
    ask: fn(BorrowedFd<'_>, bool) -> io::Result<()>,
    /// Takes what was asked for.
    take: fn(BorrowedFd<'_>) -> io::Result<OwnedFd>,
    /// The line, once somebody waits for it.
    watched: OnceCell<Mutex<tokio::net::UnixStream>>,
}

impl Entrance {
    /// Uses a line, with the words that are spoken on it.
    #[must_use]
    pub fn new(
        line: OwnedFd,
        ask: fn(BorrowedFd<'_>, bool) -> io::Result<()>,
        take: fn(BorrowedFd<'_>) -> io::Result<OwnedFd>,
    ) -> Self {
        Self(Way::Line(Line { line, ask, take, watched: OnceCell::new() }))
    }

    /// Uses the address of a container, which nobody but an engine can have given.
    #[must_use]
    pub fn at(address: Ipv4Addr) -> Self {
        Self(Way::Address(address))
    }

    /// That address, where it is one.
    #[must_use]
    pub fn address(&self) -> Option<Ipv4Addr> {
        match &self.0 {
            Way::Line(_) => None,
            Way::Address(address) => Some(*address),
        }
    }

    /// What must stay open for it.
    #[must_use]
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match &self.0 {
            Way::Line(line) => Some(line.line.as_fd()),
            Way::Address(_) => None,
        }
    }

    /// The same way once more, for a process that is forked from this one.
    ///
    /// # Errors
    /// Whatever `fcntl(2)` gives.
    pub fn try_clone(&self) -> io::Result<Self> {
        match &self.0 {
            Way::Line(line) => Ok(Self::new(line.line.try_clone()?, line.ask, line.take)),
            Way::Address(address) => Ok(Self::at(*address)),
        }
    }

    /// Connects to what listens inside: on loopback, over IPv4 or else IPv6; or at the container's address.
    pub(crate) async fn connect(&self, port: Port) -> io::Result<TcpStream> {
        match &self.0 {
            Way::Line(line) => line.connect(port).await,
            Way::Address(address) => finish(TcpSocket::new_v4()?, (*address).into(), port).await,
        }
    }
}

impl Line {
    async fn connect(&self, port: Port) -> io::Result<TcpStream> {
        match self.connect_over(Ipv4Addr::LOCALHOST.into(), port).await {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                // What refused is told by the family that most servers have.
                self.connect_over(Ipv6Addr::LOCALHOST.into(), port).await.map_err(|_| error)
            }
            other => other,
        }
    }

    async fn connect_over(&self, address: IpAddr, port: Port) -> io::Result<TcpStream> {
        let socket = self.socket(address.is_ipv6()).await?;
        let socket = TcpSocket::from_std_stream(std::net::TcpStream::from(socket));
        // The time is for this alone: a question that is given up would leave its answer to the next one.
        finish(socket, address, port).await
    }

    async fn socket(&self, v6: bool) -> io::Result<OwnedFd> {
        let watch = async || -> io::Result<_> {
            let line = UnixStream::from(self.line.try_clone()?);
            line.set_nonblocking(true)?;
            Ok(Mutex::new(tokio::net::UnixStream::from_std(line)?))
        };
        // One question at a time, to its end: an answer that is not waited for would be taken for the next one.
        let line = self.watched.get_or_try_init(watch).await?.lock().await;
        (self.ask)(line.as_fd(), v6)?;
        line.async_io(Interest::READABLE, || (self.take)(line.as_fd())).await
    }
}

impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Line({:?})", self.line)
    }
}

/// Connects a socket, within the time there is for that.
async fn finish(socket: TcpSocket, address: IpAddr, port: Port) -> io::Result<TcpStream> {
    let connecting = socket.connect(SocketAddr::new(address, port.number()));
    let stream = tokio::time::timeout(CONNECT, connecting)
        .await
        .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    if stream.local_addr()? == stream.peer_addr()? {
        // Where nobody listens, a socket that was given that very port reaches itself.
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// The companions of a run, by name.
#[derive(Debug, Default)]
pub struct Companions(Vec<(Hostname, Entrance)>);

impl Companions {
    /// Those of a run.
    #[must_use]
    pub fn new(list: Vec<(Hostname, Entrance)>) -> Self {
        Self(list)
    }

    /// Connects to a port of one.
    pub(crate) async fn connect(&self, name: &Hostname, port: Port) -> io::Result<TcpStream> {
        match self.0.iter().find(|(known, _)| known == name) {
            Some((_, entrance)) => entrance.connect(port).await,
            None => Err(io::Error::new(io::ErrorKind::NotFound, "that companion does not run")),
        }
    }
}
