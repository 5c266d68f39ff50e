//! Builds one nftables table as a netlink transaction: chains, rules, and the expressions of a rule. It is applied whole or not at all.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use crate::netlink::{ACK, APPEND, Attributes, Batch, CREATE, EXCLUSIVE, Messages, Protocol};

/// Message types: nfnetlink batch marks, and `NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_…`.
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const NEWTABLE: u16 = 0xa00;
const DELTABLE: u16 = 0xa02;
const NEWCHAIN: u16 = 0xa03;
const NEWRULE: u16 = 0xa06;
const NEWSET: u16 = 0xa09;
/// `struct nfgenmsg`: family, version, resource id in network order (10: the nftables subsystem).
const SUBSYSTEM: [u8; 4] = [0, 0, 0, 10];
/// `struct nfgenmsg` of a message about a table of `NFPROTO_INET`.
const INET: [u8; 4] = [1, 0, 0, 0];
/// `NFT_TABLE_F_OWNER`, and `NFT_TABLE_F_PERSIST`, with which the table outlives its owner. Linux 6.9.
const OWNED: u32 = 2;
const PERSISTENT: u32 = 4;
/// `NFT_SET_TIMEOUT | NFT_SET_EVAL`: elements that packets add, and that leave by themselves. The number of a table's only set.
const OF_PACKETS: u32 = 0x10 | 0x20;
const ONLY_SET: u32 = 1;
/// How often the kernel makes the room of elements free that have left; each second where it is not told.
const TIDY: Duration = Duration::from_secs(10);
/// `NFT_DYNSET_OP_UPDATE`: adds an element, or begins its time anew.
const UPDATE: u32 = 1;
/// Registers, comparisons, bases: linux/netfilter/nf_tables.h.
const VERDICT: u32 = 0;
const REGISTER: u32 = 1;
const EQUAL: u32 = 0;
const UNEQUAL: u32 = 1;
pub(super) const META_IIFNAME: u32 = 6;
pub(super) const META_OIFNAME: u32 = 7;
pub(super) const META_NFPROTO: u32 = 15;
pub(super) const META_L4PROTO: u32 = 16;
pub(super) const CT_STATE: u32 = 0;
pub(super) const CT_STATUS: u32 = 2;
/// `NFT_RT_NEXTHOP4`.
const NEXT_HOP: u32 = 1;
pub(super) const NETWORK_HEADER: u32 = 1;
pub(super) const TRANSPORT_HEADER: u32 = 2;
/// `NFT_REJECT_TCP_RST`; `NFT_REJECT_ICMPX_UNREACH`, and its code `NFT_REJECT_ICMPX_PORT_UNREACH`: linux/netfilter/nf_tables.h.
const BY_RESET: u32 = 1;
const BY_ICMP: u32 = 2;
const PORT_UNREACHABLE: u8 = 1;
const DROP: u32 = 0;
const ACCEPT: u32 = 1;
const GOTO: u32 = -4i32 as u32;
/// `NFPROTO_UNSPEC`.
const EITHER_FAMILY: u32 = 0;
/// `NF_NAT_RANGE_PROTO_SPECIFIED`.
const RANGE_PORT: u32 = 2;
/// `NFT_CONNLIMIT_F_INV`: matches beyond the limit.
const BEYOND: u32 = 1;
/// `IFNAMSIZ`: the size in which the kernel keeps and compares a link's name.
const LINK_NAME: usize = 16;

/// The hook of a base chain: its type, its place in a packet's path, and its priority there.
pub(super) struct Chain {
    pub(super) kind: Kind,
    pub(super) hook: Hook,
    pub(super) priority: i32,
}

/// The type of a base chain.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Nat,
    Filter,
}

/// `NF_INET_…`, linux/netfilter.h.
#[derive(Clone, Copy)]
pub(super) enum Hook {
    PreRouting = 0,
    Input = 1,
    Forward = 2,
    Output = 3,
}

/// A transaction that makes a table.
pub(super) struct Table<'a> {
    batch: Batch,
    name: &'a str,
}

impl<'a> Table<'a> {
    /// Begins a table that any process with the right to configure this namespace can change.
    pub(super) fn begin(name: &'a str) -> Self {
        Self::begin_with(name, 0)
    }

