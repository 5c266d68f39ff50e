//! Netlink messages that change the network: an address, a route, a link going down, a firewall table. And what its table of
//! neighbours holds.
//! Meant for a separate network namespace: run with rights anywhere else, they take effect.

use std::io;
use std::net::{Ipv6Addr, UdpSocket};

use serde_json::{Value, json};

use crate::Probe;
use crate::families::{open, receive, send};

pub(crate) const PROBES: &[Probe] = &[
    Probe {
        name: "netlink-address",
        usage: "(adds 127.99.99.99/32 to the first link)",
        run: |_| Some(address().into()),
    },
    Probe {
        name: "netlink-route",
        usage: "(adds a local route for 203.0.113.0/24)",
        run: |_| Some(route().into()),
    },
    Probe {
        name: "netlink-link",
        usage: "(sets the first link down, then up)",
        run: |_| Some(link().into()),
    },
    Probe {
        name: "neighbours",
        usage: "COUNT (routes every IPv6 address to itself where it may, sends to COUNT, counts the entries for them)",
        run: |arguments| match arguments {
            [count] => Some(neighbours(count.parse().ok()?).into()),
            _ => None,
        },
    },
    Probe { name: "nftables-table", usage: "(adds a table named probe)", run: |_| Some(table().into()) },
];

const ACK: u16 = (libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16;
const CREATE: u16 = ACK | (libc::NLM_F_CREATE | libc::NLM_F_EXCL) as u16;

/// The loopback link is the first of every network namespace.
const LOOPBACK: u32 = 1;

/// `nfnetlink` subsystem of nftables and its message, linux/netfilter/nf_tables.h and nfnetlink.h.
const NFT_NEWTABLE: u16 = 10 << 8;
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;

fn address() -> io::Result<Value> {
    let mut body = vec![libc::AF_INET as u8, 32, 0, libc::RT_SCOPE_HOST];
    body.extend(LOOPBACK.to_ne_bytes());
    attribute(&mut body, libc::IFA_LOCAL, &[127, 99, 99, 99]);
    attribute(&mut body, libc::IFA_ADDRESS, &[127, 99, 99, 99]);
    exchange(libc::NETLINK_ROUTE, &message(libc::RTM_NEWADDR, CREATE, 1, &body))
}

fn route() -> io::Result<Value> {
    let mut body = vec![libc::AF_INET as u8, 24, 0, 0, libc::RT_TABLE_LOCAL];
    body.extend([libc::RTPROT_STATIC, libc::RT_SCOPE_HOST, libc::RTN_LOCAL, 0, 0, 0, 0]);
    attribute(&mut body, libc::RTA_DST, &[203, 0, 113, 0]);
    attribute(&mut body, libc::RTA_OIF, &LOOPBACK.to_ne_bytes());
    exchange(libc::NETLINK_ROUTE, &message(libc::RTM_NEWROUTE, CREATE, 1, &body))
}

fn link() -> io::Result<Value> {
    set_link(0)?;
    set_link(libc::IFF_UP as u32)
}

fn set_link(flags: u32) -> io::Result<Value> {
    let mut body = vec![0; 4];
    body.extend(LOOPBACK.to_ne_bytes());
    body.extend(flags.to_ne_bytes());
    body.extend((libc::IFF_UP as u32).to_ne_bytes());
    exchange(libc::NETLINK_ROUTE, &message(libc::RTM_NEWLINK, ACK, 1, &body))
}

fn neighbours(count: u32) -> io::Result<Value> {
    let mut body = vec![libc::AF_INET6 as u8, 0, 0, 0, libc::RT_TABLE_LOCAL];
    body.extend([libc::RTPROT_STATIC, libc::RT_SCOPE_UNIVERSE, libc::RTN_LOCAL, 0, 0, 0, 0]);
    attribute(&mut body, libc::RTA_OIF, &LOOPBACK.to_ne_bytes());
    let _refused_inside = set_link(libc::IFF_UP as u32)
        .and_then(|_| exchange(libc::NETLINK_ROUTE, &message(libc::RTM_NEWROUTE, CREATE, 1, &body)));
    let socket = UdpSocket::bind("[::]:0")?;
    let first = u128::from(Ipv6Addr::new(0x2606, 9, 0, 0, 0, 0, 0, 1));
    let sent = (0..count.min(65_536))
        .filter(|at| socket.send_to(b"x", (Ipv6Addr::from(first + u128::from(*at)), 9000)).is_ok())
        .count();
    Ok(json!({ "sent": sent, "entries": entries()? }))
}

/// Counts the neighbours of IPv6 in the answer to the question for all, which ends with a message of its own.
fn entries() -> io::Result<usize> {
    let socket = open(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_ROUTE)?;
    let all = (libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16;
    let mut body = vec![0; 12];
    body[0] = libc::AF_INET6 as u8;
    send(&socket, &message(libc::RTM_GETNEIGH, all, 1, &body))?;
    let mut found = 0;
    loop {
        let answer = receive(&socket, 65_536)?;
        let mut rest = &answer[..];
        while rest.len() >= 16 {
            let length = u32::from_ne_bytes([rest[0], rest[1], rest[2], rest[3]]) as usize;
            match u16::from_ne_bytes([rest[4], rest[5]]) {
                libc::RTM_NEWNEIGH => found += 1,
                _ => return Ok(found),
            }
            rest = &rest[length.next_multiple_of(4).clamp(16, rest.len())..];
        }
    }
}

fn table() -> io::Result<Value> {
    let group = |family: u8, subsystem: u16| [&[family, 0][..], &subsystem.to_be_bytes()].concat();
    let mut body = group(1, 0);
    attribute(&mut body, 1, b"probe\0");
    let batch = [
        message(BATCH_BEGIN, libc::NLM_F_REQUEST as u16, 0, &group(0, 10)),
        message(NFT_NEWTABLE, CREATE, 1, &body),
        message(BATCH_END, libc::NLM_F_REQUEST as u16, 2, &group(0, 10)),
    ];
    exchange(libc::NETLINK_NETFILTER, &batch.concat())
}

fn message(kind: u16, flags: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
    let mut message = Vec::with_capacity(16 + body.len());
    // A few octets: the length fits.
    message.extend((16 + body.len() as u32).to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend(flags.to_ne_bytes());
    message.extend(sequence.to_ne_bytes());
    message.extend([0; 4]);
    message.extend_from_slice(body);
    message
}

/// An attribute, padded to four octets (netlink(7)).
fn attribute(body: &mut Vec<u8>, kind: u16, value: &[u8]) {
    body.extend((4 + value.len() as u16).to_ne_bytes());
    body.extend(kind.to_ne_bytes());
    body.extend_from_slice(value);
    body.resize(body.len().next_multiple_of(4), 0);
}

/// Sends the message and reads the acknowledgement: an error message whose code is 0 on success.
fn exchange(protocol: i32, bytes: &[u8]) -> io::Result<Value> {
    let socket = open(libc::AF_NETLINK, libc::SOCK_RAW, protocol)?;
    send(&socket, bytes)?;
    let answer = receive(&socket, 4096)?;
    let code = answer.get(16..20).and_then(|code| code.try_into().ok()).map(i32::from_ne_bytes);
    match code {
        Some(0) => Ok(json!("acknowledged")),
        Some(code) => Err(io::Error::from_raw_os_error(-code)),
        None => Err(io::Error::other("the kernel's answer is too short")),
    }
}
