//! Host patterns as rules write them: `api.example.com`, `*.example.com`, `**.example.com`, an address.
//!
//! A pattern must name at least one label below a public suffix: `*.com` or `**.co.uk` would allow nearly everything.
//! Accepted and rejected forms are listed in docs/policy.md, row by row, and tested from there.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use crate::address::AddressClass;
use crate::agreed::SIDECAR_NAME;
use crate::hostname::{Host, Hostname};

/// Names of the machine that the sidecar runs on. S0.39 and E12.
const THIS_MACHINE: &[&str] = &[
    // Loopback, as `/etc/hosts` of distributions names it.
    "localhost",
    "localhost.localdomain",
    "localhost4",
    "localhost4.localdomain4",
    "localhost6",
    "localhost6.localdomain6",
    "loopback",
    "ip6-localhost",
    "ip6-loopback",
    // The machine that an engine or its virtual machine runs on: Docker, Podman, Lima, minikube.
    "host.docker.internal",
    "gateway.docker.internal",
    "kubernetes.docker.internal",
    "vm.docker.internal",
    "host.containers.internal",
    "host.lima.internal",
    "host.minikube.internal",
];

/// Names of the sidecar itself, and of its sandbox.
const OWN: &[&str] = &[SIDECAR_NAME, "agent"];

/// Names of metadata services: Google, Amazon, Azure, Tencent.
const METADATA: &[&str] = &[
    "metadata",
    "metadata.google.internal",
    "metadata.goog",
    "instance-data",
    "instance-data.ec2.internal",
    "metadata.ec2.internal",
    "metadata.azure.internal",
    "metadata.tencentyun.com",
];

/// A compiled host pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostPattern {
    /// This name and no other.
    Exact(Hostname),
    /// `*.x`: exactly one label in front.
    OneLabel(Hostname),
    /// `**.x`: one label or more in front.
    ManyLabels(Hostname),
    /// The name itself and everything below it, as in presets.
    ApexAndBelow(Hostname),
    /// An address literal.
    Address(IpAddr),
}

/// How wide a pattern may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Width {
    /// At least one label below a public suffix.
    BelowPublicSuffix,
    /// The same, where a credential is good: no preset widens that.
    OfCredential,
    /// Any width, for the reviewed patterns that ship with the program. GitHub's file host is a public suffix.
    AsWritten,
    /// For deny rules: they may name a host that no rule can open, and everything below a public suffix.
    Closing,
}

/// The reason why a text is not a usable pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// Not a host at all.
    #[error("`{text}` is not a host: {why}")]
    NotAHost {
        /// The text as it was written.
        text: String,
        /// The reason.
        why: String,
    },
    /// Everything below a public suffix.
    #[error("`{text}` is too wide; name at least one label below the public suffix, as in `{example}`")]
    TooWide {
        /// The text as it was written.
        text: String,
        /// A pattern that is narrow enough.
        example: String,
    },
    /// Every host, in a rule that allows.
    #[error(
        "`{text}` is too wide; name at least one label below the public suffix, as in `**.example.com`, \
         or the preset `open-internet` for every public host"
    )]
    Everything {
        /// The text as it was written.
        text: String,
    },
    /// A reserved name.
    #[error("`{text}` names this machine, the sidecar or a metadata service, which no rule can open")]
    Reserved {
        /// The text as it was written.
        text: String,
    },
    /// An address of a class that no rule can open.
    #[error("`{text}` is {class}; no rule can open such an address")]
    Floor {
        /// The text as it was written.
        text: String,
        /// Its class.
        class: AddressClass,
    },
}

