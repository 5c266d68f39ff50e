//! The nftables table of a sandbox's network namespace, in which every address is local: it sends all TCP to one port, and nothing to
//! more addresses of IPv6 at once than the machine's table of neighbours can bear.
//!
//! ```text
//! table inet lockgate { chain in { type filter hook prerouting priority mangle
//!     tcp flags & (syn | rst | ack) != syn accept     connections exist without this rule; most packets end here
//!     meta l4proto != tcp accept                      what of another protocol looked the same
//!     tcp dport 53 accept                             answered at every address by the DNS listener
//!     ip daddr 127.0.0.0/8 accept                     a program's own servers stay its own
//!     ip6 daddr ::1 accept
//!     tproxy to :PORT } }
//! ```
//!
//! A connection keeps its destination address, and the kernel has nothing to translate or track. A kernel without `tproxy`
//! redirects instead, and the listener asks it for the original destination:
//!
//! ```text
//! table inet lockgate { chain out { type nat hook output priority dstnat
//!     tcp dport 53 return; ip daddr 127.0.0.0/8 return; ip6 daddr ::1 return
//!     meta l4proto tcp redirect to :PORT } }
//! ```
//!
//! Either way, the machine's table is spared. It has an entry for each address of IPv6 that a packet was sent to, for a minute and more,
//! which the kernel charges to nobody. (Of IPv4 there is one for all that loopback carries.)
//!
//! ```text
//! set neighbours { typeof ip6 daddr; size 1024; timeout 2m; flags dynamic, timeout }
//! chain spare { type filter hook output priority filter
//!     meta nfproto != ipv6 accept; ip6 daddr ::1 accept
//!     update @neighbours { ip6 daddr } accept
//!     drop }
//! ```

use std::io;
use std::time::Duration;

use super::transaction::{
    Chain, Hook, Kind, META_L4PROTO, META_NFPROTO, NETWORK_HEADER, TRANSPORT_HEADER, Table,
};
use super::{BEFORE_ROUTING, DNS, FILTER, TABLE};
use crate::netlink::Messages;

const TCP: u8 = libc::IPPROTO_TCP as u8;
/// The offset of the flags in a TCP header, and three of them. RFC 9293, 3.1
const FLAGS: u32 = 13;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;
/// Where the destination is in a header of IPv6, and its length. RFC 8200, 3
const TO_V6: u32 = 24;
const V6: u32 = 16;
/// `NF_IP_PRI_MANGLE`: the priority of chains that change packets before routing.
const MANGLE: i32 = -150;
/// How many addresses of IPv6 a namespace sends to at once, and how long one counts after the last packet to it: longer than its
/// entry stays, of which the kernel lets go once it is a minute old (`gc_stale_time`), looking every 15 seconds and more.
const NEIGHBOURS: u32 = 1024;
const NEIGHBOUR_IDLE: Duration = Duration::from_secs(120);

/// Returns the messages that send every TCP connection of a namespace to `port`, except those to loopback and to port 53. The
/// listener there must accept for any address, as that of [`crate::listener::tcp_for_any_address`] does.
#[must_use]
pub fn all_to(port: u16) -> Messages {
    let mut table = Table::begin(TABLE);
    let chain = "in";
    table.chain(chain, Some(Chain { kind: Kind::Filter, hook: Hook::PreRouting, priority: MANGLE }));
    table.rule(chain, |e| {
        e.payload(TRANSPORT_HEADER, FLAGS, 1).bits(&[SYN | RST | ACK]).differs(&[SYN]).accept();
    });
    table.rule(chain, |e| {
        e.meta(META_L4PROTO).differs(&[TCP]).accept();
    });
    own(&mut table, chain);
    table.rule(chain, |e| {
        e.hand_to(port);
    });
    spare_neighbours(&mut table);
    table.messages()
}

/// Sends every TCP connection of this namespace to `port`, by address translation if the kernel has no `tproxy`.
///
/// # Errors
/// When the kernel refuses, as without the modules for either.
pub fn lead_all_to(port: u16) -> io::Result<()> {
    match all_to(port).send() {
        // The kernel lacks an expression that a rule is made of.
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => all_redirected_to(port).send(),
        done => done,
    }
}

fn all_redirected_to(port: u16) -> Messages {
    let mut table = Table::begin(TABLE);
    let chain = "out";
    table.chain(chain, Some(Chain { kind: Kind::Nat, hook: Hook::Output, priority: BEFORE_ROUTING }));
    own(&mut table, chain);
    table.rule(chain, |e| {
        e.meta(META_L4PROTO).equals(&[TCP]).redirect(port);
    });
    spare_neighbours(&mut table);
    table.messages()
}

/// Adds the chain that limits the addresses of IPv6 that anything is sent to.
fn spare_neighbours(table: &mut Table<'_>) {
    let (chain, set) = ("spare", "neighbours");
    table.set(set, V6, NEIGHBOURS, NEIGHBOUR_IDLE);
    table.chain(chain, Some(Chain { kind: Kind::Filter, hook: Hook::Output, priority: FILTER }));
    table.rule(chain, |e| {
        e.meta(META_NFPROTO).differs(&[libc::AF_INET6 as u8]).accept();
    });
    table.rule(chain, |e| {
        e.payload(NETWORK_HEADER, TO_V6, V6).equals(&std::net::Ipv6Addr::LOCALHOST.octets()).accept();
    });
    table.rule(chain, |e| {
        e.payload(NETWORK_HEADER, TO_V6, V6).has_room_in(set).accept();
    });
    table.rule(chain, |e| {
        e.drop();
    });
}

/// Adds the rules for packets that stay where they were sent: DNS and loopback.
fn own(table: &mut Table<'_>, chain: &str) {
    table.rule(chain, |e| {
        e.meta(META_L4PROTO).equals(&[TCP]);
        e.payload(TRANSPORT_HEADER, 2, 2).equals(&DNS.to_be_bytes()).accept();
    });
    table.rule(chain, |e| {
        e.meta(META_NFPROTO).equals(&[libc::AF_INET as u8]);
        e.payload(NETWORK_HEADER, 16, 1).equals(&[127]).accept();
    });
    table.rule(chain, |e| {
        e.meta(META_NFPROTO).equals(&[libc::AF_INET6 as u8]);
        e.payload(NETWORK_HEADER, TO_V6, V6).equals(&std::net::Ipv6Addr::LOCALHOST.octets()).accept();
    });
}
