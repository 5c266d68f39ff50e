//! Connects into a sandbox: through sockets that its init hands out, or at the address of its container.
//!
//! A socket from init belongs to the sandbox's own network namespace, so it reaches nothing but the sandbox. An engine's container has
//! an address on a network that the sidecar is on as well.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use policy::{Hostname, IpFamily, Port};
use tokio::io::Interest;
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::{Mutex, OnceCell};

use super::race::CONNECT;
use crate::socket_options;

/// A route into a sandbox.
#[derive(Debug)]
pub struct Entrance(Route);

#[derive(Debug)]
enum Route {
    Broker(Broker),
    Address(Ipv4Addr),
}

/// The socket on which a sandbox's init is asked for sockets of its network, one at a time.
struct Broker {
    line: OwnedFd,
    /// Asks for a socket of a family. The descriptor is readable when it is there.
    ask: fn(BorrowedFd<'_>, IpFamily) -> io::Result<()>,
    /// Receives the socket that was asked for.
    take: fn(BorrowedFd<'_>) -> io::Result<OwnedFd>,
    /// The same socket in the event loop, from its first use on.
    watched: OnceCell<Mutex<Line>>,
}

/// The line in the event loop. Its answers carry nothing that tells whose they are.
struct Line {
    stream: tokio::net::UnixStream,
    /// Whether an answer is still to come to a question whose asker is gone.
    owes: bool,
}

impl Entrance {
    /// Asks a sandbox's init for sockets, with the functions that speak its protocol.
    #[must_use]
    pub fn new(
        line: OwnedFd,
        ask: fn(BorrowedFd<'_>, IpFamily) -> io::Result<()>,
        take: fn(BorrowedFd<'_>) -> io::Result<OwnedFd>,
    ) -> Self {
        Self(Route::Broker(Broker { line, ask, take, watched: OnceCell::new() }))
    }

    /// Connects to a container's address, as an engine gave it.
    #[must_use]
    pub fn at(address: Ipv4Addr) -> Self {
        Self(Route::Address(address))
    }

    /// Returns the container's address, if this is one.
    #[must_use]
    pub fn address(&self) -> Option<Ipv4Addr> {
        match &self.0 {
            Route::Broker(_) => None,
            Route::Address(address) => Some(*address),
        }
    }

    /// The descriptor that must stay open for it.
    #[must_use]
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match &self.0 {
            Route::Broker(broker) => Some(broker.line.as_fd()),
            Route::Address(_) => None,
        }
    }

    /// Duplicates the descriptor, for a process that is forked from this one.
    ///
    /// # Errors
    /// Whatever `fcntl(2)` returns.
    pub fn try_clone(&self) -> io::Result<Self> {
        match &self.0 {
            Route::Broker(broker) => Ok(Self::new(broker.line.try_clone()?, broker.ask, broker.take)),
            Route::Address(address) => Ok(Self::at(*address)),
        }
    }

    /// Connects to a port inside: on loopback, over IPv4 or else IPv6; or at the container's address.
    pub(crate) async fn connect(&self, port: Port) -> io::Result<TcpStream> {
        match &self.0 {
            Route::Broker(broker) => broker.connect(port).await,
            Route::Address(address) => finish(TcpSocket::new_v4()?, (*address).into(), port).await,
        }
    }
}

impl Broker {
    async fn connect(&self, port: Port) -> io::Result<TcpStream> {
        match self.connect_over(Ipv4Addr::LOCALHOST.into(), port).await {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                // The error is that of IPv4, which most servers listen on.
                self.connect_over(Ipv6Addr::LOCALHOST.into(), port).await.map_err(|_| error)
            }
            other => other,
        }
    }

    async fn connect_over(&self, address: IpAddr, port: Port) -> io::Result<TcpStream> {
        let socket = self.socket(address.into()).await?;
        let socket = TcpSocket::from_std_stream(std::net::TcpStream::from(socket));
        finish(socket, address, port).await
    }

    async fn socket(&self, family: IpFamily) -> io::Result<OwnedFd> {
        let watch = async || -> io::Result<_> {
            let line = UnixStream::from(self.line.try_clone()?);
            line.set_nonblocking(true)?;
            Ok(Mutex::new(Line { stream: tokio::net::UnixStream::from_std(line)?, owes: false }))
        };
        // One question at a time. Whoever asks may be gone before the answer: it is then taken, and dropped, before the next question.
        let mut line = self.watched.get_or_try_init(watch).await?.lock().await;
        if line.owes {
            let _ = self.answer(&mut line).await;
        }
        (self.ask)(line.stream.as_fd(), family)?;
        line.owes = true;
        self.answer(&mut line).await
    }

    /// Takes the answer to the last question.
    async fn answer(&self, line: &mut Line) -> io::Result<OwnedFd> {
        let Line { stream, owes } = line;
        let answer = stream.async_io(Interest::READABLE, || (self.take)(stream.as_fd())).await;
        *owes = false;
        answer
    }
}

impl fmt::Debug for Broker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Broker({:?})", self.line)
    }
}