impl HostPattern {
    /// Parses a pattern without a port.
    ///
    /// # Errors
    /// If the text is not a host, is too wide, or names a host that no rule can open.
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        Self::parse_within(text, Width::BelowPublicSuffix)
    }

    /// Parses a pattern without a port, up to the given width.
    pub(crate) fn parse_within(text: &str, width: Width) -> Result<Self, PatternError> {
        let below = |text: &str, suffix: &str| match width {
            Width::Closing => Hostname::parse(suffix).map_err(|why| not_a_host(text, &why.to_string())),
            Width::BelowPublicSuffix | Width::OfCredential | Width::AsWritten => below(text, suffix),
        };
        if text == "*" || text == "**" {
            let (text, example) = (text.into(), "**.example.com".into());
            return Err(match width {
                Width::BelowPublicSuffix => PatternError::Everything { text },
                Width::OfCredential | Width::AsWritten | Width::Closing => {
                    PatternError::TooWide { text, example }
                }
            });
        }
        if let Some(suffix) = text.strip_prefix("**.") {
            return below(text, suffix).map(Self::ManyLabels);
        }
        if let Some(suffix) = text.strip_prefix("*.") {
            return below(text, suffix).map(Self::OneLabel);
        }
        match Host::parse(text) {
            Ok(host) if width == Width::Closing => Ok(match host {
                Host::Name(name) => Self::Exact(name),
                Host::Address(address) => Self::Address(address),
            }),
            Ok(Host::Name(name)) if is_reserved(&name) => Err(PatternError::Reserved { text: text.into() }),
            Ok(Host::Name(name)) => Ok(Self::Exact(name)),
            Ok(Host::Address(address)) => {
                let class = AddressClass::of(address);
                if class.may_be_named() {
                    Ok(Self::Address(address))
                } else {
                    Err(PatternError::Floor { text: text.into(), class })
                }
            }
            Err(why) => Err(not_a_host(text, &why.to_string())),
        }
    }

    /// Widens an exact name to the name and everything below it.
    ///
    /// # Errors
    /// If the pattern is not an exact name, or is itself a public suffix.
    pub fn with_subdomains(self) -> Result<Self, PatternError> {
        self.widened(Width::BelowPublicSuffix)
    }

    /// Widens an exact name to the name and everything below it, up to the given width.
    pub(crate) fn widened(self, width: Width) -> Result<Self, PatternError> {
        match self {
            Self::Exact(name) if matches!(width, Width::AsWritten | Width::Closing) => {
                Ok(Self::ApexAndBelow(name))
            }
            Self::Exact(name) => below(name.as_str(), name.as_str()).map(Self::ApexAndBelow),
            other => Err(PatternError::NotAHost {
                text: other.to_string(),
                why: "`subdomains = true` goes with an exact name".into(),
            }),
        }
    }

    /// Returns whether some host is covered by both patterns.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        let are_nested = |a: &Hostname, b: &Hostname| a == b || a.is_below(b) || b.is_below(a);
        match (self, other) {
            (Self::Exact(name), pattern) | (pattern, Self::Exact(name)) => {
                pattern.matches(&Host::Name(name.clone()))
            }
            (Self::Address(address), pattern) | (pattern, Self::Address(address)) => {
                pattern.matches(&Host::Address(*address))
            }
            (Self::OneLabel(a), Self::OneLabel(b)) => a == b,
            (Self::OneLabel(one), Self::ManyLabels(many)) | (Self::ManyLabels(many), Self::OneLabel(one)) => {
                one == many || one.is_below(many)
            }
            (Self::OneLabel(one), Self::ApexAndBelow(apex))
            | (Self::ApexAndBelow(apex), Self::OneLabel(one)) => {
                one == apex
                    || one.is_below(apex)
                    || Self::OneLabel(one.clone()).matches(&Host::Name(apex.clone()))
            }
            (Self::ManyLabels(a) | Self::ApexAndBelow(a), Self::ManyLabels(b) | Self::ApexAndBelow(b)) => {
                are_nested(a, b)
            }
        }
    }

    /// Orders patterns that cover the same host: the greater is the narrower.
    pub(crate) fn narrowness(&self) -> impl Ord + use<> {
        match self {
            Self::Exact(_) | Self::Address(_) => (usize::MAX, 0),
            Self::OneLabel(suffix) => (suffix.as_str().len(), 2),
            Self::ManyLabels(suffix) => (suffix.as_str().len(), 1),
            Self::ApexAndBelow(apex) => (apex.as_str().len(), 0),
        }
    }

    /// Returns whether the pattern covers a host.
    #[must_use]
    pub fn matches(&self, host: &Host) -> bool {
        match (self, host) {
            (Self::Address(a), Host::Address(b)) => a == b,
            (Self::Exact(pattern), Host::Name(name)) => pattern == name,
            (Self::OneLabel(suffix), Host::Name(name)) => {
                name.labels_above(suffix).is_some_and(|front| !front.is_empty() && !front.contains('.'))
            }
            (Self::ManyLabels(suffix), Host::Name(name)) => name.is_below(suffix),
            (Self::ApexAndBelow(apex), Host::Name(name)) => name == apex || name.is_below(apex),
            _ => false,
        }
    }
}

