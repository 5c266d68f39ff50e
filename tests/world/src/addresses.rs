//! Every address of the world and its server. It must never contain an address of the machine.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The web server of the public internet, in both families.
pub(crate) const WEB4: Ipv4Addr = Ipv4Addr::new(93, 184, 216, 34);
pub(crate) const WEB6: Ipv6Addr = Ipv6Addr::new(0x2606, 0x2800, 0x220, 1, 0, 0, 0, 1);
/// Servers with a certificate for another name, an expired one, a self-signed one, one of an untrusted authority, and one for the address
/// alone.
pub(crate) const BAD_NAME: Ipv4Addr = Ipv4Addr::new(93, 184, 216, 35);
pub(crate) const EXPIRED: Ipv4Addr = Ipv4Addr::new(93, 184, 216, 36);
pub(crate) const SELF_SIGNED: Ipv4Addr = Ipv4Addr::new(93, 184, 216, 37);
pub(crate) const UNKNOWN_CA: Ipv4Addr = Ipv4Addr::new(93, 184, 216, 38);
pub(crate) const IP_ONLY: Ipv4Addr = Ipv4Addr::new(93, 184, 216, 39);
/// The SSH server.
pub(crate) const SSH: Ipv4Addr = Ipv4Addr::new(93, 184, 216, 40);
/// Packets to these vanish, or are answered with "host unreachable".
pub(crate) const BLACKHOLE: Ipv4Addr = Ipv4Addr::new(93, 184, 216, 98);
pub(crate) const UNREACHABLE: Ipv4Addr = Ipv4Addr::new(93, 184, 216, 99);
/// The resolver that the host is configured with.
pub(crate) const RESOLVER4: Ipv4Addr = Ipv4Addr::new(9, 9, 9, 9);
pub(crate) const RESOLVER6: Ipv6Addr = Ipv6Addr::new(0x2620, 0xfe, 0, 0, 0, 0, 0, 0xfe);
/// The host itself and its router, on the LAN side.
pub(crate) const HOST4: Ipv4Addr = Ipv4Addr::new(192, 168, 77, 2);
pub(crate) const HOST6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x77, 0, 0, 0, 0, 0, 2);
pub(crate) const ROUTER4: Ipv4Addr = Ipv4Addr::new(192, 168, 77, 1);
pub(crate) const ROUTER6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x77, 0, 0, 0, 0, 0, 1);
/// A neighbour on the LAN.
pub(crate) const LAN: Ipv4Addr = Ipv4Addr::new(192, 168, 77, 10);
/// The metadata services of the large clouds.
pub(crate) const METADATA: Ipv4Addr = Ipv4Addr::new(169, 254, 169, 254);
pub(crate) const METADATA_ALIBABA: Ipv4Addr = Ipv4Addr::new(100, 100, 100, 200);
pub(crate) const METADATA6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254);
/// A service behind a private address.
pub(crate) const PRIVATE4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 5);
pub(crate) const PRIVATE6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 5);

/// Resolvers that answer, ours first: programs with a built-in resolver ask the others.
pub(crate) const RESOLVERS: [IpAddr; 5] = [
    IpAddr::V4(RESOLVER4),
    IpAddr::V6(RESOLVER6),
    IpAddr::V4(Ipv4Addr::new(8, 8, 8, 8)),
    IpAddr::V4(Ipv4Addr::new(1, 1, 1, 1)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 0x4860, 0x4860, 0, 0, 0, 0, 0x8888)),
];

/// Returns the addresses that sockets bind individually. The sockets on the wildcard address answer for every other one.
pub(crate) fn bound() -> Vec<IpAddr> {
    let mut bound: Vec<IpAddr> = RESOLVERS.to_vec();
    bound.extend([IpAddr::V4(WEB4), IpAddr::V6(WEB6), IpAddr::V4(SSH), IpAddr::V4(LAN)]);
    bound
}

/// Returns the server name that traffic to `address` is recorded under.
pub(crate) fn server_at(address: IpAddr) -> &'static str {
    match address {
        IpAddr::V4(WEB4) | IpAddr::V6(WEB6) => "web",
        IpAddr::V4(BAD_NAME) => "badname",
        IpAddr::V4(EXPIRED) => "expired",
        IpAddr::V4(SELF_SIGNED) => "selfsigned",
        IpAddr::V4(UNKNOWN_CA) => "unknownca",
        IpAddr::V4(IP_ONLY) => "iponly",
        IpAddr::V4(SSH) => "ssh",
        IpAddr::V4(LAN) => "lan",
        IpAddr::V4(METADATA | METADATA_ALIBABA) | IpAddr::V6(METADATA6) => "metadata",
        IpAddr::V4(PRIVATE4) | IpAddr::V6(PRIVATE6) => "private",
        _ => "anywhere",
    }
}
