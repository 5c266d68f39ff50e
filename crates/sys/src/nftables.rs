//! One nftables table, written in one netlink transaction: every TCP connection of the namespace goes to one port.
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
//! what comes from that host.

use std::io;

use crate::netlink::{ACK, APPEND, Attributes, Batch, CREATE, Protocol};

/// Message types: nfnetlink batch marks, and `NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_…`.
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const NEWTABLE: u16 = 0xa00;
const NEWCHAIN: u16 = 0xa03;
const NEWRULE: u16 = 0xa06;
/// The port of DNS.
const DNS: u16 = 53;
/// `NFPROTO_INET`.
const INET: u8 = 1;
const TABLE: &str = "lockgate";
const CHAIN: &str = "out";
/// `NF_INET_PRE_ROUTING` and `NF_INET_LOCAL_OUT`, linux/netfilter.h.
const PRE_ROUTING: u32 = 0;
const LOCAL_OUT: u32 = 3;
/// Registers, comparisons, bases: linux/netfilter/nf_tables.h.
const REGISTER: u32 = 1;
const EQUAL: u32 = 0;
const META_NFPROTO: u32 = 15;
const META_L4PROTO: u32 = 16;
const NETWORK_HEADER: u32 = 1;
const TRANSPORT_HEADER: u32 = 2;
const VERDICT_RETURN: u32 = -5i32 as u32;
/// `NF_NAT_RANGE_PROTO_SPECIFIED`.
const RANGE_PORT: u32 = 2;

/// Redirects every TCP connection made in this namespace to `port`, but those to its own loopback and to port 53.
///
/// # Errors
/// Whatever the kernel answers to one of the messages.
pub fn redirect_tcp_to(port: u16) -> io::Result<()> {
    let mut batch = begin(LOCAL_OUT);
    rule(&mut batch, |e| {
        e.meta(META_NFPROTO).equals(&[libc::AF_INET as u8]);
        e.payload(NETWORK_HEADER, 16, 1).equals(&[127]).return_from_chain();
    });
    rule(&mut batch, |e| {
        let mut loopback = [0; 16];
        loopback[15] = 1;
        e.meta(META_NFPROTO).equals(&[libc::AF_INET6 as u8]);
        e.payload(NETWORK_HEADER, 24, 16).equals(&loopback).return_from_chain();
    });
    rule(&mut batch, |e| {
        e.meta(META_L4PROTO).equals(&[libc::IPPROTO_TCP as u8]);
        e.payload(TRANSPORT_HEADER, 2, 2).equals(&DNS.to_be_bytes()).return_from_chain();
    });
    rule(&mut batch, |e| {
        e.meta(META_L4PROTO).equals(&[libc::IPPROTO_TCP as u8]).redirect(port);
    });
    end(batch)
}

/// Writes the table for a namespace that one other host sends everything to: questions for names go to port 53, all other TCP
/// to one port, whatever address it is for. The rest of what it sends is let go of where it is for nobody here.
///
/// # Errors
/// When the kernel refuses, as it does without the modules for network address translation.
pub fn redirect_from(host: std::net::Ipv4Addr, port: u16) -> io::Result<()> {
    let mut batch = begin(PRE_ROUTING);
    let mut from_host = |protocol: i32, dns: bool, to: u16| {
        rule(&mut batch, |e| {
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
    end(batch)
}

/// A transaction that makes the table and its chain.
fn begin(hook: u32) -> Batch {
    let mut batch = Batch::default();
    // `struct nfgenmsg`: family, version, resource id in network order (10: the nftables subsystem).
    batch.message(BATCH_BEGIN, 0, &[0, 0, 0, 10], |_| {});
    batch.message(NEWTABLE, ACK, &[INET, 0, 0, 0], |a| a.text(1, TABLE));
    batch.message(NEWCHAIN, ACK | CREATE, &[INET, 0, 0, 0], |a| {
        a.text(1, TABLE);
        a.text(3, CHAIN);
        a.text(7, "nat");
        a.nest(4, |place| {
            place.be32(1, hook);
            place.be32(2, -100i32 as u32); // before routing, as destination NAT is
        });
    });
    batch
}

fn end(mut batch: Batch) -> io::Result<()> {
    batch.message(BATCH_END, 0, &[0, 0, 0, 10], |_| {});
    batch.send(Protocol::Netfilter)
}

fn rule(batch: &mut Batch, expressions: impl FnOnce(&mut Expressions<'_, '_>)) {
    batch.message(NEWRULE, ACK | CREATE | APPEND, &[INET, 0, 0, 0], |a| {
        a.text(1, TABLE);
        a.text(2, CHAIN);
        a.nest(4, |list| expressions(&mut Expressions(list)));
    });
}

/// The expressions of one rule, each working on the one register.
struct Expressions<'a, 'b>(&'a mut Attributes<'b>);

impl Expressions<'_, '_> {
    fn one(&mut self, name: &str, data: impl FnOnce(&mut Attributes<'_>)) -> &mut Self {
        self.0.nest(1, |element| {
            element.text(1, name);
            element.nest(2, data);
        });
        self
    }

    fn meta(&mut self, key: u32) -> &mut Self {
        self.one("meta", |d| {
            d.be32(2, key);
            d.be32(1, REGISTER);
        })
    }

    fn payload(&mut self, base: u32, offset: u32, length: u32) -> &mut Self {
        self.one("payload", |d| {
            d.be32(1, REGISTER);
            d.be32(2, base);
            d.be32(3, offset);
            d.be32(4, length);
        })
    }

    fn equals(&mut self, value: &[u8]) -> &mut Self {
        self.one("cmp", |d| {
            d.be32(1, REGISTER);
            d.be32(2, EQUAL);
            d.nest(3, |v| v.bytes(1, value));
        })
    }

    fn return_from_chain(&mut self) -> &mut Self {
        self.one("immediate", |d| {
            d.be32(1, 0); // NFT_REG_VERDICT
            d.nest(2, |v| v.nest(2, |code| code.be32(1, VERDICT_RETURN)));
        })
    }

    fn redirect(&mut self, port: u16) -> &mut Self {
        self.one("immediate", |d| {
            d.be32(1, REGISTER);
            d.nest(2, |v| v.bytes(1, &port.to_be_bytes()));
        })
        .one("redir", |d| {
            d.be32(1, REGISTER);
            d.be32(3, RANGE_PORT);
        })
    }
}
