//! Sockets that are bound inside a sandbox's network namespace and served from outside it.

use std::io;
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with, sockopt,
};

/// How many connections may wait to be accepted.
const BACKLOG: i32 = 1024;

/// A TCP listener on an address. On the IPv6 wildcard it serves both families.
///
/// # Errors
/// Whatever `socket(2)`, `bind(2)` or `listen(2)` gives.
pub fn tcp(address: SocketAddr) -> io::Result<OwnedFd> {
    let socket = open(&address, SocketType::STREAM)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    bind(&socket, &address)?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// A TCP listener on a port of both families that may accept connections to any address and any port, where a rule of the namespace
/// hands them to it. Each has the address it was made to as its own.
///
/// # Errors
/// Whatever `socket(2)`, `setsockopt(2)`, `bind(2)` or `listen(2)` gives; the option takes `CAP_NET_ADMIN` in the namespace.
pub fn tcp_for_any_address(port: u16) -> io::Result<OwnedFd> {
    let socket = tcp(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)))?;
    // One flag of the socket's, for both families.
    switch_on(&socket, libc::IPV6_TRANSPARENT)?;
    Ok(socket)
}

/// A listener on a Unix socket, which is made at `path`.
///
/// # Errors
/// Whatever `socket(2)`, `bind(2)` or `listen(2)` gives.
pub fn unix(path: &Path) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// A UDP socket on `port` of every address of both families, whose answers can be sent from the address that was asked.
///
/// # Errors
/// Whatever `socket(2)`, `setsockopt(2)` or `bind(2)` gives.
pub fn udp_on_every_address(port: u16) -> io::Result<OwnedFd> {
    udp(Ipv6Addr::UNSPECIFIED, port)
}

/// A datagram socket of both families at one address, which for IPv4 is mapped; it tells where each datagram was sent.
///
/// # Errors
/// When the address cannot be bound.
pub fn udp(address: Ipv6Addr, port: u16) -> io::Result<OwnedFd> {
    let address = SocketAddr::V6(SocketAddrV6::new(address, port, 0, 0));
    let socket = open(&address, SocketType::DGRAM)?;
    sockopt::set_ipv6_freebind(&socket, true)?;
    sockopt::set_ip_freebind(&socket, true)?;
    // The kernel says with each datagram which address it was sent to.
    switch_on(&socket, libc::IPV6_RECVPKTINFO)?;
    bind(&socket, &address)?;
    Ok(socket)
}

fn open(address: &SocketAddr, kind: SocketType) -> io::Result<OwnedFd> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let socket = socket_with(family, kind, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
    if address.is_ipv6() {
        let both = address.ip().is_unspecified() || address.ip().to_canonical().is_ipv4();
        sockopt::set_ipv6_v6only(&socket, !both)?;
    }
    Ok(socket)
}

/// Sets an option of IPv6's that is an int, ipv6(7).
fn switch_on(socket: &OwnedFd, option: libc::c_int) -> io::Result<()> {
    let on: libc::c_int = 1;
    // SAFETY: the option takes an int, whose address and size are given.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_IPV6,
            option,
            (&raw const on).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
