//! The firewall around the host's end of a veth pair: what arrives by it goes to three ports of one address, or is dropped.
//!
//! ```text
//! table inet NAME {
//!     chain prerouting { type nat hook prerouting priority -110
//!         iifname LINK ct count over MOST drop            the host's table of connections is limited
//!         iifname LINK udp dport 53 redirect to :NAMES    whatever address was asked
//!         iifname LINK tcp dport 53 redirect to :NAMES
//!         iifname LINK meta l4proto tcp redirect to :PROXY
//!         iifname LINK meta l4proto udp redirect to :PROXY }     so that it is this machine's to refuse
//!     chain input { type filter hook input priority 0
//!         iifname LINK goto link
//!         ip daddr HERE drop }                            nobody else's, not even this machine's own
//!     chain link {
//!         ip saddr . ip daddr != THERE . HERE drop
//!         ct status ! dnat tcp dport PROXY reject with tcp reset      sent to where it would be redirected: it changes nothing
//!         ct status ! dnat udp dport PROXY reject
//!         ct status ! dnat drop                           what was redirected, and nothing that was sent here
//!         tcp dport PROXY accept, and tcp and udp dport NAMES
//!         meta l4proto udp reject
//!         drop }                                          what is rejected, fast: dropped where the kernel cannot
//!     chain forward { type filter hook forward priority 0; iifname LINK drop; oifname LINK drop }
//!     chain output { type filter hook output priority 0; oifname LINK ct state ! established, related drop } }
//! ```
//!
//! Rules match links by name and not by index, so that the table holds before a link is made and after it is gone.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;

use super::transaction::{
    CT_STATE, CT_STATUS, Chain, Hook, Kind, META_IIFNAME, META_L4PROTO, META_NFPROTO, META_OIFNAME,
    NETWORK_HEADER, TRANSPORT_HEADER, Table,
};
use super::{DNS, FILTER};

/// Before others' destination NAT, so that a port which a container engine publishes is not reachable from a sandbox.
const FIRST: i32 = -110;
/// `IPS_DST_NAT`, and `NF_CT_STATE_BIT(IP_CT_ESTABLISHED)`.
const REDIRECTED: u32 = 1 << 5;
const ESTABLISHED: u32 = 1 << 1;
/// `NF_CT_STATE_BIT(IP_CT_RELATED)`: an ICMP error about something that was sent.
const RELATED: u32 = 1 << 2;
/// The most connections and questions of a link that the kernel tracks at once. The machine has one connection-tracking table.
const MOST: u32 = 4096;
const LINK: &str = "link";

/// The firewall of a link.
#[derive(Clone, Copy, Debug)]
pub struct Firewall<'a> {
    /// The name of the table.
    pub table: &'a str,
    /// The name of the link's end in this namespace.
    pub link: &'a str,
    /// The address of this end.
    pub here: Ipv4Addr,
    /// The address of the other end.
    pub there: Ipv4Addr,
    /// The port that takes all TCP.
    pub proxy: u16,
    /// The ports that take DNS questions: over UDP, and over TCP.
    pub names: (u16, u16),
}

/// What becomes of datagrams that are no questions, and of what is sent to the port that takes all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refused {
    /// It is answered with an ICMP error, or a reset.
    Answered,
    /// It vanishes.
    Dropped,
}

/// Installs the firewall. If this returns a descriptor, no other process can remove or flush the table while the descriptor is open;
/// afterwards the table stays, and anybody with the right can.
///
/// # Errors
/// When the kernel refuses, as without the modules for address translation and for counting connections.
pub fn install(firewall: &Firewall<'_>) -> io::Result<Option<OwnedFd>> {
    match install_with(firewall, Refused::Answered) {
        // The kernel lacks an expression that a rule is made of.
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => install_with(firewall, Refused::Dropped),
        installed => installed,
    }
}

fn install_with(firewall: &Firewall<'_>, refused: Refused) -> io::Result<Option<OwnedFd>> {
    match fill(Table::begin_owned(firewall.table), firewall, refused).commit_owned() {
        // The kernel has no owned tables, or only such that vanish with their owner, which may be before the sandbox ends.
        Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EINVAL)) => {
            fill(Table::begin(firewall.table), firewall, refused).commit().map(|()| None)
        }
        made => made.map(Some),
    }
}

fn fill<'a>(mut table: Table<'a>, firewall: &Firewall<'_>, refused: Refused) -> Table<'a> {
    redirect(&mut table, firewall);
    filter(&mut table, firewall, refused);
    table
}