/// Connects a socket within the timeout.
async fn finish(socket: TcpSocket, address: IpAddr, port: Port) -> io::Result<TcpStream> {
    let connecting = socket.connect(SocketAddr::new(address, port.number()));
    let stream = tokio::time::timeout(CONNECT, connecting).await??;
    if stream.local_addr()? == stream.peer_addr()? {
        // If nothing listens at the port and the kernel chose that very port for the socket, it connects to itself.
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    socket_options::set(&stream)?;
    Ok(stream)
}

/// The routes to the companions of a run, by name.
#[derive(Debug, Default)]
pub struct Companions(Vec<(Hostname, Entrance)>);

impl Companions {
    /// The companions of a run.
    #[must_use]
    pub fn new(list: Vec<(Hostname, Entrance)>) -> Self {
        Self(list)
    }

    /// Connects to a port of a companion.
    pub(crate) async fn connect(&self, name: &Hostname, port: Port) -> io::Result<TcpStream> {
        match self.0.iter().find(|(known, _)| known == name) {
            Some((_, entrance)) => entrance.connect(port).await.map_err(|error| told_of(name, error)),
            None => Err(io::Error::new(io::ErrorKind::NotFound, "that companion does not run")),
        }
    }
}

/// Names the companion in an error that says that it has ended: its init is gone from the line, or nobody has its address any more.
fn told_of(name: &Hostname, error: io::Error) -> io::Error {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, HostUnreachable, UnexpectedEof};
    match error.kind() {
        kind @ (BrokenPipe | ConnectionReset | HostUnreachable | UnexpectedEof) => {
            io::Error::new(kind, format!("the companion `{name}` does not run any more"))
        }
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::UdpSocket;

    use super::*;

    /// Asks in one octet, and takes an answer of one octet: the family, as a socket of it.
    fn ask(line: BorrowedFd<'_>, family: IpFamily) -> io::Result<()> {
        let family = if family == IpFamily::V4 { b"4" } else { b"6" };
        UnixStream::from(line.try_clone_to_owned()?).write_all(family)
    }

    fn take(line: BorrowedFd<'_>) -> io::Result<OwnedFd> {
        let mut family = [0];
        UnixStream::from(line.try_clone_to_owned()?).read_exact(&mut family)?;
        let address = if family == *b"4" { "127.0.0.1:0" } else { "[::1]:0" };
        Ok(UdpSocket::bind(address)?.into())
    }

    #[tokio::test]
    async fn an_answer_whose_asker_is_gone_is_nobody_elses() {
        let (line, mut init) = UnixStream::pair().unwrap();
        let broker = Broker { line: line.into(), ask, take, watched: OnceCell::new() };
        let mut asked = [0];
        for _ in 0..3 {
            let soon = std::time::Duration::from_millis(10);
            assert!(tokio::time::timeout(soon, broker.socket(IpFamily::V6)).await.is_err());
        }
        init.read_exact(&mut asked).unwrap();
        init.set_nonblocking(true).unwrap();
        assert!(init.read_exact(&mut [0]).is_err(), "one question is open at a time");
        let answers = async {
            init.write_all(&asked).unwrap();
            while init.read_exact(&mut asked).is_err() {
                tokio::task::yield_now().await;
            }
            init.write_all(&asked).unwrap();
        };
        let (socket, ()) = tokio::join!(broker.socket(IpFamily::V4), answers);
        assert!(UdpSocket::from(socket.unwrap()).local_addr().unwrap().is_ipv4());
    }

    #[tokio::test]
    async fn a_companion_that_has_ended_is_named() {
        // Before the question, and between it and its answer.
        for reads in [0, 1] {
            let (line, mut init) = UnixStream::pair().unwrap();
            let name = Hostname::parse("db").unwrap();
            let companions = Companions::new(vec![(name.clone(), Entrance::new(line.into(), ask, take))]);
            std::thread::spawn(move || init.read_exact(&mut vec![0; reads]).unwrap());
            let error = companions.connect(&name, Port::new(80).unwrap()).await.unwrap_err();
            assert_eq!(error.to_string(), "the companion `db` does not run any more");
        }
        let at_an_engine = told_of(&Hostname::parse("db").unwrap(), io::ErrorKind::HostUnreachable.into());
        assert!(at_an_engine.to_string().contains("`db`"));
    }
}
