//! Sockets other than TCP, UDP and Unix: ICMP, raw, packet, vsock, SCTP and the rest.
//! Opening one is already the attempt; a few then send one small packet and wait two seconds.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Instant;

use serde_json::{Value, json};

use crate::Probe;
use crate::connect::milliseconds;
use crate::report::Report;

pub(crate) const PROBES: &[Probe] = &[
    Probe { name: "socket", usage: "NAME (one row of the list of families)", run: one },
    Probe { name: "sockets", usage: "(all of them)", run: |_| Some(all()) },
    Probe { name: "icmp", usage: "IPV4 (one echo request by a ping socket)", run: icmp },
    Probe { name: "vsock", usage: "CID PORT", run: vsock },
];

/// IPPROTO_DCCP, which the `libc` crate does not define everywhere.
const DCCP: i32 = 33;

const FAMILIES: &[(&str, i32, i32, i32)] = &[
    ("ping4", libc::AF_INET, libc::SOCK_DGRAM, libc::IPPROTO_ICMP),
    ("ping6", libc::AF_INET6, libc::SOCK_DGRAM, libc::IPPROTO_ICMPV6),
    ("raw4", libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_RAW),
    ("raw6", libc::AF_INET6, libc::SOCK_RAW, libc::IPPROTO_RAW),
    ("raw-icmp", libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_ICMP),
    ("raw-tcp", libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_TCP),
    ("packet-raw", libc::AF_PACKET, libc::SOCK_RAW, 0x0300),
    ("packet-datagram", libc::AF_PACKET, libc::SOCK_DGRAM, 0x0300),
    ("vsock-stream", libc::AF_VSOCK, libc::SOCK_STREAM, 0),
    ("vsock-datagram", libc::AF_VSOCK, libc::SOCK_DGRAM, 0),
    ("sctp-stream", libc::AF_INET, libc::SOCK_STREAM, libc::IPPROTO_SCTP),
    ("sctp-packet", libc::AF_INET, libc::SOCK_SEQPACKET, libc::IPPROTO_SCTP),
    ("dccp", libc::AF_INET, libc::SOCK_DCCP, DCCP),
    ("udplite", libc::AF_INET, libc::SOCK_DGRAM, libc::IPPROTO_UDPLITE),
    ("alg", libc::AF_ALG, libc::SOCK_SEQPACKET, 0),
    ("bluetooth", libc::AF_BLUETOOTH, libc::SOCK_RAW, 1),
    ("can", libc::AF_CAN, libc::SOCK_RAW, 1),
    ("tipc", libc::AF_TIPC, libc::SOCK_SEQPACKET, 0),
    ("rds", libc::AF_RDS, libc::SOCK_SEQPACKET, 0),
    ("xdp", libc::AF_XDP, libc::SOCK_RAW, 0),
    ("key", libc::AF_KEY, libc::SOCK_RAW, 2),
    ("smc", 43, libc::SOCK_STREAM, 0),
    ("qipcrtr", 42, libc::SOCK_DGRAM, 0),
    ("netlink-route", libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_ROUTE),
    ("netlink-netfilter", libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_NETFILTER),
    ("netlink-generic", libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_GENERIC),
    ("netlink-xfrm", libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_XFRM),
    ("netlink-audit", libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_AUDIT),
    ("netlink-uevent", libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_KOBJECT_UEVENT),
];

/// Opens a close-on-exec socket whose sends and receives give up after two seconds.
pub(crate) fn open(family: i32, kind: i32, protocol: i32) -> io::Result<OwnedFd> {
    // SAFETY: the descriptor is checked, and owned by nobody else.
    let socket = unsafe {
        let raw = libc::socket(family, kind | libc::SOCK_CLOEXEC, protocol);
        if raw < 0 {
            return Err(io::Error::last_os_error());
        }
        OwnedFd::from_raw_fd(raw)
    };
    let patience = libc::timeval { tv_sec: 2, tv_usec: 0 };
    for option in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
        // SAFETY: the option takes a timeval of this size. Where it is not supported, the family does not block.
        unsafe {
            let length = size_of::<libc::timeval>() as libc::socklen_t;
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                option,
                (&raw const patience).cast(),
                length,
            );
        }
    }
    Ok(socket)
}

