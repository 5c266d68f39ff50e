//! A veth pair between this network namespace and another: making it, raising its ends, giving them addresses, removing it.
//!
//! The message that makes the pair makes the other end in its namespace: moving it there would cost 20 ms. IPv6 is off on both ends.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::net::{AddressFamily, SocketType, netdevice, socket};

use crate::netlink::{ACK, Attributes, Batch, CREATE, EXCLUSIVE, Protocol};
use crate::network::{
    IFF_UP, LOOPBACK, RT_SCOPE_UNIVERSE, RTA_DST, RTA_OIF, RTM_NEWLINK, RTM_NEWROUTE, RTPROT_BOOT, link,
};

/// linux/rtnetlink.h.
const RTM_DELLINK: u16 = 17;
const RTM_NEWADDR: u16 = 20;
const RTM_GETROUTE: u16 = 26;
const RTA_GATEWAY: u16 = 5;
const RT_TABLE_MAIN: u8 = 254;
const RT_SCOPE_LINK: u8 = 253;
const RTN_UNICAST: u8 = 1;
/// `RTM_F_FIB_MATCH`: answer with the matching route itself, and not with its resolution for the address.
const FIB_MATCH: u32 = 0x2000;
/// linux/if_link.h, linux/veth.h.
const NAME: u16 = 3;
const KIND_AND_DATA: u16 = 18;
const BY_FAMILY: u16 = 26;
const NAMESPACE: u16 = 28;
const KIND: u16 = 1;
const DATA: u16 = 2;
const PEER: u16 = 1;
/// `IFLA_INET6_ADDR_GEN_MODE`, and `IN6_ADDR_GEN_MODE_NONE`.
const ADDRESS_MODE: u16 = 8;
const NO_ADDRESS: u8 = 1;
/// linux/if_addr.h.
const ADDRESS: u16 = 1;
const LOCAL: u16 = 2;
const ADDRESS_FLAGS: u16 = 8;
const NO_PREFIX_ROUTE: u32 = 0x200;
/// The longest prefix of a route that counts as a default route: some programs write their default route in pieces.
const WIDEST: u8 = 3;

/// The block of addresses of a pair's two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subnet {
    /// Its first address.
    pub first: Ipv4Addr,
    /// The length of its prefix.
    pub length: u8,
}

/// Makes a pair: `name` here, `peer` in the namespace `there`. Both are down.
///
/// # Errors
/// When the kernel refuses: with `EEXIST` if a name is taken.
pub fn make_pair(name: &str, peer: &str, there: BorrowedFd<'_>) -> io::Result<()> {
    let mut batch = Batch::default();
    batch.message(RTM_NEWLINK, ACK | CREATE | EXCLUSIVE, &link(0, 0), |a| {
        a.text(NAME, name);
        a.nest(KIND_AND_DATA, |info| {
            info.text(KIND, "veth");
            info.nest(DATA, |data| {
                data.nest(PEER, |other| {
                    other.fixed(&link(0, 0));
                    other.text(NAME, peer);
                    other.bytes(NAMESPACE, &there.as_raw_fd().to_ne_bytes());
                });
            });
        });
    });
    batch.send(Protocol::Route)
}

/// Raises a link of this namespace, without IPv6 addresses.
///
/// # Errors
/// When the kernel refuses: with `ENODEV` if there is no such link.
pub fn raise(name: &str) -> io::Result<()> {
    let index = index(name)?;
    let mut batch = Batch::default();
    batch.message(RTM_NEWLINK, ACK, &link(index, 0), |a| {
        a.nest(BY_FAMILY, |families| {
            families.nest(libc::AF_INET6 as u16, |v6| v6.bytes(ADDRESS_MODE, &[NO_ADDRESS]));
        });
    });
    // A kernel without IPv6 refuses this mode, and does not need it.
    let _ = batch.send(Protocol::Route);
    let mut batch = Batch::default();
    batch.message(RTM_NEWLINK, ACK, &link(index, IFF_UP), |_| {});
    batch.send(Protocol::Route)
}

