//! Compiled egress rules. A rule that no request could match, or that is wider than it looks, does not compile.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use crate::address::AddressClass;
use crate::asked::Asked;
use crate::denial::{Denial, Guard};
use crate::error::ConfigError;
use crate::hint::Hint;
use crate::hostname::Host;
use crate::location::Location;
use crate::pattern::HostPattern;
use crate::provider_id::ProviderId;
use crate::reach::{Fields, Reach};
use crate::target::{Authority, Scheme};
use crate::written::{AllowConfig, DenyConfig};

/// The name of a rule in messages and records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuleName {
    /// One that names hosts: `egress.allow[0] in lockgate.toml`, `preset github`, `--allow example.com`.
    Named(Arc<str>),
    /// One of a provider that a layer declares: `provider mine`.
    Declared(Arc<str>),
    /// One of a provider that is built in: `provider github`.
    BuiltIn(Arc<str>),
    /// The default for hosts that no rule names.
    OpenInternet,
}

impl RuleName {
    pub(crate) fn new(text: impl Into<Arc<str>>) -> Self {
        Self::Named(text.into())
    }

    /// Returns the name of a provider's rules as text.
    pub(crate) fn of_provider(id: &ProviderId) -> String {
        format!("provider {id}")
    }

    /// Returns the name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Named(text) | Self::Declared(text) | Self::BuiltIn(text) => text,
            Self::OpenInternet => "egress.default = \"open-internet\"",
        }
    }
}

impl fmt::Display for RuleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A compiled allow rule.
#[derive(Clone, Debug)]
pub(crate) struct AllowRule {
    pub(crate) name: RuleName,
    pub(crate) reach: Reach,
    pub(crate) addresses: Option<Arc<[IpAddr]>>,
}

/// A compiled deny rule.
#[derive(Clone, Debug)]
pub(crate) struct DenyRule {
    pub(crate) name: RuleName,
    pub(crate) reach: Reach,
    pub(crate) reason: Option<String>,
    /// What takes it back, if it is of a list of rules.
    pub(crate) remedy: Option<Hint>,
}

impl AllowRule {
    pub(crate) fn compile(
        at: &Location<'_>,
        config: &AllowConfig,
        name: RuleName,
    ) -> Result<Self, ConfigError> {
        let web = [Scheme::Http.default_port(), Scheme::Https.default_port()];
        let mut reach = Reach::compile(
            at,
            Fields {
                url: config.url.as_deref(),
                host: config.host.as_deref(),
                ports: config.ports.as_deref(),
                default_ports: Some(&web),
                subdomains: config.subdomains,
                methods: config.methods.as_deref(),
            },
        )?;
        if config.encoded_slash && !reach.allow_encoded_slash() {
            return Err(
                at.error("encoded_slash", "it goes with `url`; a host rule does not look at the path")
            );
        }
        if let Err(why) = reach.refuse_unaskable() {
            return Err(at.error("url", format!("no request can fit it: {why}")));
        }
        let addresses =
            config.addresses.as_deref().map(|list| compile_addresses(at, list, &reach.host)).transpose()?;
        Ok(Self { name, reach, addresses })
    }
}

impl DenyRule {
    pub(crate) fn compile(
        at: &Location<'_>,
        config: &DenyConfig,
        name: RuleName,
    ) -> Result<Self, ConfigError> {
        let reach = Reach::compile(
            at,
            Fields {
                url: config.url.as_deref(),
                host: config.host.as_deref(),
                ports: config.ports.as_deref(),
                default_ports: None,
                subdomains: config.subdomains,
                methods: config.methods.as_deref(),
            },
        )?;
        if config.reason.as_ref().is_some_and(|reason| reason.contains(char::is_control)) {
            return Err(at.error("reason", "it is one line, without control characters"));
        }
        Ok(Self { name, reach, reason: config.reason.clone(), remedy: None })
    }

    /// Returns the denial of a question that it catches.
    pub(crate) fn deny(&self, asked: &Asked) -> Denial {
        if let Some(doubt) = self.reach.doubt(asked) {
            return self.denial(format!("{doubt}; {} is denied", self.reach)).with_hint(
                "ask for it in a spelling that every server reads alike: UTF-8, no `//` at its beginning, no `.` or `..`, no backslash, \
                 no control character, encoded once, no encoded `/`, `?` or `#` behind a `;`",
            );
        }
        let what = || match self.reach.is_partial() {
            true => format!("{} is denied", self.reach),
            false => format!("{} is denied", asked.host),
        };
        self.denial(self.reason.clone().unwrap_or_else(what))
    }

    /// Returns the denial of what it catches.
    pub(crate) fn denial(&self, reason: String) -> Denial {
        let denial = Denial::new(Guard::DenyRule, reason).with_rule(self.name.as_str());
        Denial { hint: self.remedy.clone(), ..denial }
    }
}

fn compile_addresses(
    at: &Location<'_>,
    list: &[String],
    host: &HostPattern,
) -> Result<Arc<[IpAddr]>, ConfigError> {
    let HostPattern::Exact(_) = host else {
        return Err(at.error("addresses", "they go with one exact host name"));
    };
    if list.is_empty() {
        return Err(at.error("addresses", "the list is empty; leave the field out to resolve the name"));
    }
    let parse = |text: &String| {
        let host = Authority::parse(text).ok().filter(|a| a.port.is_none()).map(|a| a.host);
        let address = match (host, text.parse::<IpAddr>()) {
            (Some(Host::Address(address)), _) | (_, Ok(address)) => address,
            _ => return Err(at.error("addresses", format!("`{text}` is not an IP address"))),
        };
        let class = AddressClass::of(address);
        if class.may_be_named() {
            Ok(address)
        } else {
            Err(at.error("addresses", format!("`{text}` is {class}; no rule can open such an address")))
        }
    };
    list.iter().map(parse).collect()
}
