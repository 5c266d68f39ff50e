//! nftables tables, each written in one netlink transaction. In a network namespace of one's own: every TCP connection goes to
//! one port.
//!
//! ```text
//! table inet lockgate { chain out { type nat hook output priority -100
//!     ip daddr 127.0.0.0/8 return     a program's own servers stay its own
//!     ip6 daddr ::1 return
//!     tcp dport 53 return             answered at every address by the DNS listener
//!     meta l4proto tcp redirect to :PORT } }
//! ```
//!
//! In the namespace of a sidecar that another host sends everything to, the chain is hooked before routing, and its rules are for
//! what comes from that host. What stands around a link is in `wall`.

mod transaction;
mod wall;

use std::io;

use self::transaction::{
    Chain, Hook, Kind, META_L4PROTO, META_NFPROTO, NETWORK_HEADER, TRANSPORT_HEADER, Table, remove,
};
use self::wall::DNS;
pub use self::wall::{Wall, put_up};
use crate::netlink::Messages;

const TABLE: &str = "lockgate";
const OUT: &str = "out";

/// What redirects every TCP connection made in a namespace to `port`, but those to its own loopback and to port 53.
#[must_use]
pub fn redirection_to(port: u16) -> Messages {
    let mut table = Table::begin(TABLE);
    table.chain(OUT, Some(Chain { kind: Kind::Nat, hook: Hook::Output, priority: BEFORE_ROUTING }));
    table.rule(OUT, |e| {
        e.meta(META_NFPROTO).equals(&[libc::AF_INET as u8]);
        e.payload(NETWORK_HEADER, 16, 1).equals(&[127]).return_from_chain();
    });
    table.rule(OUT, |e| {
        let mut loopback = [0; 16];
        loopback[15] = 1;
        e.meta(META_NFPROTO).equals(&[libc::AF_INET6 as u8]);
        e.payload(NETWORK_HEADER, 24, 16).equals(&loopback).return_from_chain();
    });
    table.rule(OUT, |e| {
        e.meta(META_L4PROTO).equals(&[libc::IPPROTO_TCP as u8]);
        e.payload(TRANSPORT_HEADER, 2, 2).equals(&DNS.to_be_bytes()).return_from_chain();
    });
    table.rule(OUT, |e| {
        e.meta(META_L4PROTO).equals(&[libc::IPPROTO_TCP as u8]).redirect(port);
    });
    table.messages()
}

/// Writes the table for a namespace that one other host sends everything to: questions for names go to port 53, all other TCP
/// to one port, whatever address it is for. The rest of what it sends is let go of where it is for nobody here.
///
/// # Errors
/// When the kernel refuses, as it does without the modules for network address translation.
pub fn redirect_from(host: std::net::Ipv4Addr, port: u16) -> io::Result<()> {
    let mut table = Table::begin(TABLE);
    table.chain(OUT, Some(Chain { kind: Kind::Nat, hook: Hook::PreRouting, priority: BEFORE_ROUTING }));
    let mut from_host = |protocol: i32, dns: bool, to: u16| {
        table.rule(OUT, |e| {
            e.meta(META_NFPROTO).equals(&[libc::AF_INET as u8]);
            e.payload(NETWORK_HEADER, 12, 4).equals(&host.octets());
            e.meta(META_L4PROTO).equals(&[protocol as u8]);
            if dns {
                e.payload(TRANSPORT_HEADER, 2, 2).equals(&DNS.to_be_bytes());
            }
            e.redirect(to);
        });
    };
    from_host(libc::IPPROTO_UDP, true, DNS);
    from_host(libc::IPPROTO_TCP, true, DNS);
    from_host(libc::IPPROTO_TCP, false, port);
    table.commit()
}

/// As destination NAT is.
const BEFORE_ROUTING: i32 = -100;

/// Takes a table of this namespace away. One that is not there is no error.
///
/// # Errors
/// Whatever else the kernel answers.
pub fn remove_table(name: &str) -> io::Result<()> {
    match remove(name) {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        done => done,
    }
}