/// Claims a block for a link that is up, and gives the link an address of it. Only one process can claim a block, because the route to it
/// can be made once.
///
/// # Errors
/// When the kernel refuses: with `EEXIST` if the block is taken.
pub fn take(name: &str, block: Subnet, own: Ipv4Addr) -> io::Result<()> {
    let index = index(name)?;
    let mut batch = Batch::default();
    let to_block = route(block.length, RT_SCOPE_LINK, 0);
    batch.message(RTM_NEWROUTE, ACK | CREATE | EXCLUSIVE, &to_block, |a| {
        a.bytes(RTA_DST, &block.first.octets());
        a.bytes(RTA_OIF, &index.to_ne_bytes());
    });
    batch.send(Protocol::Route)?;
    let mut batch = Batch::default();
    address(&mut batch, index, block.length, own, |a| {
        a.bytes(ADDRESS_FLAGS, &NO_PREFIX_ROUTE.to_ne_bytes()); // the route exists already
    });
    batch.send(Protocol::Route)
}

/// Whether this namespace has neither a route (other than a default route) to an address nor the address itself.
///
/// # Errors
/// When the kernel refuses, except because no route leads to the address.
pub fn is_free(address: Ipv4Addr) -> io::Result<bool> {
    let mut batch = Batch::default();
    let mut question = route(32, RT_SCOPE_UNIVERSE, FIB_MATCH);
    question[4..8].fill(0); // in any table
    batch.message(RTM_GETROUTE, 0, &question, |a| a.bytes(RTA_DST, &address.octets()));
    match batch.ask(Protocol::Route) {
        // `struct rtmsg`: the length of the destination is its second octet.
        Ok(found) => Ok(found.get(1).is_some_and(|length| *length <= WIDEST)),
        Err(error) => match error.raw_os_error() {
            Some(libc::ENETUNREACH | libc::EHOSTUNREACH) => Ok(true),
            _ => Err(error),
        },
    }
}

/// Raises loopback and a link of this namespace. Gives the link the address `own`, and makes `to` the default gateway.
///
/// # Errors
/// When the kernel refuses.
pub fn lead_everything(name: &str, own: Ipv4Addr, length: u8, to: Ipv4Addr) -> io::Result<()> {
    raise(name)?;
    let index = index(name)?;
    let mut batch = Batch::default();
    batch.message(RTM_NEWLINK, ACK, &link(LOOPBACK, IFF_UP), |_| {});
    address(&mut batch, index, length, own, |_| {});
    batch.message(RTM_NEWROUTE, ACK | CREATE | EXCLUSIVE, &route(0, RT_SCOPE_UNIVERSE, 0), |a| {
        a.bytes(RTA_GATEWAY, &to.octets());
        a.bytes(RTA_OIF, &index.to_ne_bytes());
    });
    batch.send(Protocol::Route)
}

/// Removes a link of this namespace, and its other end with it. Does nothing if there is none.
///
/// # Errors
/// When the kernel refuses for another reason.
pub fn remove(name: &str) -> io::Result<()> {
    let mut batch = Batch::default();
    batch.message(RTM_DELLINK, ACK, &link(0, 0), |a| a.text(NAME, name));
    match batch.send(Protocol::Route) {
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(()),
        done => done,
    }
}

fn index(name: &str) -> io::Result<u32> {
    let any = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    Ok(netdevice::name_to_index(&any, name)?)
}

/// Adds an address of a link to a batch. `struct ifaddrmsg` is family, prefix length, flags, scope, index.
fn address(batch: &mut Batch, index: u32, length: u8, own: Ipv4Addr, more: impl FnOnce(&mut Attributes<'_>)) {
    let mut message = [libc::AF_INET as u8, length, 0, RT_SCOPE_UNIVERSE, 0, 0, 0, 0];
    message[4..8].copy_from_slice(&index.to_ne_bytes());
    batch.message(RTM_NEWADDR, ACK | CREATE | EXCLUSIVE, &message, |a| {
        a.bytes(LOCAL, &own.octets());
        a.bytes(ADDRESS, &own.octets());
        more(a);
    });
}

/// `struct rtmsg`: family, lengths of destination and source, service, table, protocol, scope, type, flags.
fn route(length: u8, scope: u8, flags: u32) -> [u8; 12] {
    let mut message =
        [libc::AF_INET as u8, length, 0, 0, RT_TABLE_MAIN, RTPROT_BOOT, scope, RTN_UNICAST, 0, 0, 0, 0];
    message[8..12].copy_from_slice(&flags.to_ne_bytes());
    message
}
