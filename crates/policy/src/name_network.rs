//! The network out of which allowed names get their addresses inside a sandbox. Nothing is ever sent to these addresses: the sidecar
//! knows by them which name a program means.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use crate::address::AddressClass;
use crate::error::ConfigError;

pub(crate) const FIELD: &str = "name_addresses";
pub(crate) const EXAMPLE: &str = "name one as in `22.0.0.0/16`, whose hosts the command does not need";
/// The fewest and the most bits that are the network's own: no more addresses than a program may miss, and enough that none has to stand
/// for a second name while a program may remember the first.
const PREFIXES: std::ops::RangeInclusive<u8> = 8..=16;

/// The prefix of 96 bits out of which names have IPv6 addresses as well where the network is the default: a unique local one (RFC 4193).
const BESIDE_DEFAULT: Ipv6Addr = Ipv6Addr::new(0xfd6c, 0x6f63, 0x6b67, 0, 0, 0, 0, 0);

/// An IPv4 network whose addresses stand for names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameNetwork {
    first: Ipv4Addr,
    prefix: u8,
}

impl NameNetwork {
    /// The sidecar's own address: the first, which stands for no name.
    #[must_use]
    pub fn sidecar(self) -> Ipv4Addr {
        self.first
    }

    /// How many addresses there are for names: all but the sidecar's and the last, which looks like a broadcast address.
    #[must_use]
    pub fn names(self) -> u32 {
        (1 << (32 - self.prefix)) - 2
    }

    /// Returns the address of a number among those of IPv6 that names have beside the default network's.
    #[must_use]
    pub fn beside_default(number: u32) -> Ipv6Addr {
        Ipv6Addr::from(u128::from(BESIDE_DEFAULT) | u128::from(number))
    }

    /// Returns the number of such an address.
    #[must_use]
    pub fn number_beside_default(address: Ipv6Addr) -> Option<u32> {
        u32::try_from(u128::from(address).checked_sub(BESIDE_DEFAULT.into())?).ok()
    }

    /// Whether an address is one of it, or stands for a name beside it.
    pub(crate) fn has(self, address: IpAddr) -> bool {
        let own = |of: Ipv4Addr| u32::from(of) >> (32 - self.prefix);
        match address {
            IpAddr::V4(address) => own(address) == own(self.first),
            IpAddr::V6(address) => self == Self::default() && Self::number_beside_default(address).is_some(),
        }
    }
}

impl Default for NameNetwork {
    /// 198.18.0.0/15, for benchmarks (RFC 2544), which no network routes.
    fn default() -> Self {
        Self { first: Ipv4Addr::new(198, 18, 0, 0), prefix: 15 }
    }
}

impl FromStr for NameNetwork {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('/').and_then(|(first, prefix)| {
            Some(Self { first: first.parse().ok()?, prefix: prefix.parse().ok()? })
        });
        let Some(network) = parts else {
            return Err(format!("`{}` is not an IPv4 network", text.escape_debug()));
        };
        if network == Self::default() {
            return Ok(network);
        }
        if !PREFIXES.contains(&network.prefix) {
            let (fewest, most) = (PREFIXES.start(), PREFIXES.end());
            return Err(format!(
                "`{text}` has a prefix of {}, and it may be {fewest} to {most}",
                network.prefix
            ));
        }
        if u32::from(network.first).trailing_zeros() < 32 - u32::from(network.prefix) {
            return Err(format!("`{text}` does not begin with its first address"));
        }
        match AddressClass::first_not_public(network.first, network.prefix) {
            Some(class) => Err(format!("`{text}` holds addresses that are not public ({class})")),
            None => Ok(network),
        }
    }
}

impl fmt::Display for NameNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.first, self.prefix)
    }
}

