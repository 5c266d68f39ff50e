//! Hosts as a request may name them: a DNS name of LDH labels or an IP address, without ambiguity between the two.
//!
//! A text that some resolver might read as a number (`0x7f.1`, `2130706433`, `1.2.3.08`) is refused: if two parsers read a host
//! differently, it gets around every rule.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

/// The longest name in text form, without the trailing dot. RFC 1035 §2.3.4.
const MAX_NAME: usize = 253;
/// The longest label. RFC 1035 §2.3.4.
const MAX_LABEL: usize = 63;

/// A DNS name: lower-case LDH labels (RFC 1123 §2.1), no trailing dot, not readable as an IP address.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Hostname(Arc<str>);

/// Why a text is not a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostnameError {
    /// Nothing, or only a dot.
    #[error("it is empty")]
    Empty,
    /// More than 253 octets.
    #[error("it is longer than 253 octets")]
    TooLong,
    /// An empty label, or one over 63 octets.
    #[error("a label is empty or longer than 63 octets")]
    Label,
    /// Something other than letters, digits and inner hyphens.
    #[error("a label may hold only letters, digits and inner hyphens")]
    Character,
    /// The last label is a number, so some parser takes the whole for an IPv4 address.
    #[error("it can be read as a number, and is not an address in dotted-decimal form")]
    Numeric,
}

impl Hostname {
    /// Parses a name. Folds ASCII upper case and drops one trailing dot; repairs nothing else.
    ///
    /// # Errors
    /// If the text is not a name of LDH labels, or ends in a number (WHATWG URL, "ends in a number").
    pub fn parse(text: &str) -> Result<Self, HostnameError> {
        let text = text.strip_suffix('.').unwrap_or(text);
        if text.is_empty() {
            return Err(HostnameError::Empty);
        }
        if text.len() > MAX_NAME {
            return Err(HostnameError::TooLong);
        }
        for label in text.split('.') {
            check_label(label)?;
        }
        if ends_in_number(text) {
            return Err(HostnameError::Numeric);
        }
        Ok(Self(text.to_ascii_lowercase().into()))
    }

    /// Returns the name in lower case, without a trailing dot.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns whether this name is `suffix` with one or more labels in front.
    #[must_use]
    pub fn is_below(&self, suffix: &Hostname) -> bool {
        self.labels_above(suffix).is_some_and(|front| !front.is_empty())
    }

    /// Returns the labels before `suffix`, without the joining dot: `a.b` for `a.b.example.org` and `example.org`.
    #[must_use]
    pub(crate) fn labels_above(&self, suffix: &Hostname) -> Option<&str> {
        let front = self.0.strip_suffix(&*suffix.0)?;
        if front.is_empty() { Some(front) } else { front.strip_suffix('.') }
    }
}

fn check_label(label: &str) -> Result<(), HostnameError> {
    let bytes = label.as_bytes();
    if bytes.is_empty() || bytes.len() > MAX_LABEL {
        return Err(HostnameError::Label);
    }
    let ldh = bytes.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'-');
    let inner = !label.starts_with('-') && !label.ends_with('-');
    if ldh && inner { Ok(()) } else { Err(HostnameError::Character) }
}

/// Returns whether the last label is all digits, or `0x` and hexadecimal digits.
fn ends_in_number(name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or(name);
    let hex = last.strip_prefix("0x").or_else(|| last.strip_prefix("0X"));
    last.bytes().all(|b| b.is_ascii_digit()) || hex.is_some_and(|h| h.bytes().all(|b| b.is_ascii_hexdigit()))
}

impl fmt::Display for Hostname {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The destination of a request: a name or an address literal.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Host {
    /// A DNS name. The sidecar resolves it.
    Name(Hostname),
    /// An address in canonical form. It is not resolved.
    Address(IpAddr),
}

impl Host {
    /// Parses the host part of an authority. An IPv6 address stands in brackets (RFC 3986 §3.2.2), without a zone;
    /// an IPv4 address is four decimal numbers without leading zeros.
    ///
    /// # Errors
    /// If the text is neither a name nor an address.
    pub fn parse(text: &str) -> Result<Self, HostnameError> {
        if let Some(inner) = text.strip_prefix('[') {
            let inner = inner.strip_suffix(']').ok_or(HostnameError::Character)?;
            let address: Ipv6Addr = inner.parse().map_err(|_| HostnameError::Character)?;
            return Ok(Self::Address(IpAddr::V6(address)));
        }
        match text.parse::<Ipv4Addr>() {
            Ok(address) => Ok(Self::Address(IpAddr::V4(address))),
            Err(_) => Hostname::parse(text).map(Self::Name),
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => name.fmt(f),
            Self::Address(IpAddr::V4(address)) => address.fmt(f),
            Self::Address(IpAddr::V6(address)) => write!(f, "[{address}]"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_trailing_dot_and_case_are_folded() {
        assert_eq!(Hostname::parse("API.Example.com.").unwrap().as_str(), "api.example.com");
        assert_eq!(Hostname::parse("a..").unwrap_err(), HostnameError::Label);
        assert_eq!(Hostname::parse(".").unwrap_err(), HostnameError::Empty);
    }

    #[test]
    fn a_label_and_a_name_are_as_long_as_dns_has_them() {
        // RFC 1035 §2.3.4
        let label = "a".repeat(63);
        assert!(Hostname::parse(&label).is_ok());
        for longer in [64, 65, 200] {
            assert_eq!(Hostname::parse(&"a".repeat(longer)).unwrap_err(), HostnameError::Label, "{longer}");
        }
        let longest = format!("{label}.{label}.{label}.{}", &label[..61]);
        assert_eq!(longest.len(), 253);
        assert!(Hostname::parse(&longest).is_ok() && Hostname::parse(&format!("{longest}.")).is_ok());
        for more in ["a", "aa"] {
            let text = format!("{longest}{more}");
            assert_eq!(Hostname::parse(&text).unwrap_err(), HostnameError::TooLong, "{}", text.len());
        }
    }

    #[test]
    fn numbers_are_not_names() {
        for text in [
            "2130706433",
            "0x7f000001",
            "127.1",
            "0x7f.0x0.0.1",
            "1.2.3.08",
            "a.0x",
            "1.2.3.4.5",
            "127.0.0.1.",
        ] {
            assert!(Hostname::parse(text).is_err(), "{text}");
        }
        for text in ["127.1", "0177.0.0.1", "256.0.0.1", "[::1", "[::1%eth0]", "::1", "[127.0.0.1]"] {
            assert!(Host::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn characters_outside_ldh_are_refused() {
        for text in [
            "a_b.com",
            "a b.com",
            "exämple.com",
            "a%2e.com",
            "-a.com",
            "a-.com",
            "a\0.com",
            "a\r\n.com",
            "*.com",
        ] {
            assert!(Hostname::parse(text).is_err(), "{text:?}"); // E03
        }
    }

    proptest::proptest! {
        #[test]
        fn a_parsed_name_parses_to_itself(text in "\\PC{0,80}") {
            if let Ok(name) = Hostname::parse(&text) {
                proptest::prop_assert_eq!(Hostname::parse(name.as_str()).unwrap(), name);
            }
        }
    }
}
