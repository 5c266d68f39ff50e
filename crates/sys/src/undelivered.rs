//! Sockets that tell which datagrams a network namespace did not deliver: they receive the ICMP errors with which the kernel answers most
//! of them.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, Protocol, SocketFlags, SocketType, ipproto, socket_with, sockopt};

/// The octets of a socket's queue, twice of which the kernel takes: some 500 messages, on every machine.
const ROOM: usize = 208 << 10;
/// The types "destination unreachable" of RFC 792 and RFC 4443.
const UNREACHABLE_V4: u32 = 3;
const UNREACHABLE_V6: u32 = 1;
/// linux/icmp.h and linux/icmpv6.h. A bit that is set keeps the messages of its type away.
const SOL_RAW: libc::c_int = 255;
const ICMP_FILTER: libc::c_int = 1;
const ICMPV6_FILTER: libc::c_int = 1;

/// Makes a socket that receives each "destination unreachable" of IPv4 that arrives in this namespace, from its IP header on.
///
/// # Errors
/// When `socket(2)` or `setsockopt(2)` fails, as without `CAP_NET_RAW` in the namespace.
pub fn v4() -> io::Result<OwnedFd> {
    let socket = raw(AddressFamily::INET, ipproto::ICMP)?;
    filter(&socket, SOL_RAW, ICMP_FILTER, &[!(1 << UNREACHABLE_V4)])?;
    Ok(socket)
}

/// Makes the same of IPv6, which receives the messages without their IP header. Returns `None` on a kernel without IPv6.
///
/// # Errors
/// When `socket(2)` or `setsockopt(2)` fails, as without `CAP_NET_RAW` in the namespace.
pub fn v6() -> io::Result<Option<OwnedFd>> {
    let socket = match raw(AddressFamily::INET6, ipproto::ICMPV6) {
        Err(Errno::AFNOSUPPORT) => return Ok(None),
        made => made?,
    };
    let mut blocked = [u32::MAX; 8];
    blocked[0] = !(1 << UNREACHABLE_V6);
    filter(&socket, libc::IPPROTO_ICMPV6, ICMPV6_FILTER, &blocked)?;
    Ok(Some(socket))
}

fn raw(family: AddressFamily, protocol: Protocol) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::RAW, flags, Some(protocol))?;
    sockopt::set_socket_recv_buffer_size(&socket, ROOM)?;
    Ok(socket)
}

fn filter(socket: &OwnedFd, level: libc::c_int, option: libc::c_int, blocked: &[u32]) -> io::Result<()> {
    // SAFETY: the option takes an array of integers, whose address and size are passed.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            blocked.as_ptr().cast(),
            size_of_val(blocked) as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