    /// Begins a table that only the socket which made it can change, while that socket is open.
    pub(super) fn begin_owned(name: &'a str) -> Self {
        Self::begin_with(name, OWNED | PERSISTENT)
    }

    fn begin_with(name: &'a str, flags: u32) -> Self {
        let mut batch = Batch::default();
        batch.message(BATCH_BEGIN, 0, &SUBSYSTEM, |_| {});
        batch.message(NEWTABLE, ACK | CREATE | EXCLUSIVE, &INET, |a| {
            a.text(1, name);
            a.be32(2, flags);
        });
        Self { batch, name }
    }

    /// A chain; without a place, one that others go to.
    pub(super) fn chain(&mut self, chain: &str, place: Option<Chain>) {
        let name = self.name;
        self.batch.message(NEWCHAIN, ACK | CREATE, &INET, |a| {
            a.text(1, name);
            a.text(3, chain);
            let Some(Chain { kind, hook, priority }) = place else { return };
            a.text(7, if matches!(kind, Kind::Nat) { "nat" } else { "filter" });
            a.nest(4, |place| {
                place.be32(1, hook as u32);
                place.be32(2, priority as u32);
            });
        });
    }

    /// A set, the table's only one, of at most `most` values of `length` octets: those of packets, each until none had it for `idle`.
    pub(super) fn set(&mut self, set: &str, length: u32, most: u32, idle: Duration) {
        let name = self.name;
        self.batch.message(NEWSET, ACK | CREATE, &INET, |a| {
            a.text(1, name);
            a.text(2, set);
            a.be32(3, OF_PACKETS);
            a.be32(5, length);
            a.nest(9, |size| size.be32(1, most));
            a.be32(10, ONLY_SET);
            a.bytes(11, &(idle.as_millis() as u64).to_be_bytes());
            a.be32(12, TIDY.as_millis() as u32);
        });
    }

    pub(super) fn rule(&mut self, chain: &str, expressions: impl FnOnce(&mut Expressions<'_, '_>)) {
        let name = self.name;
        self.batch.message(NEWRULE, ACK | CREATE | APPEND, &INET, |a| {
            a.text(1, name);
            a.text(2, chain);
            a.nest(4, |list| expressions(&mut Expressions(list)));
        });
    }

    pub(super) fn commit(self) -> io::Result<()> {
        self.messages().send()
    }

    /// Commits the transaction and returns the socket, which owns the table.
    pub(super) fn commit_owned(self) -> io::Result<OwnedFd> {
        self.messages().send_and_keep()
    }

    /// Returns the whole transaction.
    pub(super) fn messages(self) -> Messages {
        whole(self.batch)
    }

    /// The octets that would be committed.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> &[u8] {
        self.batch.bytes()
    }
}

/// Removes a table with everything in it.
pub(super) fn remove(name: &str) -> io::Result<()> {
    let mut batch = Batch::default();
    batch.message(BATCH_BEGIN, 0, &SUBSYSTEM, |_| {});
    batch.message(DELTABLE, ACK, &INET, |a| a.text(1, name));
    whole(batch).send()
}

fn whole(mut batch: Batch) -> Messages {
    batch.message(BATCH_END, 0, &SUBSYSTEM, |_| {});
    batch.to(Protocol::Netfilter)
}

/// The expressions of one rule. All of them use the same register.
pub(super) struct Expressions<'a, 'b>(&'a mut Attributes<'b>);

