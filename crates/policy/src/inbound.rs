//! Declared inbound ports: ports of the command that may be reached from outside the sandbox.

use std::fmt;
use std::net::IpAddr;

use crate::agreed::TRANSPARENT_PORT;
use crate::error::ConfigError;
use crate::location::Location;
use crate::pattern::Width;
use crate::target::Port;
use crate::written::InboundConfig;

/// A compiled inbound port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inbound {
    /// The port inside the sandbox.
    pub container_port: Port,
    /// The port on this machine.
    pub host_port: Port,
    sources: Vec<Sources>,
}

/// A range of source addresses, as in CIDR notation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sources {
    first: IpAddr,
    bits: u8,
}

/// The sources that are this machine itself.
const OWN: [&str; 2] = ["127.0.0.0/8", "::1"];

impl Inbound {
    pub(crate) fn compile(origin: &str, index: usize, config: &InboundConfig) -> Result<Self, ConfigError> {
        let field = format!("inbound[{index}]");
        let at = Location { origin, field: &field, width: Width::AsWritten };
        let port = |field: &str, number| Port::new(number).ok_or_else(|| at.error(field, "0 is not a port"));
        let container_port = port("container_port", config.container_port)?;
        refuse_unservable(&at, "container_port", container_port)?;
        let host_port = port("host_port", config.host_port.unwrap_or(config.container_port))?;
        let sources = match &config.allowed_sources {
            Some(list) if list.is_empty() => {
                return Err(at.error(
                    "allowed_sources",
                    "the list is empty; leave the field out for this machine alone",
                ));
            }
            Some(list) => list.iter().map(|text| Sources::parse(text)).collect(),
            None => OWN.iter().map(|text| Sources::parse(text)).collect(),
        };
        let sources: Result<_, String> = sources;
        Ok(Self {
            container_port,
            host_port,
            sources: sources.map_err(|why| at.error("allowed_sources", why))?,
        })
    }

    /// Returns whether a connection from an address is admitted.
    #[must_use]
    pub fn admits(&self, source: IpAddr) -> bool {
        let source = source.to_canonical();
        self.sources.iter().any(|range| range.holds(source))
    }

    /// Returns whether only this machine may connect. The port is then bound on loopback only.
    #[must_use]
    pub fn is_local(&self) -> bool {
        self.sources.iter().all(|range| match range.first {
            IpAddr::V4(first) => first.is_loopback() && range.bits >= 8,
            IpAddr::V6(first) => first.is_loopback() && range.bits == 128,
        })
    }
}

/// Refuses a port on which no program inside can listen: one below 1024, which takes a capability, or the sandbox's own.
pub(crate) fn refuse_unservable(at: &Location<'_>, field: &str, port: Port) -> Result<(), ConfigError> {
    match port.number() {
        ..1024 => Err(at
            .error(
                field,
                format!(
                    "nothing inside can listen on {port}: ports below 1024 take a right that nobody there has"
                ),
            )
            .with_hint("have the server listen on another, such as 8080")),
        TRANSPARENT_PORT => {
            Err(at.error(field, format!("{port} is taken inside by what everything is redirected to")))
        }
        _ => Ok(()),
    }
}

impl Inbound {
    /// Returns the admitted sources, in the policy's notation.
    pub fn sources(&self) -> impl Iterator<Item = String> {
        self.sources.iter().map(|range| format!("{}/{}", range.first, range.bits))
    }
}

impl fmt::Display for Inbound {
    /// Writes the port in the form of a rule's name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "inbound {} to {}", self.host_port, self.container_port)
    }
}

