//! Address classes: the kind of an IP address, and whether a run may ever connect to it.
//!
//! The tables follow the IANA special-purpose registries and default to closed: an IPv6 address is public only inside
//! `2000::/3` and outside every carve-out. An address that embeds an IPv4 address by any transition scheme is refused,
//! whatever it embeds. This module resolves no name; it classifies addresses that the caller found.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The class of an IP address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AddressClass {
    /// Globally routed: the only class that a name may resolve to.
    Public,
    /// RFC 1918.
    Private,
    /// RFC 6598, the shared space of carrier-grade NAT.
    Shared,
    /// RFC 4193, `fc00::/7`.
    UniqueLocal,
    /// `127.0.0.0/8` and `::1`.
    Loopback,
    /// `169.254.0.0/16` and `fe80::/10`, the home of most metadata services.
    LinkLocal,
    /// A cloud's metadata or host service outside link-local space.
    Metadata,
    /// `0.0.0.0/8` and `::`, which many systems take for loopback.
    Unspecified,
    /// `224.0.0.0/4`, `ff00::/8`, and the limited broadcast address.
    Multicast,
    /// Documentation, benchmarking, protocol assignments, class E and everything unallocated.
    Reserved,
    /// An IPv6 address that carries an IPv4 one: mapped, compatible, translated, NAT64, 6to4, Teredo.
    Embedded,
}

/// IPv4 blocks that are not public, most specific first. Source: IANA IPv4 special-purpose registry.
const V4: &[(Ipv4Addr, u8, AddressClass)] = &[
    (Ipv4Addr::new(168, 63, 129, 16), 32, AddressClass::Metadata), // Azure WireServer
    (Ipv4Addr::new(100, 100, 100, 200), 32, AddressClass::Metadata), // Alibaba Cloud
    (Ipv4Addr::new(192, 0, 0, 192), 32, AddressClass::Metadata),   // Oracle Cloud
    (Ipv4Addr::new(0, 0, 0, 0), 8, AddressClass::Unspecified),
    (Ipv4Addr::new(10, 0, 0, 0), 8, AddressClass::Private),
    (Ipv4Addr::new(100, 64, 0, 0), 10, AddressClass::Shared),
    (Ipv4Addr::new(127, 0, 0, 0), 8, AddressClass::Loopback),
    (Ipv4Addr::new(169, 254, 0, 0), 16, AddressClass::LinkLocal),
    (Ipv4Addr::new(172, 16, 0, 0), 12, AddressClass::Private),
    (Ipv4Addr::new(192, 0, 0, 0), 24, AddressClass::Reserved),
    (Ipv4Addr::new(192, 0, 2, 0), 24, AddressClass::Reserved),
    (Ipv4Addr::new(192, 88, 99, 0), 24, AddressClass::Reserved),
    (Ipv4Addr::new(192, 168, 0, 0), 16, AddressClass::Private),
    (Ipv4Addr::new(198, 18, 0, 0), 15, AddressClass::Reserved),
    (Ipv4Addr::new(198, 51, 100, 0), 24, AddressClass::Reserved),
    (Ipv4Addr::new(203, 0, 113, 0), 24, AddressClass::Reserved),
    (Ipv4Addr::new(224, 0, 0, 0), 4, AddressClass::Multicast),
    (Ipv4Addr::new(255, 255, 255, 255), 32, AddressClass::Multicast),
    (Ipv4Addr::new(240, 0, 0, 0), 4, AddressClass::Reserved),
];

