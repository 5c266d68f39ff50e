//! nftables tables, each written in one netlink transaction. What leads all TCP of a namespace of one's own to one port is in
//! `inside`, what stands around a link in `wall`. Here is the table of a sidecar that another host sends everything to: its rules
//! are for what comes from that host, before it is routed.

mod inside;
mod transaction;
mod wall;

use std::io;

pub use self::inside::{all_to, lead_all_to};
use self::transaction::{
    Chain, Hook, Kind, META_L4PROTO, META_NFPROTO, NETWORK_HEADER, TRANSPORT_HEADER, Table, remove,
};
pub use self::wall::{Wall, put_up};

const TABLE: &str = "lockgate";
/// The port of DNS.
const DNS: u16 = 53;

/// Writes the table for a namespace that one other host sends everything to: questions for names go to port 53, all other TCP
/// to one port, whatever address it is for. The rest of what it sends is let go of where it is for nobody here.
///
/// # Errors
/// When the kernel refuses, as it does without the modules for network address translation.
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