impl Sources {
    fn parse(text: &str) -> Result<Self, String> {
        let (address, bits) =
            text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
        let first: IpAddr = address.parse().map_err(|_| format!("`{text}` is not an address or a range"))?;
        let width = if first.is_ipv4() { 32 } else { 128 };
        let plain =
            |bits: &str| bits.bytes().all(|b| b.is_ascii_digit()).then(|| bits.parse::<u8>().ok()).flatten();
        let bits = match bits {
            None => width,
            Some(bits) => plain(bits)
                .filter(|bits| *bits <= width)
                .ok_or_else(|| format!("`{text}`: a range has 0 to {width} bits"))?,
        };
        if first.to_canonical() != first {
            return Err(format!("`{text}`: write it as IPv4"));
        }
        let range = Self { first, bits };
        if number(first) & !range.mask() != 0 {
            return Err(format!("`{text}` is in the middle of a range; give its first address"));
        }
        Ok(range)
    }

    fn mask(self) -> u128 {
        let width = if self.first.is_ipv4() { 32 } else { 128 };
        let low = u32::from(width - self.bits);
        u128::MAX.checked_shl(low).unwrap_or(0)
    }

    fn holds(self, source: IpAddr) -> bool {
        source.is_ipv4() == self.first.is_ipv4() && number(source) & self.mask() == number(self.first)
    }
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u32::from(v4).into(),
        IpAddr::V6(v6) => v6.into(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn inbound(sources: Option<&[&str]>) -> Result<Inbound, ConfigError> {
        let allowed_sources = sources.map(|list| list.iter().map(ToString::to_string).collect());
        let config = InboundConfig { container_port: 8000, host_port: None, allowed_sources };
        Inbound::compile("lockgate.toml", 0, &config)
    }

    #[test]
    fn without_sources_only_this_machine_may_connect() {
        let local = inbound(None).unwrap();
        assert!(local.is_local() && local.host_port.number() == 8000);
        for (address, admitted) in [
            ("127.0.0.1", true),
            ("127.9.9.9", true),
            ("::1", true),
            ("::ffff:127.0.0.1", true),
            ("10.0.0.1", false),
            ("::2", false),
        ] {
            assert_eq!(local.admits(address.parse().unwrap()), admitted, "{address}");
        }
    }

    #[test]
    fn ranges_are_what_they_say() {
        let some = inbound(Some(&["192.168.1.0/24", "10.0.0.7", "fd00::/8"])).unwrap();
        assert!(!some.is_local());
        for (address, admitted) in [
            ("192.168.1.255", true),
            ("192.168.2.0", false),
            ("10.0.0.7", true),
            ("10.0.0.8", false),
            ("fdff::1", true),
            ("fe80::1", false),
            ("127.0.0.1", false),
            ("::ffff:192.168.1.1", true),
        ] {
            assert_eq!(some.admits(address.parse().unwrap()), admitted, "{address}");
        }
        assert!(inbound(Some(&["0.0.0.0/0"])).unwrap().admits("203.0.113.9".parse().unwrap()));
        assert!(!inbound(Some(&["127.0.0.0/7"])).is_ok_and(|it| it.is_local()));
    }

    #[test]
    fn what_is_no_range_is_refused() {
        for text in [
            "",
            "x",
            "10.0.0.1/8",
            "10.0.0.0/33",
            "10.0.0.0/+8",
            "10.0.0.0/",
            "::/129",
            "::ffff:10.0.0.1",
            "1.2.3",
            "010.0.0.1",
            "10.0.0.0/8/8",
        ] {
            assert_eq!(inbound(Some(&[text])).unwrap_err().field, "inbound[0].allowed_sources", "{text}");
        }
        assert_eq!(inbound(Some(&[])).unwrap_err().field, "inbound[0].allowed_sources");
    }

    proptest! {
        #[test]
        fn a_range_holds_what_shares_its_bits(first: u32, bits in 0u8..=32, other: u32) {
            let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
            let first = first & mask;
            let text = format!("{}/{bits}", std::net::Ipv4Addr::from(first));
            let range = Sources::parse(&text).unwrap();
            prop_assert_eq!(range.holds(std::net::Ipv4Addr::from(other).into()), other & mask == first);
        }
    }
}
