//! Listening sockets, bound inside a sandbox's network namespace and served from outside it. On a kernel without IPv6, sockets of both
//! families are IPv4 sockets: no client could connect by the other family.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with, sockopt,
};

/// The most connections that wait to be accepted.
const BACKLOG: i32 = 1024;

/// Whether descriptors can be sent to a Unix socket (asm-generic/socket.h). The libc crate does not carry it.
const SO_PASSRIGHTS: libc::c_int = 83;

/// Makes a TCP listener on an address. On the IPv6 wildcard it serves both families.
///
/// # Errors
/// When `socket(2)`, `bind(2)` or `listen(2)` fails.
pub fn tcp(address: SocketAddr) -> io::Result<OwnedFd> {
    let (socket, address) = open(address, SocketType::STREAM)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    bind(&socket, &address)?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Makes a TCP listener of both families that can accept connections to any address and port, if a firewall rule of the namespace
/// hands them to it. The local address of such a connection is the one that the client connected to.
///
/// # Errors
/// When `socket(2)`, `setsockopt(2)`, `bind(2)` or `listen(2)` fails; the option takes `CAP_NET_ADMIN` in the namespace.
pub fn tcp_for_any_address(port: u16) -> io::Result<OwnedFd> {
    let socket = tcp(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)))?;
    // The socket has one flag for both families.
    switch_on(&socket, libc::IPV6_TRANSPARENT, libc::IP_TRANSPARENT)?;
    Ok(socket)
}

/// Makes a listener on a Unix socket at `path`, which takes no descriptors; see [`refuse_descriptors`].
///
/// # Errors
/// When `socket(2)`, `setsockopt(2)`, `bind(2)` or `listen(2)` fails.
pub fn unix(path: &Path) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    refuse_descriptors(&socket)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Has the kernel refuse to carry descriptors over a Unix listener's connections: sendmsg(2) fails with `EPERM`. Whoever reads from a
/// connection closes what was sent over it, and with `SO_LINGER` a peer says how long that takes. Does nothing before Linux 6.16, which
/// cannot refuse them.
///
/// # Errors
/// When `setsockopt(2)` fails.
pub fn refuse_descriptors(listener: &OwnedFd) -> io::Result<()> {
    match set(listener, libc::SOL_SOCKET, SO_PASSRIGHTS, 0) {
        Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => Ok(()),
        done => done,
    }
}

/// Makes a UDP socket on `port` of every address of both families. An answer can be sent from the address that was asked.
///
/// # Errors
/// When `socket(2)`, `setsockopt(2)` or `bind(2)` fails.
pub fn udp_on_every_address(port: u16) -> io::Result<OwnedFd> {
    udp(Ipv6Addr::UNSPECIFIED, port)
}

/// Makes a UDP socket of both families at one address, which is mapped if it is an IPv4 address. The socket reports the destination
/// address of each datagram.
///
/// # Errors
/// When `socket(2)`, `setsockopt(2)` or `bind(2)` fails.
pub fn udp(address: Ipv6Addr, port: u16) -> io::Result<OwnedFd> {
    let (socket, address) = open(SocketAddr::from((address, port)), SocketType::DGRAM)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_freebind(&socket, true)?;
    }
    sockopt::set_ip_freebind(&socket, true)?;
    // The kernel adds to each datagram the address that it was sent to.
    switch_on(&socket, libc::IPV6_RECVPKTINFO, libc::IP_PKTINFO)?;
    bind(&socket, &address)?;
    Ok(socket)
}

/// Makes a socket for an address, and returns the address in the socket's family as well.
fn open(address: SocketAddr, kind: SocketType) -> io::Result<(OwnedFd, SocketAddr)> {
    let make = |family| socket_with(family, kind, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None);
    let (v4, both) = match address.ip() {
        IpAddr::V4(_) => return Ok((make(AddressFamily::INET)?, address)),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => (Some(Ipv4Addr::UNSPECIFIED), true),
        IpAddr::V6(ip) => (ip.to_ipv4_mapped(), ip.to_ipv4_mapped().is_some()),
    };
    match (make(AddressFamily::INET6), v4) {
        // As with `ipv6.disable=1`.
        (Err(Errno::AFNOSUPPORT), Some(v4)) => {
            Ok((make(AddressFamily::INET)?, SocketAddr::from((v4, address.port()))))
        }
        (made, _) => {
            let socket = made?;
            sockopt::set_ipv6_v6only(&socket, !both)?;
            Ok((socket, address))
        }
    }
}

