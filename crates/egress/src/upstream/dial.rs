//! Dials: pinned addresses for an agent, declared proxies and the platform for Lockgate itself. No other file dials.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::time::Duration;

use policy::Port;
use tokio::io::AsyncBufReadExt;
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use super::race::{self, CONNECT};
use crate::connection_slots::place_beside;
use crate::destination::PinnedAddr;
use crate::duplex::{Duplex, duplex};
use crate::socket_options;

/// How long a peer may be silent before it is asked whether it is there, and how long until it is asked again (tcp(7)).
const SILENT: Duration = Duration::from_secs(60);
const ASKED_AGAIN: Duration = Duration::from_secs(15);
/// How many such questions may have no answer.
const UNANSWERED: u32 = 4;

/// A connection to a host, dialled directly or through a proxy.
pub(crate) enum Dialled {
    /// TCP, to the host or to a proxy.
    Tcp(TcpStream),
    /// Through the TLS of a proxy.
    Tls(Box<TlsStream<TcpStream>>),
}

/// Connects to a proxy, which the policy or the caller declared.
pub(super) async fn dial_proxy(found: &[IpAddr], port: Port) -> io::Result<TcpStream> {
    let addresses: Vec<_> = found.iter().map(|address| SocketAddr::new(*address, port.number())).collect();
    Ok(dial_first(&addresses).await?.0)
}

/// Connects to the platform, at the address in the sidecar's configuration.
pub(crate) async fn dial_platform(address: SocketAddr) -> io::Result<TcpStream> {
    #[expect(clippy::disallowed_methods, reason = "the platform is no destination of the agent's")]
    let dialled = tokio::time::timeout(CONNECT, TcpStream::connect(address)).await;
    dialled?
}

/// Connects to the first of these addresses that answers, and returns which it is.
pub(super) async fn dial_each(addresses: &[PinnedAddr]) -> io::Result<(TcpStream, PinnedAddr)> {
    dial_first(addresses).await
}

async fn dial_first<A: Copy + Into<SocketAddr>>(addresses: &[A]) -> io::Result<(TcpStream, A)> {
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the one place that dials: pinned addresses, and those of declared proxies"
    )]
    let (stream, address) = race::first_of(addresses, TcpStream::connect, place_beside).await?;
    socket_options::set(&stream)?;
    keep_alive(&stream)?;
    Ok((stream, address))
}

/// Has the kernel ask a silent peer whether it is still there, and end the connection if not: the agent's own questions end at the sidecar.
fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    use rustix::net::sockopt;
    sockopt::set_tcp_keepidle(stream, SILENT)?;
    sockopt::set_tcp_keepintvl(stream, ASKED_AGAIN)?;
    sockopt::set_tcp_keepcnt(stream, UNANSWERED)?;
    Ok(sockopt::set_socket_keepalive(stream, true)?)
}

impl Dialled {
    /// Lets the kernel give the connection up when the peer takes nothing for so long, a peer that says that it has no room included
    /// (`TCP_USER_TIMEOUT`, tcp(7)).
    pub(super) fn give_up_after(&self, stalled: Duration) -> io::Result<()> {
        let socket = match self {
            Self::Tcp(stream) => stream,
            Self::Tls(stream) => stream.get_ref().0,
        };
        let milliseconds = u32::try_from(stalled.as_millis()).unwrap_or(u32::MAX);
        Ok(nix::sys::socket::setsockopt(socket, nix::sys::socket::sockopt::TcpUserTimeout, &milliseconds)?)
    }

    fn pinned(&mut self) -> Pin<&mut (dyn Duplex + '_)> {
        match self {
            Self::Tcp(stream) => Pin::new(stream),
            Self::Tls(stream) => Pin::new(stream),
        }
    }

    /// Copies what the peer says next, which stays to be read, and returns how many octets that are: none at its end.
    ///
    /// It looks at the octets: that a socket is ready may be said of octets that were read long ago, or of a TLS message without data.
    pub(crate) async fn look(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.peek(buffer).await,
            Self::Tls(stream) => {
                let said = stream.fill_buf().await?;
                let length = said.len().min(buffer.len());
                buffer[..length].copy_from_slice(&said[..length]);
                Ok(length)
            }
        }
    }
}

duplex!(Dialled);

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_peer_that_is_silent_is_asked_whether_it_is_there() {
        use rustix::net::sockopt;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let at = listener.local_addr().unwrap();
        let stream = dial_proxy(&[at.ip()], Port::new(at.port()).unwrap()).await.unwrap();
        assert!(sockopt::socket_keepalive(&stream).unwrap());
        assert_eq!(sockopt::tcp_keepidle(&stream).unwrap(), SILENT);
        assert_eq!(sockopt::tcp_keepintvl(&stream).unwrap(), ASKED_AGAIN);
        assert_eq!(sockopt::tcp_keepcnt(&stream).unwrap(), UNANSWERED);
    }

    #[tokio::test]
    async fn what_was_read_already_is_not_said_again() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let at = listener.local_addr().unwrap();
        let port = Port::new(at.port()).unwrap();
        let mut ours = Dialled::Tcp(dial_proxy(&[at.ip()], port).await.unwrap());
        let (mut theirs, _) = listener.accept().await.unwrap();
        let briefly = Duration::from_millis(50);
        // A proxy's answer, read octet by octet to its end: the runtime still takes the socket for readable.
        theirs.write_all(b"200").await.unwrap();
        for octet in *b"200" {
            assert_eq!(ours.read_u8().await.unwrap(), octet);
        }
        assert!(tokio::time::timeout(briefly, ours.look(&mut [0])).await.is_err());
        theirs.write_all(b"220 hello").await.unwrap();
        assert_eq!(ours.look(&mut [0]).await.unwrap(), 1);
        assert_eq!(ours.read_u8().await.unwrap(), b'2', "it is still there");
        ours.read_exact(&mut [0; 8]).await.unwrap();
        drop(theirs);
        assert_eq!(ours.look(&mut [0]).await.unwrap(), 0, "its end says nothing");
    }
}