/// IPv6 blocks that are not public, most specific first. Source: IANA IPv6 special-purpose registry.
const V6: &[(Ipv6Addr, u8, AddressClass)] = &[
    (Ipv6Addr::UNSPECIFIED, 128, AddressClass::Unspecified),
    (Ipv6Addr::LOCALHOST, 128, AddressClass::Loopback),
    (Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0, 0), 96, AddressClass::Embedded), // RFC 4291 mapped
    (Ipv6Addr::new(0, 0, 0, 0, 0xffff, 0, 0, 0), 96, AddressClass::Embedded), // RFC 2765 translated
    (Ipv6Addr::UNSPECIFIED, 96, AddressClass::Embedded),                      // RFC 4291 compatible
    (Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0), 96, AddressClass::Embedded), // RFC 6052 NAT64
    (Ipv6Addr::new(0x64, 0xff9b, 1, 0, 0, 0, 0, 0), 48, AddressClass::Embedded), // RFC 8215 NAT64
    (Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0), 32, AddressClass::Metadata), // AWS: instances, and pods' credentials
    (Ipv6Addr::new(0xfd00, 0xc1, 0, 0, 0, 0, 0xa9fe, 0xa9fe), 128, AddressClass::Metadata), // Oracle Cloud
    (Ipv6Addr::new(0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42), 128, AddressClass::Metadata), // Scaleway
    (Ipv6Addr::new(0xfd00, 0xa9fe, 0xa9fe, 0, 0, 0, 0, 1), 128, AddressClass::Metadata), // Linode
    (Ipv6Addr::new(0xfd00, 0x100, 0, 0, 0, 0, 0x100, 0x200), 128, AddressClass::Metadata), // Alibaba Cloud
    (Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254), 128, AddressClass::Metadata), // Google Cloud
    (Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0, 0), 7, AddressClass::UniqueLocal),
    (Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10, AddressClass::LinkLocal),
    (Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0), 8, AddressClass::Multicast),
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 32, AddressClass::Embedded), // RFC 4380 Teredo
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23, AddressClass::Reserved), // RFC 2928 protocol assignments
    (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0), 32, AddressClass::Reserved),
    (Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16, AddressClass::Embedded), // RFC 3056 6to4
    (Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 0), 20, AddressClass::Reserved), // RFC 9637 documentation
    (Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0), 3, AddressClass::Public),
];

impl AddressClass {
    /// Returns the class of an address. An IPv4-mapped IPv6 address is [`AddressClass::Embedded`], never its inner class.
    #[must_use]
    pub fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(v4) => V4
                .iter()
                .find(|(net, bits, _)| prefix_eq(u32::from(*net).into(), u32::from(v4).into(), *bits, 32))
                .map_or(Self::Public, |row| row.2),
            IpAddr::V6(v6) => V6
                .iter()
                .find(|(net, bits, _)| prefix_eq(u128::from(*net), u128::from(v6), *bits, 128))
                .map_or(Self::Reserved, |row| row.2),
        }
    }

    /// Returns the class of a block of an IPv4 network that is not public, if it has any.
    pub(crate) fn first_not_public(first: Ipv4Addr, prefix: u8) -> Option<Self> {
        let overlaps = |net: Ipv4Addr, bits: u8| {
            prefix_eq(u32::from(net).into(), u32::from(first).into(), bits.min(prefix), 32)
        };
        V4.iter().find(|(net, bits, _)| overlaps(*net, *bits)).map(|row| row.2)
    }

    /// Returns whether a name may resolve to an address of this class.
    #[must_use]
    pub fn is_public(self) -> bool {
        self == Self::Public
    }

    /// Returns whether a rule may name an address of this class (S1.39). No rule can open metadata, link-local, multicast
    /// and embedded addresses.
    #[must_use]
    pub fn may_be_named(self) -> bool {
        match self {
            Self::Public | Self::Private | Self::Shared | Self::UniqueLocal | Self::Loopback => true,
            Self::LinkLocal
            | Self::Metadata
            | Self::Unspecified
            | Self::Multicast
            | Self::Reserved
            | Self::Embedded => false,
        }
    }
}

/// Returns whether two numbers of `width` bits agree in their first `bits` bits.
fn prefix_eq(net: u128, address: u128, bits: u8, width: u8) -> bool {
    let shift = u32::from(width - bits);
    shift >= 128 || net >> shift == address >> shift
}