impl Expressions<'_, '_> {
    fn one(&mut self, name: &str, data: impl FnOnce(&mut Attributes<'_>)) -> &mut Self {
        self.0.nest(1, |element| {
            element.text(1, name);
            element.nest(2, data);
        });
        self
    }

    pub(super) fn meta(&mut self, key: u32) -> &mut Self {
        self.one("meta", |d| {
            d.be32(2, key);
            d.be32(1, REGISTER);
        })
    }

    pub(super) fn payload(&mut self, base: u32, offset: u32, length: u32) -> &mut Self {
        self.one("payload", |d| {
            d.be32(1, REGISTER);
            d.be32(2, base);
            d.be32(3, offset);
            d.be32(4, length);
        })
    }

    /// Loads the address of IPv4 that the packet is handed to next, which is its destination where its route has no gateway.
    pub(super) fn next_hop(&mut self) -> &mut Self {
        self.one("rt", |d| {
            d.be32(1, REGISTER);
            d.be32(2, NEXT_HOP);
        })
    }

    /// Loads a property of the packet's connection (conntrack), masked.
    pub(super) fn connection(&mut self, key: u32, mask: u32) -> &mut Self {
        self.one("ct", |d| {
            d.be32(1, REGISTER);
            d.be32(2, key);
        })
        .bits(&mask.to_ne_bytes())
    }

    /// Masks the loaded value. The mask has the value's length, four octets at most.
    pub(super) fn bits(&mut self, mask: &[u8]) -> &mut Self {
        self.one("bitwise", |d| {
            d.be32(1, REGISTER);
            d.be32(2, REGISTER);
            d.be32(3, mask.len() as u32);
            d.nest(4, |v| v.bytes(1, mask));
            d.nest(5, |v| v.bytes(1, &[0; 4][..mask.len()]));
        })
    }

    /// Matches if more than `most` of the connections that this rule has seen still exist.
    pub(super) fn more_connections_than(&mut self, number: u32) -> &mut Self {
        self.one("connlimit", |d| {
            d.be32(1, number);
            d.be32(2, BEYOND);
        })
    }

    /// Matches if the loaded value is in a set, or there is room for it.
    pub(super) fn has_room_in(&mut self, set: &str) -> &mut Self {
        self.one("dynset", |d| {
            d.text(1, set);
            d.be32(3, UPDATE);
            d.be32(4, REGISTER);
        })
    }

    /// Matches the name of a packet's incoming or outgoing link.
    pub(super) fn link(&mut self, key: u32, name: &str) -> &mut Self {
        let mut octets = [0; LINK_NAME];
        let length = name.len().min(LINK_NAME - 1);
        octets[..length].copy_from_slice(&name.as_bytes()[..length]);
        self.meta(key).equals(&octets)
    }

    pub(super) fn equals(&mut self, value: &[u8]) -> &mut Self {
        self.compare(EQUAL, value)
    }

    pub(super) fn differs(&mut self, value: &[u8]) -> &mut Self {
        self.compare(UNEQUAL, value)
    }

    fn compare(&mut self, how: u32, value: &[u8]) -> &mut Self {
        self.one("cmp", |d| {
            d.be32(1, REGISTER);
            d.be32(2, how);
            d.nest(3, |v| v.bytes(1, value));
        })
    }

    pub(super) fn accept(&mut self) -> &mut Self {
        self.verdict(ACCEPT, None)
    }

    pub(super) fn drop(&mut self) -> &mut Self {
        self.verdict(DROP, None)
    }

    /// Answers a packet with "port unreachable" in its family's ICMP, and drops it.
    pub(super) fn reject(&mut self) -> &mut Self {
        self.one("reject", |d| {
            d.be32(1, BY_ICMP);
            d.bytes(2, &[PORT_UNREACHABLE]);
        })
    }

    /// Answers a segment of TCP with a reset, and drops it.
    pub(super) fn reset(&mut self) -> &mut Self {
        self.one("reject", |d| {
            d.be32(1, BY_RESET);
        })
    }

    pub(super) fn go_to(&mut self, chain: &str) -> &mut Self {
        self.verdict(GOTO, Some(chain))
    }

    fn verdict(&mut self, code: u32, chain: Option<&str>) -> &mut Self {
        self.one("immediate", |d| {
            d.be32(1, VERDICT);
            d.nest(2, |v| {
                v.nest(2, |verdict| {
                    verdict.be32(1, code);
                    if let Some(chain) = chain {
                        verdict.text(2, chain);
                    }
                });
            });
        })
    }

    /// Redirects a packet to a port of this host (destination NAT).
    pub(super) fn redirect(&mut self, port: u16) -> &mut Self {
        self.load(port).one("redir", |d| {
            d.be32(1, REGISTER);
            d.be32(3, RANGE_PORT);
        })
    }

    /// Delivers a packet unchanged to the listener at a port of this host, whatever its destination address (tproxy).
    pub(super) fn hand_to(&mut self, port: u16) -> &mut Self {
        self.load(port).one("tproxy", |d| {
            d.be32(1, EITHER_FAMILY);
            d.be32(3, REGISTER);
        })
    }

    fn load(&mut self, port: u16) -> &mut Self {
        self.one("immediate", |d| {
            d.be32(1, REGISTER);
            d.nest(2, |v| v.bytes(1, &port.to_be_bytes()));
        })
    }
}