/// Switches on an integer option, named `v6` on an IPv6 socket and `v4` on an IPv4 socket: ipv6(7), ip(7).
fn switch_on(socket: &OwnedFd, v6: libc::c_int, v4: libc::c_int) -> io::Result<()> {
    let (level, option) = match sockopt::socket_domain(socket)? {
        AddressFamily::INET6 => (libc::IPPROTO_IPV6, v6),
        _ => (libc::IPPROTO_IP, v4),
    };
    set(socket, level, option, 1)
}

/// Sets an integer option.
fn set(socket: &OwnedFd, level: libc::c_int, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
    // SAFETY: the option takes an int, whose address and size are passed.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;
    use std::mem::MaybeUninit;
    use std::os::fd::AsFd;

    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

    use super::*;

    /// Makes `socket(2)` in this thread fail for IPv6, as on a kernel without it.
    fn forget_ipv6() {
        let step = |code: u32, jt, jf, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
        let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
        let equals = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
        let end = libc::BPF_RET | libc::BPF_K;
        let refuse = libc::SECCOMP_RET_ERRNO | libc::EAFNOSUPPORT as u32;
        let mut steps = [
            step(load, 0, 0, 0), // the call's number
            step(equals, 0, 3, libc::SYS_socket as u32),
            step(load, 0, 0, 16), // its first argument
            step(equals, 0, 1, libc::AF_INET6 as u32),
            step(end, 0, 0, refuse),
            step(end, 0, 0, libc::SECCOMP_RET_ALLOW),
        ];
        let program = libc::sock_fprog { len: 6, filter: steps.as_mut_ptr() };
        // SAFETY: the program and its steps live for both calls.
        let done = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
        };
        assert!(done, "{}", io::Error::last_os_error());
    }

    #[test]
    fn no_descriptor_is_sent_over_a_connection() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name| folder.path().join(name);
        let late = std::os::unix::net::UnixListener::bind(path("late")).unwrap().into();
        refuse_descriptors(&late).unwrap();
        let _listeners = [unix(&path("ours")).unwrap(), late];
        for name in ["ours", "late"] {
            let client = std::os::unix::net::UnixStream::connect(path(name)).unwrap();
            if set(&client.try_clone().unwrap().into(), libc::SOL_SOCKET, SO_PASSRIGHTS, 1).is_err() {
                return lockgate_needs::missing("a kernel before Linux 6.16 cannot refuse descriptors");
            }
            let own = [client.as_fd()];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            assert!(control.push(SendAncillaryMessage::ScmRights(&own)));
            let sent = sendmsg(&client, &[IoSlice::new(b"{")], &mut control, SendFlags::empty());
            assert_eq!(sent, Err(Errno::PERM), "{name}");
            assert_eq!(rustix::net::send(&client, b"{", SendFlags::empty()), Ok(1));
        }
    }

    #[expect(clippy::disallowed_methods, reason = "the other side of a listener")]
    #[test]
    fn a_kernel_without_ipv6_has_listeners_for_all_there_is() {
        std::thread::spawn(|| {
            forget_ipv6();
            let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
            let listener = std::net::TcpListener::from(tcp(any).unwrap());
            let at = listener.local_addr().unwrap();
            assert!(at.is_ipv4());
            std::net::TcpStream::connect((Ipv4Addr::LOCALHOST, at.port())).unwrap();
            for address in [Ipv6Addr::UNSPECIFIED, Ipv4Addr::LOCALHOST.to_ipv6_mapped()] {
                let socket = std::net::UdpSocket::from(udp(address, 0).unwrap());
                let at = socket.local_addr().unwrap();
                assert!(at.is_ipv4(), "{at}");
                let asks = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
                assert_eq!(asks.send_to(b"question", (Ipv4Addr::LOCALHOST, at.port())).unwrap(), 8);
            }
            // An IPv6 address that is no wildcard and not mapped has no IPv4 counterpart.
            assert!(tcp(SocketAddr::from((Ipv6Addr::LOCALHOST, 0))).is_err());
        })
        .join()
        .unwrap();
    }
}