impl fmt::Display for AddressClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Public => "public",
            Self::Private => "private (RFC 1918)",
            Self::Shared => "shared (RFC 6598)",
            Self::UniqueLocal => "unique local (RFC 4193)",
            Self::Loopback => "loopback",
            Self::LinkLocal => "link-local",
            Self::Metadata => "cloud metadata",
            Self::Unspecified => "unspecified",
            Self::Multicast => "multicast",
            Self::Reserved => "reserved",
            Self::Embedded => "an IPv4 address inside IPv6",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each block by its first and its last address, and the single addresses within others.
    #[rustfmt::skip]
    const BLOCKS: &[(&str, &str, AddressClass)] = &[
        ("0.0.0.0", "0.255.255.255", AddressClass::Unspecified),
        ("10.0.0.0", "10.255.255.255", AddressClass::Private),
        ("100.64.0.0", "100.127.255.255", AddressClass::Shared),
        ("100.100.100.200", "100.100.100.200", AddressClass::Metadata),
        ("127.0.0.0", "127.255.255.255", AddressClass::Loopback),
        ("168.63.129.16", "168.63.129.16", AddressClass::Metadata),
        ("169.254.0.0", "169.254.255.255", AddressClass::LinkLocal),
        ("172.16.0.0", "172.31.255.255", AddressClass::Private),
        ("192.0.0.0", "192.0.0.255", AddressClass::Reserved),
        ("192.0.0.192", "192.0.0.192", AddressClass::Metadata),
        ("192.0.2.0", "192.0.2.255", AddressClass::Reserved),
        ("192.88.99.0", "192.88.99.255", AddressClass::Reserved),
        ("192.168.0.0", "192.168.255.255", AddressClass::Private),
        ("198.18.0.0", "198.19.255.255", AddressClass::Reserved),
        ("198.51.100.0", "198.51.100.255", AddressClass::Reserved),
        ("203.0.113.0", "203.0.113.255", AddressClass::Reserved),
        ("224.0.0.0", "239.255.255.255", AddressClass::Multicast),
        ("240.0.0.0", "255.255.255.254", AddressClass::Reserved),
        ("255.255.255.255", "255.255.255.255", AddressClass::Multicast),
        ("::", "::", AddressClass::Unspecified),
        ("::1", "::1", AddressClass::Loopback),
        ("::2", "::ffff:ffff", AddressClass::Embedded),
        ("::ffff:0:0", "::ffff:ffff:ffff", AddressClass::Embedded),
        ("::ffff:0:0:0", "::ffff:0:ffff:ffff", AddressClass::Embedded),
        ("64:ff9b::", "64:ff9b::ffff:ffff", AddressClass::Embedded),
        ("64:ff9b:1::", "64:ff9b:1:ffff:ffff:ffff:ffff:ffff", AddressClass::Embedded),
        ("2000::", "2000:ffff:ffff:ffff:ffff:ffff:ffff:ffff", AddressClass::Public),
        ("2001::", "2001:0:ffff:ffff:ffff:ffff:ffff:ffff", AddressClass::Embedded),
        ("2001:1::", "2001:1ff:ffff:ffff:ffff:ffff:ffff:ffff", AddressClass::Reserved),
        ("2001:db8::", "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff", AddressClass::Reserved),
        ("2002::", "2002:ffff:ffff:ffff:ffff:ffff:ffff:ffff", AddressClass::Embedded),
        ("3fff::", "3fff:fff:ffff:ffff:ffff:ffff:ffff:ffff", AddressClass::Reserved),
        ("3fff:1000::", "3fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", AddressClass::Public),
        ("4000::", "fbff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", AddressClass::Reserved),
        ("fc00::", "fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", AddressClass::UniqueLocal),
        ("fd00:42::42", "fd00:42::42", AddressClass::Metadata),
        ("fd00:c1::a9fe:a9fe", "fd00:c1::a9fe:a9fe", AddressClass::Metadata),
        ("fd00:100::100:200", "fd00:100::100:200", AddressClass::Metadata),
        ("fd00:ec2::", "fd00:ec2:ffff:ffff:ffff:ffff:ffff:ffff", AddressClass::Metadata),
        ("fd00:a9fe:a9fe::1", "fd00:a9fe:a9fe::1", AddressClass::Metadata),
        ("fd20:ce::254", "fd20:ce::254", AddressClass::Metadata),
        ("fe80::", "febf:ffff:ffff:ffff:ffff:ffff:ffff:ffff", AddressClass::LinkLocal),
        ("fec0::", "feff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", AddressClass::Reserved),
        ("ff00::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", AddressClass::Multicast),
    ];

    #[test]
    fn each_block_is_of_one_class_from_its_first_address_to_its_last() {
        use AddressClass::{Loopback, Private, Public, Shared, UniqueLocal};
        for (first, last, class) in BLOCKS {
            let classes = [first, last].map(|text| AddressClass::of(text.parse().unwrap()));
            assert_eq!(classes, [*class; 2], "{first} to {last}");
            let may_be_named = matches!(class, Public | Private | Shared | UniqueLocal | Loopback);
            assert_eq!(class.may_be_named(), may_be_named, "{class}");
        }
    }

    #[test]
    fn special_ranges_are_not_public() {
        // S0.39, S1.38
        for text in [
            "127.0.0.1",
            "127.255.0.9",
            "10.1.2.3",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "100.100.100.200",
            "0.0.0.0",
            "0.1.2.3",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "198.18.0.1",
            "198.19.255.255",
            "168.63.129.16",
            "192.0.0.192",
            "::",
            "::1",
            "fe80::1",
            "fec0::1",
            "fc00::1",
            "fd00:ec2::254",
            "ff02::1",
            "::ffff:8.8.8.8",
            "::8.8.8.8",
            "::ffff:0:8.8.8.8",
            "64:ff9b::808:808",
            "64:ff9b:1::1",
            "2001::1",
            "2001:db8::1",
            "2002:808:808::1",
            "3fff::1",
            "100::1",
            "4000::1",
            "2001:1ff::1",
        ] {
            let address: IpAddr = text.parse().unwrap();
            assert!(!AddressClass::of(address).is_public(), "{text}");
        }
    }

    #[test]
    fn neighbours_of_special_ranges_are_public() {
        for text in [
            "8.8.8.8",
            "11.0.0.1",
            "9.255.255.255",
            "172.15.255.255",
            "172.32.0.1",
            "192.167.1.1",
            "100.63.255.255",
            "100.128.0.1",
            "198.17.255.255",
            "198.20.0.1",
            "223.255.255.255",
            "168.63.129.17",
            "2606:4700::1111",
            "2001:200::1",
            "2003::1",
            "2a00:1450::1",
            "3ffe::1",
        ] {
            let address: IpAddr = text.parse().unwrap();
            assert!(AddressClass::of(address).is_public(), "{text}");
        }
    }

    #[test]
    fn the_floor_cannot_be_named() {
        for text in
            ["169.254.169.254", "100.100.100.200", "fd00:ec2::254", "fe80::1", "::ffff:10.0.0.1", "0.0.0.0"]
        {
            let address: IpAddr = text.parse().unwrap();
            assert!(!AddressClass::of(address).may_be_named(), "{text}");
        }
        for text in ["10.0.0.5", "127.0.0.1", "fd12::1", "100.64.3.2", "93.184.216.34"] {
            let address: IpAddr = text.parse().unwrap();
            assert!(AddressClass::of(address).may_be_named(), "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_ipv6_form_of_an_ipv4_address_is_public(bits: u32) {
            let v4 = Ipv4Addr::from(bits);
            let [a, b] = [(bits >> 16) as u16, bits as u16];
            for v6 in [
                v4.to_ipv6_mapped(),
                v4.to_ipv6_compatible(),
                Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, a, b),
                Ipv6Addr::new(0x64, 0xff9b, 1, 0, 0, 0, a, b),
                Ipv6Addr::new(0x2002, a, b, 0, 0, 0, 0, 1),
                Ipv6Addr::new(0, 0, 0, 0, 0xffff, 0, a, b),
            ] {
                proptest::prop_assert!(!AddressClass::of(IpAddr::V6(v6)).is_public(), "{}", v6);
            }
        }

        #[test]
        fn public_ipv6_lies_in_global_unicast(bits: u128) {
            let v6 = Ipv6Addr::from(bits);
            if AddressClass::of(IpAddr::V6(v6)).is_public() {
                proptest::prop_assert_eq!(bits >> 125, 1);
            }
        }
    }
}