/// Returns whether a name can be reached by no rule and no open mode.
pub(crate) fn is_reserved(name: &Hostname) -> bool {
    is_this_machine(name) || OWN.contains(&name.as_str()) || is_metadata_service(name)
}

/// Returns whether a name is one of the machine that the sidecar runs on.
pub(crate) fn is_this_machine(name: &Hostname) -> bool {
    THIS_MACHINE.contains(&name.as_str()) || name.as_str().ends_with(".localhost")
}

/// Returns whether a name is that of a metadata service.
pub(crate) fn is_metadata_service(name: &Hostname) -> bool {
    METADATA.contains(&name.as_str())
}

/// Parses the suffix of a wildcard: a name that is not itself a public suffix (Mozilla's list, private section included).
fn below(text: &str, suffix: &str) -> Result<Hostname, PatternError> {
    let name = Hostname::parse(suffix).map_err(|why| not_a_host(text, &why.to_string()))?;
    if is_reserved(&name) {
        return Err(PatternError::Reserved { text: text.into() });
    }
    let public = psl::suffix_str(name.as_str()).unwrap_or(name.as_str());
    if public.len() >= name.as_str().len() {
        let example = format!("**.example.{name}");
        return Err(PatternError::TooWide { text: text.into(), example });
    }
    Ok(name)
}

