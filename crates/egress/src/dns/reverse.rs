//! Reads the names by which an address is asked for its own name (RFC 1035 §3.5, RFC 3596 §2.5). It asks nobody.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Returns the address that a whole reverse name, as `1.0.18.198.in-addr.arpa`, is of.
pub(super) fn address_of(name: &str) -> Option<IpAddr> {
    let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    if let Some(labels) = name.strip_suffix(".in-addr.arpa") {
        let octets = numbers::<4>(labels, 10)?;
        return Some(Ipv4Addr::from(octets).into());
    }
    let nibbles = numbers::<32>(name.strip_suffix(".ip6.arpa")?, 16)?;
    let address = nibbles
        .into_iter()
        .try_fold(0, |all, nibble| (nibble < 16).then_some(all << 4 | u128::from(nibble)))?;
    Some(Ipv6Addr::from(address).into())
}

/// Reads exactly `N` labels, of which the last comes first.
fn numbers<const N: usize>(labels: &str, radix: u32) -> Option<[u8; N]> {
    let numbers: Option<Vec<u8>> = labels.rsplit('.').map(|it| u8::from_str_radix(it, radix).ok()).collect();
    numbers?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_reverse_name_is_of_an_address() {
        let one = "1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.7.6.b.6.3.6.f.6.c.6.d.F.IP6.arpa";
        for (name, address) in [
            ("1.0.18.198.in-addr.arpa", Some("198.18.0.1")),
            ("1.0.0.127.IN-ADDR.ARPA.", Some("127.0.0.1")),
            (one, Some("fd6c:6f63:6b67::1")),
            ("0.18.198.in-addr.arpa", None),
            ("7.1.0.18.198.in-addr.arpa", None),
            ("256.0.18.198.in-addr.arpa", None),
            ("secret.0.18.198.in-addr.arpa", None),
            ("1.0.18.198.in-addr.arpa.example.com", None),
            ("in-addr.arpa", None),
            (&one[2..], None),
            (&format!("1{one}"), None),
            ("ip6.arpa", None),
        ] {
            assert_eq!(address_of(name), address.map(|it| it.parse().unwrap()), "{name}");
        }
    }
}
