//! Binds the sockets of a sidecar that has no sandbox of ours to hand them out.

use std::io;
use std::net::{Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixListener;
use std::path::Path;

use nix::sys::socket::{setsockopt, sockopt};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::gate_error::GateError;

/// How many connections wait to be accepted, as at a listener of the standard library's.
const BACKLOG: i32 = 128;

/// Binds a TCP listener.
///
/// # Errors
/// When the address cannot be bound.
pub fn bind(address: SocketAddr) -> Result<OwnedFd, GateError> {
    let bind = |source| GateError::Bind { address: address.to_string(), source };
    let listener = TcpListener::bind(address).map_err(bind)?;
    listener.set_nonblocking(true).map_err(bind)?;
    Ok(listener.into())
}

/// Binds a TCP listener for every address of both families, whatever `net.ipv6.bindv6only` says.
///
/// # Errors
/// When the port cannot be bound, or there is no IPv6.
pub fn bind_everywhere(port: u16) -> io::Result<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::INET6, SocketType::STREAM, flags, None)?;
    rustix::net::sockopt::set_socket_reuseaddr(&socket, true)?;
    rustix::net::sockopt::set_ipv6_v6only(&socket, false)?;
    rustix::net::bind(&socket, &SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)))?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Binds a UDP socket for DNS. Answers are sent from the address that was asked, also if it is bound to every one.
///
/// # Errors
/// When the address cannot be bound.
pub fn bind_udp(address: SocketAddr) -> Result<OwnedFd, GateError> {
    let bind = |source| GateError::Bind { address: address.to_string(), source };
    let socket = UdpSocket::bind(address).map_err(bind)?;
    if address.ip().is_unspecified() {
        let told = match address {
            SocketAddr::V4(_) => setsockopt(&socket, sockopt::Ipv4PacketInfo, &true),
            SocketAddr::V6(_) => setsockopt(&socket, sockopt::Ipv6RecvPacketInfo, &true),
        };
        told.map_err(|errno| bind(errno.into()))?;
    }
    socket.set_nonblocking(true).map_err(bind)?;
    Ok(socket.into())
}

/// Binds a listener on a Unix socket. Removes a stale socket first: one at that path that refuses connections.
///
/// # Errors
/// When the path cannot be bound, for instance because something else exists there.
pub fn bind_socket(path: &Path) -> Result<OwnedFd, GateError> {
    let bind = |source| GateError::Bind { address: path.display().to_string(), source };
    if is_refused(path) && is_socket(path) {
        std::fs::remove_file(path).map_err(bind)?;
    }
    UnixListener::bind(path).map(OwnedFd::from).map_err(bind)
}

/// Whether nobody listens at a socket. A listener that does not answer is not waited for: connect(2) gives `EAGAIN`.
fn is_refused(path: &Path) -> bool {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let connected = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        .and_then(|socket| rustix::net::connect(&socket, &SocketAddrUnix::new(path)?));
    connected == Err(Errno::CONNREFUSED)
}

fn is_socket(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|it| it.file_type().is_socket())
}

/// Returns the address a listener is bound to, with the port the kernel chose if none was named.
///
/// # Errors
/// When `getsockname(2)` fails.
pub fn bound(listener: &OwnedFd) -> io::Result<SocketAddr> {
    Ok(rustix::net::getsockname(listener)?.try_into()?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_socket_whose_server_hangs_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let at = SocketAddrUnix::new(&path).unwrap();
        let hung = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        rustix::net::bind(&hung, &at).unwrap();
        rustix::net::listen(&hung, 0).unwrap();
        // The backlog has no room for another connection, so that one would wait.
        let _waits = UnixStream::connect(&path).unwrap();
        let Err(GateError::Bind { address, source }) = bind_socket(&path) else { panic!("it is in use") };
        assert_eq!((address, source.kind()), (path.display().to_string(), io::ErrorKind::AddrInUse));
        drop(hung);
        assert!(bind_socket(&path).is_ok(), "a stale socket is removed");
    }
}