fn not_a_host(text: &str, why: &str) -> PatternError {
    let hint = if text.contains("://") {
        "a whole address goes into `url`"
    } else if text.contains('*') {
        "a wildcard is a whole first label, `*.` for one label or `**.` for many"
    } else if let Some((_, rest)) = text.split_once('/') {
        match rest.chars().all(|c| c.is_ascii_digit()) {
            true => "an address range is not a host; name each host",
            false => "a path goes with a whole address, as in https://HOST/PATH/*",
        }
    } else if text.parse::<Ipv6Addr>().is_ok() {
        "an IPv6 address stands in brackets, as in `[2001:db8::1]` or `[2001:db8::1]:443`"
    } else if !text.is_ascii() {
        "write its ASCII form (`xn--…`)"
    } else {
        why
    };
    PatternError::NotAHost { text: text.escape_debug().to_string(), why: hint.into() }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(name) => name.fmt(f),
            Self::OneLabel(name) => write!(f, "*.{name}"),
            Self::ManyLabels(name) => write!(f, "**.{name}"),
            Self::ApexAndBelow(name) => write!(f, "{name} and all below"),
            Self::Address(address) => Host::Address(*address).fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(text: &str) -> Host {
        Host::parse(text).unwrap()
    }

    #[test]
    fn patterns_match_whole_labels() {
        let one = HostPattern::parse("*.example.com").unwrap();
        assert!(one.matches(&host("a.example.com")));
        for other in ["example.com", "a.b.example.com", "aexample.com", "example.com.evil.org"] {
            assert!(!one.matches(&host(other)), "{other}");
        }
        let many = HostPattern::parse("**.example.com").unwrap();
        assert!(many.matches(&host("a.b.example.com")) && many.matches(&host("a.example.com")));
        assert!(!many.matches(&host("example.com")) && !many.matches(&host("badexample.com")));
        let apex = HostPattern::parse("example.com").unwrap().with_subdomains().unwrap();
        assert!(apex.matches(&host("example.com")) && apex.matches(&host("x.y.example.com"))); // S4.18
        assert!(!apex.matches(&host("notexample.com")));
    }

    #[test]
    fn whoever_allows_every_host_is_told_of_the_preset_for_that_and_nobody_else_is() {
        for text in ["*", "**"] {
            let why = |width| HostPattern::parse_within(text, width).unwrap_err().to_string();
            assert!(why(Width::BelowPublicSuffix).contains("`open-internet`"), "{text}");
            for other in [Width::OfCredential, Width::AsWritten, Width::Closing] {
                let why = why(other);
                assert!(why.contains("is too wide") && !why.contains("open-internet"), "{text}: {why}");
            }
        }
    }

    #[test]
    fn too_wide_and_reserved_patterns_are_refused() {
        for text in [
            "*",
            "**",
            "*.com",
            "**.co.uk",
            "*.github.io",
            "**.internal",
            "a.*.com",
            "*a.example.com",
            "*.*.x.com",
            "localhost",
            "metadata.google.internal",
            "localhost.localdomain",
            "host.lima.internal",
            "metadata.tencentyun.com",
            "169.254.169.254",
            "10.0.0.0/8",
            "https://a.com",
            "",
            ".",
            "a b",
        ] {
            assert!(HostPattern::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_public_suffix_is_not_widened_to_what_is_below_it() {
        for text in ["com", "co.uk", "github.io", "internal"] {
            assert!(HostPattern::parse(text).and_then(HostPattern::with_subdomains).is_err(), "{text}");
        }
        assert!(HostPattern::parse("a.co.uk").and_then(HostPattern::with_subdomains).is_ok());
        assert!(HostPattern::parse("*.a.co.uk").and_then(HostPattern::with_subdomains).is_err());
    }

    #[test]
    fn patterns_overlap_where_a_host_is_covered_by_both() {
        let apex = |text: &str| HostPattern::parse(text).unwrap().with_subdomains().unwrap();
        let read = |text: &str| HostPattern::parse(text).unwrap();
        for (a, b, wanted) in [
            (read("x.a.com"), read("*.a.com"), true),
            (read("y.x.a.com"), read("*.a.com"), false),
            (read("192.0.43.8"), read("192.0.43.8"), true),
            (read("192.0.43.8"), read("192.0.43.9"), false),
            (read("192.0.43.8"), read("**.a.com"), false),
            (read("*.a.com"), read("*.a.com"), true),
            (read("*.a.com"), read("*.x.a.com"), false),
            (read("*.a.com"), read("**.a.com"), true),
            (read("*.x.a.com"), read("**.a.com"), true),
            (read("*.a.com"), read("**.x.a.com"), false),
            (read("*.a.com"), apex("a.com"), true),
            (read("*.x.a.com"), apex("a.com"), true),
            (read("*.a.com"), apex("x.a.com"), true),
            (read("*.a.com"), apex("y.x.a.com"), false),
            (read("*.a.com"), apex("b.com"), false),
            (read("**.a.com"), read("**.a.com"), true),
            (read("**.a.com"), read("**.x.a.com"), true),
            (read("**.a.com"), apex("x.a.com"), true),
            (read("**.a.com"), apex("b.com"), false),
            (apex("a.com"), apex("xa.com"), false),
        ] {
            assert_eq!(a.overlaps(&b), wanted, "{a}, {b}");
            assert_eq!(b.overlaps(&a), wanted, "{b}, {a}");
        }
    }

    #[test]
    fn an_address_without_its_brackets_is_told_of_them() {
        let why = HostPattern::parse("2606:2800:220:1::1").unwrap_err().to_string();
        assert!(why.contains("in brackets") && !why.contains("label"), "{why}");
        assert!(HostPattern::parse("[2606:2800:220:1::1]").is_ok());
    }

    proptest::proptest! {
        #[test]
        fn a_wildcard_covers_only_names_below_it(front in "[a-z0-9]{1,8}(\\.[a-z0-9]{1,8}){0,3}", glue in "[a-z.]?") {
            let many = HostPattern::parse("**.example.com").unwrap();
            if let Ok(name) = Host::parse(&format!("{front}{glue}example.com")) {
                proptest::prop_assert_eq!(many.matches(&name), glue == ".");
            }
        }
    }
}
