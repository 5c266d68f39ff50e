//! Compiled egress rules. A rule that could mean nothing, or more than it says, does not compile.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::address::AddressClass;
use crate::companion::Beside;
use crate::config::{AllowConfig, DenyConfig, EgressDefault};
use crate::error::ConfigError;
use crate::hostname::Host;
use crate::pattern::{HostPattern, Width};
use crate::provider::Provider;
use crate::proxy::Proxies;
use crate::reach::{Fields, Reach};
use crate::target::{Authority, Port, Scheme};

/// The name of a rule for people: `egress.allow[0] in lockgate.toml`, `preset github`, `--allow example.com`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleName(Arc<str>);

impl RuleName {
    pub(crate) fn new(text: impl Into<Arc<str>>) -> Self {
        Self(text.into())
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RuleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// All egress rules of a run, compiled once.
#[derive(Clone, Debug)]
pub struct Policy {
    pub(crate) allow: Vec<AllowRule>,
    pub(crate) deny: Vec<DenyRule>,
    pub(crate) providers: Vec<Arc<Provider>>,
    pub(crate) default: EgressDefault,
    /// A managed policy: what it does not allow, nothing else can.
    pub(crate) ceiling: Option<Box<Policy>>,
    pub(crate) denied_status: u16,
    pub(crate) scrub: Scrub,
    pub(crate) proxies: Proxies,
    /// The companions that are within reach.
    pub(crate) companions: Vec<Beside>,
}

/// What happens to an answer that cannot be searched for the credential that was part of its request.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Scrub {
    /// It is refused.
    #[default]
    Strict,
    /// It goes on, and the record says so.
    BestEffort,
}

impl Default for Policy {
    /// Nothing is allowed (E01).
    fn default() -> Self {
        Self {
            allow: Vec::new(),
            deny: Vec::new(),
            providers: Vec::new(),
            default: EgressDefault::Deny,
            ceiling: None,
            denied_status: 403,
            scrub: Scrub::Strict,
            proxies: Proxies::default(),
            companions: Vec::new(),
        }
    }
}

impl Policy {
    /// The HTTP status of a denial on the explicit plane.
    #[must_use]
    pub fn denied_status(&self) -> u16 {
        self.denied_status
    }

    /// What happens to an answer that cannot be searched for a credential.
    #[must_use]
    pub fn scrub(&self) -> Scrub {
        self.scrub
    }

    /// Whether hosts that no rule names are allowed.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.default == EgressDefault::OpenInternet
    }

    /// The providers of the run.
    pub fn providers(&self) -> impl Iterator<Item = &Arc<Provider>> {
        self.providers.iter()
    }

    /// The provider whose credential is good somewhere at this host and port.
    #[must_use]
    pub fn provider_at(&self, host: &Host, port: Port) -> Option<&Arc<Provider>> {
        self.providers.iter().find(|provider| provider.is_at(host, port))
    }

    /// Whether some TLS connection may have to be opened: a credential is bound, or a rule speaks of paths or methods.
    #[must_use]
    pub fn may_open(&self) -> bool {
        let partial = |reach: &Reach| reach.is_partial() && reach.may_be_tls();
        self.providers.iter().flat_map(|p| &p.rules).any(|rule| rule.reach.may_be_tls())
            || self.allow.iter().any(|rule| partial(&rule.reach))
            || self.deny.iter().any(|rule| partial(&rule.reach))
            || self.ceiling.as_ref().is_some_and(|ceiling| ceiling.may_open())
    }

    /// Whether a deny rule speaks of some of a host's requests.
    #[must_use]
    pub fn denies_in_part(&self, host: &Host, port: Port) -> bool {
        self.deny.iter().any(|rule| rule.reach.is_partial() && rule.reach.is_at(host, port))
    }

    /// Each rule as a line a person can read: its effect, its name, what it covers.
    pub fn rules(&self) -> impl Iterator<Item = (&'static str, &RuleName, String)> {
        let deny = self.deny.iter().map(|rule| ("deny", &rule.name, rule.reach.to_string()));
        let bound = self.providers.iter().flat_map(|provider| &provider.rules);
        deny.chain(bound.map(|rule| ("bind", &rule.name, rule.reach.to_string())))
            .chain(self.allow.iter().map(|rule| ("allow", &rule.name, rule.reach.to_string())))
    }
}

/// One compiled allow rule.
#[derive(Clone, Debug)]
pub(crate) struct AllowRule {
    pub(crate) name: RuleName,
    pub(crate) reach: Reach,
    pub(crate) addresses: Option<Arc<[IpAddr]>>,
}

/// One compiled deny rule.
#[derive(Clone, Debug)]
pub(crate) struct DenyRule {
    pub(crate) name: RuleName,
    pub(crate) reach: Reach,
    pub(crate) reason: Option<String>,
}

impl AllowRule {
    pub(crate) fn compile(at: &At<'_>, config: &AllowConfig, name: RuleName) -> Result<Self, ConfigError> {
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
        let addresses =
            config.addresses.as_deref().map(|list| compile_addresses(at, list, &reach.host)).transpose()?;
        Ok(Self { name, reach, addresses })
    }
}

impl DenyRule {
    pub(crate) fn compile(at: &At<'_>, config: &DenyConfig, name: RuleName) -> Result<Self, ConfigError> {
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
        Ok(Self { name, reach, reason: config.reason.clone() })
    }
}

/// Where in a configuration a rule stands.
pub(crate) struct At<'a> {
    pub(crate) origin: &'a str,
    pub(crate) field: &'a str,
    pub(crate) width: Width,
}

impl At<'_> {
    pub(crate) fn error(&self, field: &str, problem: impl ToString) -> ConfigError {
        let path = if field.is_empty() { self.field.to_owned() } else { format!("{}.{field}", self.field) };
        ConfigError::new(self.origin, path, problem)
    }
}

fn compile_addresses(at: &At<'_>, list: &[String], host: &HostPattern) -> Result<Arc<[IpAddr]>, ConfigError> {
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
