//! Binds the sockets of a sidecar that has no sandbox of ours to hand them out.

use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use nix::sys::socket::{setsockopt, sockopt};

use crate::gate::GateError;

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
    let is_refused = UnixStream::connect(path).is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused);
    if is_refused && is_socket(path) {
        std::fs::remove_file(path).map_err(bind)?;
    }
    UnixListener::bind(path).map(OwnedFd::from).map_err(bind)
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