/// Sends octets on a connected or addressless socket.
pub(crate) fn send(socket: &OwnedFd, bytes: &[u8]) -> io::Result<()> {
    // SAFETY: the buffer is valid for its length.
    let sent =
        unsafe { libc::send(socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), libc::MSG_NOSIGNAL) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Receives at most `most` octets.
pub(crate) fn receive(socket: &OwnedFd, most: usize) -> io::Result<Vec<u8>> {
    let mut buffer = vec![0u8; most];
    // SAFETY: the buffer is valid for its length.
    let length = unsafe { libc::recv(socket.as_raw_fd(), buffer.as_mut_ptr().cast(), most, 0) };
    let length = usize::try_from(length).map_err(|_| io::Error::last_os_error())?;
    buffer.truncate(length);
    Ok(buffer)
}

/// Connects to an address of any family, given as its C structure.
pub(crate) fn connect<A>(socket: &OwnedFd, address: &A, length: usize) -> io::Result<()> {
    // SAFETY: `address` is a valid socket address of which `length` octets count; callers pass at most its size.
    let value = unsafe {
        libc::connect(
            socket.as_raw_fd(),
            std::ptr::from_ref(address).cast(),
            length.min(size_of::<A>()) as libc::socklen_t,
        )
    };
    if value < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn one(arguments: &[String]) -> Option<Report> {
    let [name] = arguments else { return None };
    let &(_, family, kind, protocol) = FAMILIES.iter().find(|(row, ..)| row == name)?;
    Some(open(family, kind, protocol).map(|_| Value::Null).into())
}

fn all() -> Report {
    let table: serde_json::Map<String, Value> = FAMILIES
        .iter()
        .map(|&(name, family, kind, protocol)| {
            let report = Report::from(open(family, kind, protocol).map(|_| Value::Null));
            (name.to_owned(), report.object(name))
        })
        .collect();
    Report::done(table)
}

fn icmp(arguments: &[String]) -> Option<Report> {
    let [address] = arguments else { return None };
    let address: Ipv4Addr = address.parse().ok()?;
    let start = Instant::now();
    let exchange = || -> io::Result<Value> {
        let socket = open(libc::AF_INET, libc::SOCK_DGRAM, libc::IPPROTO_ICMP)?;
        // SAFETY: an all-zero sockaddr_in is valid.
        let mut target: libc::sockaddr_in = unsafe { std::mem::zeroed() };
        target.sin_family = libc::AF_INET as libc::sa_family_t;
        target.sin_addr.s_addr = u32::from_ne_bytes(address.octets());
        connect(&socket, &target, size_of::<libc::sockaddr_in>())?;
        // Echo request; the kernel fills in the identifier and the checksum of a ping socket.
        send(&socket, &[8, 0, 0, 0, 0, 0, 0, 1, b'p', b'r', b'o', b'b', b'e'])?;
        let answer = receive(&socket, 64)?;
        Ok(
            json!({ "bytes": answer.len(), "from": IpAddr::from(address).to_string(), "ms": milliseconds(start) }),
        )
    };
    Some(exchange().into())
}

fn vsock(arguments: &[String]) -> Option<Report> {
    let [context, port] = arguments else { return None };
    let (context, port) = (context.parse().ok()?, port.parse().ok()?);
    let exchange = || -> io::Result<Value> {
        let socket = open(libc::AF_VSOCK, libc::SOCK_STREAM, 0)?;
        // SAFETY: an all-zero sockaddr_vm is valid.
        let mut target: libc::sockaddr_vm = unsafe { std::mem::zeroed() };
        target.svm_family = libc::AF_VSOCK as libc::sa_family_t;
        target.svm_cid = context;
        target.svm_port = port;
        connect(&socket, &target, size_of::<libc::sockaddr_vm>())?;
        Ok(Value::Null)
    };
    Some(exchange().into())
}
