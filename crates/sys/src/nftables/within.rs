//! The table of a namespace whose packets stay on one network: what would leave it is dropped before the kernel asks for a neighbour.
//!
//! ```text
//! table inet lockgate {
//!     chain out { type filter hook output priority 0
//!         oifname lo accept
//!         ip daddr NETWORK.1-254 accept
//!         drop } }                                        IPv6, broadcasts and multicasts as well
//! ```

use std::io;
use std::net::Ipv4Addr;

use super::transaction::{Chain, Hook, Kind, META_NFPROTO, META_OIFNAME, NETWORK_HEADER, Table};
use super::{FILTER, TABLE};

/// Where the destination is in a header of IPv4. RFC 791, 3.1
const TO: u32 = 16;
/// The octets of an address that tell the network, and where its last octet is.
const PREFIX: u32 = 3;
const LAST: u32 = TO + PREFIX;

/// Drops every packet of this namespace that goes neither to itself nor to one host of a network of 256 addresses, whatever route, link
/// or neighbour its sender asked for.
///
/// # Errors
/// When the kernel refuses, as without nftables.
pub fn keep_within(network: Ipv4Addr) -> io::Result<()> {
    let prefix = &network.octets()[..PREFIX as usize];
    let chain = "out";
    let mut table = Table::begin(TABLE);
    table.chain(chain, Some(Chain { kind: Kind::Filter, hook: Hook::Output, priority: FILTER }));
    table.rule(chain, |e| {
        e.link(META_OIFNAME, "lo").accept();
    });
    table.rule(chain, |e| {
        e.meta(META_NFPROTO).equals(&[libc::AF_INET as u8]);
        e.payload(NETWORK_HEADER, TO, PREFIX).equals(prefix);
        e.payload(NETWORK_HEADER, LAST, 1).differs(&[255]).accept();
    });
    table.rule(chain, |e| {
        e.drop();
    });
    table.commit()
}