fn redirect(table: &mut Table<'_>, firewall: &Firewall<'_>) {
    let chain = "prerouting";
    table.chain(chain, Some(Chain { kind: Kind::Nat, hook: Hook::PreRouting, priority: FIRST }));
    table.rule(chain, |e| {
        e.link(META_IIFNAME, firewall.link).more_connections_than(MOST).drop();
    });
    let rules = [
        (libc::IPPROTO_UDP, Some(DNS), firewall.names.0),
        (libc::IPPROTO_TCP, Some(DNS), firewall.names.1),
        (libc::IPPROTO_TCP, None, firewall.proxy),
        (libc::IPPROTO_UDP, None, firewall.proxy),
    ];
    for (protocol, port, to) in rules {
        table.rule(chain, |e| {
            e.link(META_IIFNAME, firewall.link);
            e.meta(META_NFPROTO).equals(&[libc::AF_INET as u8]);
            e.meta(META_L4PROTO).equals(&[protocol as u8]);
            if let Some(port) = port {
                e.payload(TRANSPORT_HEADER, 2, 2).equals(&port.to_be_bytes());
            }
            e.redirect(to);
        });
    }
}

fn filter(table: &mut Table<'_>, firewall: &Firewall<'_>, refused: Refused) {
    let hooked = |hook| Some(Chain { kind: Kind::Filter, hook, priority: FILTER });
    table.chain(LINK, None);
    table.rule(LINK, |e| {
        e.meta(META_NFPROTO).differs(&[libc::AF_INET as u8]).drop();
    });
    table.rule(LINK, |e| {
        let ends = [firewall.there.octets(), firewall.here.octets()].concat();
        e.payload(NETWORK_HEADER, 12, 8).differs(&ends).drop();
    });
    if refused == Refused::Answered {
        for protocol in [libc::IPPROTO_TCP, libc::IPPROTO_UDP] {
            table.rule(LINK, |e| {
                e.connection(CT_STATUS, REDIRECTED).equals(&[0; 4]);
                e.meta(META_L4PROTO).equals(&[protocol as u8]);
                e.payload(TRANSPORT_HEADER, 2, 2).equals(&firewall.proxy.to_be_bytes());
                if protocol == libc::IPPROTO_TCP {
                    e.reset()
                } else {
                    e.reject()
                };
            });
        }
    }
    table.rule(LINK, |e| {
        e.connection(CT_STATUS, REDIRECTED).equals(&[0; 4]).drop();
    });
    let ports = [
        (libc::IPPROTO_TCP, firewall.proxy),
        (libc::IPPROTO_UDP, firewall.names.0),
        (libc::IPPROTO_TCP, firewall.names.1),
    ];
    for (protocol, port) in ports {
        table.rule(LINK, |e| {
            e.meta(META_L4PROTO).equals(&[protocol as u8]);
            e.payload(TRANSPORT_HEADER, 2, 2).equals(&port.to_be_bytes()).accept();
        });
    }
    if refused == Refused::Answered {
        table.rule(LINK, |e| {
            e.meta(META_L4PROTO).equals(&[libc::IPPROTO_UDP as u8]).reject();
        });
    }
    table.rule(LINK, |e| {
        e.drop();
    });

    table.chain("input", hooked(Hook::Input));
    table.rule("input", |e| {
        e.link(META_IIFNAME, firewall.link).go_to(LINK);
    });
    table.rule("input", |e| {
        e.meta(META_NFPROTO).equals(&[libc::AF_INET as u8]);
        e.payload(NETWORK_HEADER, 16, 4).equals(&firewall.here.octets()).drop();
    });
    table.chain("forward", hooked(Hook::Forward));
    for way in [META_IIFNAME, META_OIFNAME] {
        table.rule("forward", |e| {
            e.link(way, firewall.link).drop();
        });
    }
    table.chain("output", hooked(Hook::Output));
    table.rule("output", |e| {
        let known = ESTABLISHED | RELATED;
        e.link(META_OIFNAME, firewall.link).connection(CT_STATE, known).equals(&[0; 4]).drop();
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `NLA_F_NESTED`; a netlink header, and `struct nfgenmsg` behind it.
    const NESTED: u16 = 0x8000;
    const HEADER: usize = 16;
    const NEWRULE: u16 = 0xa06;

    /// Returns the attributes of a message or of another attribute, with their types.
    fn attributes(mut rest: &[u8]) -> Vec<(u16, &[u8])> {
        let mut found = Vec::new();
        while rest.len() >= 4 {
            let length = usize::from(u16::from_ne_bytes([rest[0], rest[1]]));
            let kind = u16::from_ne_bytes([rest[2], rest[3]]) & !NESTED;
            found.push((kind, &rest[4..length]));
            rest = &rest[length.next_multiple_of(4).min(rest.len())..];
        }
        found
    }

    fn inner(attribute: &[u8], kind: u16) -> &[u8] {
        attributes(attribute)
            .into_iter()
            .find(|(k, _)| *k == kind)
            .map(|(_, value)| value)
            .unwrap_or_default()
    }

    fn number(attribute: &[u8], kind: u16) -> u32 {
        inner(attribute, kind).try_into().map_or(0, u32::from_be_bytes)
    }

    fn text(octets: &[u8]) -> String {
        String::from_utf8_lossy(octets).trim_end_matches('\0').to_owned()
    }

    /// One expression, read from its octets alone.
    fn expression(element: &[u8]) -> String {
        let (name, data) = (text(inner(element, 1)), inner(element, 2));
        match name.as_str() {
            "meta" => format!("meta {}", number(data, 2)),
            "payload" => format!("payload {}+{}/{}", number(data, 2), number(data, 3), number(data, 4)),
            "ct" => format!("ct {}", number(data, 2)),
            "bitwise" => format!("& {:02x?}", inner(inner(data, 4), 1)),
            "cmp" => {
                let (how, value) = (["==", "!="][number(data, 2) as usize], inner(inner(data, 3), 1));
                let is_name = value.len() == 16 && value.starts_with(b"vh-");
                if is_name { format!("{how} {}", text(value)) } else { format!("{how} {value:?}") }
            }
            "immediate" if number(data, 1) == 0 => {
                let verdict = inner(inner(data, 2), 2);
                format!("verdict {}{}", number(verdict, 1) as i32, text(inner(verdict, 2)))
            }
            "immediate" => format!("{:?}", inner(inner(data, 2), 1)),
            "reject" => format!("reject {} {:?}", number(data, 1), inner(data, 2)),
            "connlimit" => format!("connlimit {} {}", number(data, 1), number(data, 2)),
            other => other.to_owned(),
        }
    }

    /// The rules of a table, each with its chain.
    fn rules(mut rest: &[u8]) -> Vec<String> {
        let mut found = Vec::new();
        while rest.len() >= HEADER + 4 {
            let length = u32::from_ne_bytes(rest[..4].try_into().unwrap()) as usize;
            let body = &rest[HEADER + 4..length];
            if u16::from_ne_bytes([rest[4], rest[5]]) == NEWRULE {
                let list = attributes(inner(body, 4));
                let said: Vec<String> = list.into_iter().map(|(_, element)| expression(element)).collect();
                found.push(format!("{}: {}", text(inner(body, 2)), said.join(", ")));
            }
            rest = &rest[length.next_multiple_of(4).min(rest.len())..];
        }
        found
    }

    #[test]
    fn the_octets_say_what_the_picture_says() {
        let firewall = Firewall {
            table: "lockgate-abcdefghjkmn",
            link: "vh-abcdefghjkmn",
            here: Ipv4Addr::new(240, 76, 0, 1),
            there: Ipv4Addr::new(240, 76, 0, 2),
            proxy: 9999,
            names: (9953, 9954),
        };
        let table = fill(Table::begin(firewall.table), &firewall, Refused::Answered);
        let known = (ESTABLISHED | RELATED).to_ne_bytes();
        let redirected = REDIRECTED.to_ne_bytes();
        let by = "meta 6, == vh-abcdefghjkmn";
        let expected = [
            format!("prerouting: {by}, connlimit 4096 1, verdict 0"),
            format!(
                "prerouting: {by}, meta 15, == [2], meta 16, == [17], payload 2+2/2, == [0, 53], [38, 225], redir"
            ),
            format!(
                "prerouting: {by}, meta 15, == [2], meta 16, == [6], payload 2+2/2, == [0, 53], [38, 226], redir"
            ),
            format!("prerouting: {by}, meta 15, == [2], meta 16, == [6], [39, 15], redir"),
            format!("prerouting: {by}, meta 15, == [2], meta 16, == [17], [39, 15], redir"),
            "link: meta 15, != [2], verdict 0".to_owned(),
            "link: payload 1+12/8, != [240, 76, 0, 2, 240, 76, 0, 1], verdict 0".to_owned(),
            format!(
                "link: ct 2, & {redirected:02x?}, == [0, 0, 0, 0], meta 16, == [6], payload 2+2/2, == [39, 15], reject 1 []"
            ),
            format!(
                "link: ct 2, & {redirected:02x?}, == [0, 0, 0, 0], meta 16, == [17], payload 2+2/2, == [39, 15], reject 2 [1]"
            ),
            format!("link: ct 2, & {redirected:02x?}, == [0, 0, 0, 0], verdict 0"),
            "link: meta 16, == [6], payload 2+2/2, == [39, 15], verdict 1".to_owned(),
            "link: meta 16, == [17], payload 2+2/2, == [38, 225], verdict 1".to_owned(),
            "link: meta 16, == [6], payload 2+2/2, == [38, 226], verdict 1".to_owned(),
            "link: meta 16, == [17], reject 2 [1]".to_owned(),
            "link: verdict 0".to_owned(),
            format!("input: {by}, verdict -4link"),
            "input: meta 15, == [2], payload 1+16/4, == [240, 76, 0, 1], verdict 0".to_owned(),
            format!("forward: {by}, verdict 0"),
            "forward: meta 7, == vh-abcdefghjkmn, verdict 0".to_owned(),
            format!("output: meta 7, == vh-abcdefghjkmn, ct 0, & {known:02x?}, == [0, 0, 0, 0], verdict 0"),
        ];
        assert_eq!(rules(table.bytes()), expected);
    }
}
