//! Links and routes inside a network namespace of our own: the loopback link up, and every address local.

use std::io;

pub use crate::netlink::Messages;
use crate::netlink::{ACK, Attributes, Batch, CREATE, EXCLUSIVE, Protocol};

/// linux/rtnetlink.h and linux/if.h.
pub(crate) const RTM_NEWLINK: u16 = 16;
pub(crate) const RTM_NEWROUTE: u16 = 24;
pub(crate) const RTA_DST: u16 = 1;
pub(crate) const RTA_OIF: u16 = 4;
const RTA_PREFSRC: u16 = 7;
pub(crate) const IFF_UP: u32 = 1;
const RT_TABLE_LOCAL: u8 = 255;
pub(crate) const RTPROT_BOOT: u8 = 3;
const RT_SCOPE_HOST: u8 = 254;
pub(crate) const RT_SCOPE_UNIVERSE: u8 = 0;
const RTN_LOCAL: u8 = 2;
/// The index of the loopback link, which is the first of every namespace.
pub(crate) const LOOPBACK: u32 = 1;

/// The errors of a kernel without IPv6 (`ipv6.disable=1`), and of one that has it switched off (`disable_ipv6`).
const NO_IPV6: &[libc::c_int] = &[libc::EOPNOTSUPP, libc::EAFNOSUPPORT, libc::EACCES];

/// Returns the messages that bring the loopback link up and route every IPv4 and IPv6 address to it: `local default dev lo`. A
/// connection to any address then arrives in the namespace, which has no link that leads out. Without IPv6 no connection to such an
/// address can be made at all, and no route is needed.
#[must_use]
pub fn every_address_local() -> [Messages; 2] {
    let mut batch = Batch::default();
    batch.message(RTM_NEWLINK, ACK, &link(LOOPBACK, IFF_UP), |_| {});
    local_default(&mut batch, libc::AF_INET, RT_SCOPE_HOST, |a| {
        // Without it a socket's own address would be the one it connects to, and programs would take that for this host's.
        a.bytes(RTA_PREFSRC, &std::net::Ipv4Addr::LOCALHOST.octets());
    });
    let mut of_ipv6 = Batch::default();
    local_default(&mut of_ipv6, libc::AF_INET6, RT_SCOPE_UNIVERSE, |_| {});
    [batch.to(Protocol::Route), of_ipv6.to(Protocol::Route).unless(NO_IPV6)]
}

/// Adds a route by which every address of a family is local.
fn local_default(batch: &mut Batch, family: libc::c_int, scope: u8, more: impl FnOnce(&mut Attributes<'_>)) {
    let route = [family as u8, 0, 0, 0, RT_TABLE_LOCAL, RTPROT_BOOT, scope, RTN_LOCAL, 0, 0, 0, 0];
    batch.message(RTM_NEWROUTE, ACK | CREATE | EXCLUSIVE, &route, |a| {
        a.bytes(RTA_OIF, &LOOPBACK.to_ne_bytes());
        more(a);
    });
}

/// Makes blocks of IPv4 addresses local to this namespace, which then answers for each address on every link. A block is its
/// first address and its prefix length.
///
/// # Errors
/// When the kernel refuses, as without the right to configure this network namespace.
pub fn make_local(blocks: &[(std::net::Ipv4Addr, u8)]) -> io::Result<()> {
    let mut batch = Batch::default();
    for (first, length) in blocks {
        let route = [
            libc::AF_INET as u8,
            *length,
            0,
            0,
            RT_TABLE_LOCAL,
            RTPROT_BOOT,
            RT_SCOPE_HOST,
            RTN_LOCAL,
            0,
            0,
            0,
            0,
        ];
        batch.message(RTM_NEWROUTE, ACK | CREATE, &route, |a| {
            a.bytes(RTA_DST, &first.octets());
            a.bytes(RTA_OIF, &LOOPBACK.to_ne_bytes());
        });
    }
    batch.send(Protocol::Route)
}

/// `struct ifinfomsg`: family, pad, type, index, flags, change mask.
pub(crate) fn link(index: u32, flags: u32) -> [u8; 16] {
    let mut message = [0; 16];
    message[4..8].copy_from_slice(&index.to_ne_bytes());
    message[8..12].copy_from_slice(&flags.to_ne_bytes());
    message[12..16].copy_from_slice(&flags.to_ne_bytes());
    message
}
