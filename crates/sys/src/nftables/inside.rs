//! The table of a network namespace of one's own, in which every address is local: all TCP goes to one port.
//!
//! ```text
//! table inet lockgate { chain in { type filter hook prerouting priority mangle
//!     tcp flags & (syn | rst | ack) != syn accept     whoever is connected is found without us; most packets end here
//!     meta l4proto != tcp accept                      what of another protocol looked the same
//!     tcp dport 53 accept                             answered at every address by the DNS listener
//!     ip daddr 127.0.0.0/8 accept                     a program's own servers stay its own
//!     ip6 daddr ::1 accept
//!     tproxy to :PORT } }
//! ```
//!
//! A connection keeps the address it was made to, and the kernel has nothing to translate or to keep track of. One without
//! `tproxy` redirects instead, and tells the address when it is asked:
//!
//! ```text
//! table inet lockgate { chain out { type nat hook output priority dstnat
//!     tcp dport 53 return; ip daddr 127.0.0.0/8 return; ip6 daddr ::1 return
//!     meta l4proto tcp redirect to :PORT } }
//! ```

use std::io;

use super::transaction::{
    Chain, Hook, Kind, META_L4PROTO, META_NFPROTO, NETWORK_HEADER, TRANSPORT_HEADER, Table,
};
use super::{BEFORE_ROUTING, DNS, TABLE};
use crate::netlink::Messages;

const TCP: u8 = libc::IPPROTO_TCP as u8;
/// Where the flags of a segment are, and three of them. RFC 9293, 3.1
const FLAGS: u32 = 13;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;
/// As chains that change packets before they are routed have. `NF_IP_PRI_MANGLE`
const MANGLE: i32 = -150;

/// What leads every TCP connection that is made in a namespace to `port`, but those to its own loopback and to port 53. Whoever
/// listens there may accept for any address, as [`crate::listener::tcp_for_any_address`] does.
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
    table.messages()
}

/// Does so: by translating addresses where the kernel can do no better.
///
/// # Errors
/// When the kernel refuses, as it does without the modules for either.
pub fn lead_all_to(port: u16) -> io::Result<()> {
    match all_to(port).send() {
        // What a rule is made of is not there.
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
    table.messages()
}

/// What stays where it was sent.
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
        e.payload(NETWORK_HEADER, 24, 16).equals(&std::net::Ipv6Addr::LOCALHOST.octets()).accept();
    });
}
