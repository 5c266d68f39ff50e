//! nftables tables, each made by one netlink transaction.
//!
//! `inside` sends all TCP of a sandbox's namespace to one port; `firewall` surrounds the host's end of a veth pair; `within` keeps the
//! packets of a namespace on one network. This file has the table of a sidecar that receives all traffic of another host: its rules match
//! packets from that host before routing.

mod firewall;
mod inside;
mod transaction;
mod within;

use std::io;

pub use self::firewall::{Firewall, install};
pub use self::inside::{all_to, lead_all_to};
use self::transaction::{
    Chain, Hook, Kind, META_L4PROTO, META_NFPROTO, NETWORK_HEADER, TRANSPORT_HEADER, Table, remove,
};
pub use self::within::keep_within;

const TABLE: &str = "lockgate";
/// The port of DNS.
const DNS: u16 = 53;

/// Installs the table of a namespace to which `host` sends everything: DNS questions go to port 53, all other TCP to `port`, whatever
/// its destination address. Other packets are dropped unless they are for an address of this namespace.
///
/// # Errors
/// When the kernel refuses, as without the modules for network address translation.
pub fn redirect_from(host: std::net::Ipv4Addr, port: u16) -> io::Result<()> {
    let chain = "in";
    let mut table = Table::begin(TABLE);
    table.chain(chain, Some(Chain { kind: Kind::Nat, hook: Hook::PreRouting, priority: BEFORE_ROUTING }));
    let mut from_host = |protocol: i32, dns: bool, to: u16| {
        table.rule(chain, |e| {
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

/// The priority of destination NAT, `NF_IP_PRI_NAT_DST`.
const BEFORE_ROUTING: i32 = -100;
/// The priority of filters, `NF_IP_PRI_FILTER`.
const FILTER: i32 = 0;

/// Removes a table of this namespace. Does nothing if there is none.
///
/// # Errors
/// When the kernel refuses for another reason.
pub fn remove_table(name: &str) -> io::Result<()> {
    match remove(name) {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        done => done,
    }
}