/// Parses the field of a layer.
pub(crate) fn parse(origin: &str, text: &str) -> Result<NameNetwork, ConfigError> {
    text.parse().map_err(|problem: String| ConfigError::new(origin, FIELD, problem).with_hint(EXAMPLE))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::asked::{Asked, Plane, View};
    use crate::denial::Guard;
    use crate::hostname::Host;
    use crate::layer::Layers;
    use crate::origin::Origin;
    use crate::spec::RunSpec;
    use crate::target::Port;

    fn compile(text: &str) -> Result<RunSpec, ConfigError> {
        let mut layers = Layers::default();
        layers.push(Origin::Flags, toml::from_str(text).unwrap());
        layers.compile()
    }

    #[test]
    fn a_network_of_public_addresses_is_taken() {
        assert_eq!(compile("").unwrap().name_addresses, NameNetwork::default());
        for (text, names) in [("22.0.0.0/8", 16_777_214), ("22.1.0.0/16", 65_534)] {
            let network = compile(&format!("name_addresses = \"{text}\"")).unwrap().name_addresses;
            assert_eq!((network.to_string().as_str(), network.names()), (text, names));
            assert!(network.has(network.sidecar().into()), "{text}");
        }
        let default = compile("name_addresses = \"198.18.0.0/15\"\nbackend = \"process\"").unwrap();
        assert_eq!(default.name_addresses, NameNetwork::default());
    }

    #[test]
    fn any_other_is_refused_by_name() {
        for (text, why) in [
            ("", "not an IPv4 network"),
            ("22.0.0.0", "not an IPv4 network"),
            ("2600::/32", "not an IPv4 network"),
            ("22.0.0.0/33", "a prefix of 33"),
            ("22.0.0.0/17", "a prefix of 17"),
            ("16.0.0.0/7", "a prefix of 7"),
            ("22.0.0.1/16", "does not begin with its first address"),
            ("10.0.0.0/8", "private"),
            ("192.168.0.0/16", "private"),
            ("172.0.0.0/8", "private"),
            ("127.0.0.0/8", "loopback"),
            ("198.18.0.0/16", "reserved"),
            ("224.0.0.0/8", "multicast"),
            ("168.63.0.0/16", "cloud metadata"),
        ] {
            let error = compile(&format!("name_addresses = \"{text}\"")).unwrap_err();
            assert_eq!(error.field, "name_addresses");
            assert!(error.problem.contains(why), "{text}: {}", error.problem);
            assert!(error.hint.is_some_and(|hint| hint.contains("22.0.0.0/16")), "{text}");
        }
    }

    #[test]
    fn it_hides_no_address_that_a_rule_allows() {
        let with = |rule: &str| {
            compile(&format!("name_addresses = \"22.0.0.0/16\"\n[[egress.allow]]\nhost = \"{rule}\""))
        };
        let error = with("22.0.3.4").unwrap_err();
        assert!(error.problem.contains("22.0.3.4"), "{}", error.problem);
        with("22.1.0.0").unwrap();
        let provider = "[[provider]]\nid = \"own\"\nauthorized_uris = [\"https://22.0.0.1/*\"]";
        assert!(compile(&format!("name_addresses = \"22.0.0.0/16\"\n{provider}")).is_err());
        with("api.example.com").unwrap();
    }

    #[test]
    fn an_address_of_it_is_no_host() {
        for (network, own) in [
            ("198.18.0.0/15", "198.18.7.7"),
            ("198.18.0.0/15", "fd6c:6f63:6b67::99"),
            ("22.0.0.0/16", "22.0.7.7"),
        ] {
            let own: IpAddr = own.parse().unwrap();
            let asked =
                |host: Host| Asked::connection(Plane::Transparent, host, Port::new(443).unwrap(), View::Tls);
            let with = |default: &str| {
                let text = format!("name_addresses = \"{network}\"\negress.default = \"{default}\"");
                compile(&text).unwrap().policy
            };
            // By no rule, whose hint would be one that hides it.
            for default in ["open-internet", "deny"] {
                let denial = with(default).decide(&asked(Host::Address(own))).unwrap_err();
                assert_eq!(denial.guard, Guard::Address);
                assert!(denial.reason.contains("stands for a name"), "{denial:?}");
                assert_eq!(denial.hint.unwrap().to_string(), "ask by the name");
            }
            let vetted = |host: &str, address: IpAddr| {
                let host = Host::parse(host).unwrap();
                with("open-internet").decide(&asked(host)).unwrap().vet(&[address])
            };
            vetted("23.0.7.7", "23.0.7.7".parse().unwrap()).unwrap();
            // A name may really have an address of a public network.
            assert_eq!(vetted("www.example.org", own).is_ok(), network.starts_with("22."));
        }
    }

    #[test]
    fn where_names_have_other_addresses_it_is_refused() {
        for (more, why) in [
            ("backend = \"process\"", "with `process`"),
            ("backend = \"docker\"\nimage = \"busybox\"", "with `docker`"),
        ] {
            let error = compile(&format!("name_addresses = \"22.0.0.0/16\"\n{more}")).unwrap_err();
            assert!(error.problem.contains(why), "{}", error.problem);
        }
        compile("name_addresses = \"22.0.0.0/16\"\nimage = \"busybox\"").unwrap();
    }
}
