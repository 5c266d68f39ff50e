//! The table of a namespace whose packets stay on one network: what would leave it is dropped before the kernel asks for a neighbour.
//!
//! ```text
//! table inet lockgate {
//!     chain out { type filter hook output priority 0
//!         oifname lo accept
//!         rt ip nexthop NETWORK.0-254 accept              a route's gateway, or where there is none the destination
//!         drop } }                                        IPv6, broadcasts and multicasts as well
//! ```

use std::io;
use std::net::Ipv4Addr;

use super::transaction::{Chain, Hook, Kind, META_NFPROTO, META_OIFNAME, Table};
use super::{FILTER, TABLE};

/// Drops every packet of this namespace that is handed neither to itself nor to one host of a network of 256 addresses, whatever route,
/// link or neighbour its sender asked for.
///
/// # Errors
/// When the kernel refuses, as without nftables.
pub fn keep_within(network: Ipv4Addr) -> io::Result<()> {
    let [a, b, c, _] = network.octets();
    let chain = "out";
    let mut table = Table::begin(TABLE);
    table.chain(chain, Some(Chain { kind: Kind::Filter, hook: Hook::Output, priority: FILTER }));
    table.rule(chain, |e| {
        e.link(META_OIFNAME, "lo").accept();
    });
    table.rule(chain, |e| {
        e.meta(META_NFPROTO).equals(&[libc::AF_INET as u8]);
        e.next_hop().bits(&[255, 255, 255, 0]).equals(&[a, b, c, 0]);
        e.next_hop().differs(&[a, b, c, 255]).accept();
    });
    table.rule(chain, |e| {
        e.drop();
    });
    table.commit()
}
