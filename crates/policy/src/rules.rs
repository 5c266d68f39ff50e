//! All egress rules of a run.

use std::sync::Arc;

use crate::companion_ports::CompanionPorts;
use crate::denial::Denial;
use crate::hostname::{Host, Hostname};
use crate::pattern::HostPattern;
use crate::provider::Provider;
use crate::proxy::{Proxies, Proxy, Way};
use crate::reach::Reach;
use crate::rule::{AllowRule, DenyRule, RuleName};
use crate::target::Port;
use crate::unasked::Unasked;
use crate::written::{EgressDefault, Scrub};

/// All egress rules of a run, compiled once.
#[derive(Clone, Debug)]
pub struct Policy {
    pub(crate) allow: Vec<AllowRule>,
    pub(crate) deny: Arc<Vec<DenyRule>>,
    pub(crate) providers: Vec<Arc<Provider>>,
    pub(crate) default: EgressDefault,
    /// A managed policy: what it does not allow, nothing else can.
    pub(crate) ceiling: Option<Box<Policy>>,
    pub(crate) denied_status: u16,
    pub(crate) scrub: Scrub,
    pub(crate) proxies: Proxies,
    /// The companions that are within reach.
    pub(crate) companions: Vec<CompanionPorts>,
    /// Where the open internet ends, until it is asked for by name.
    pub(crate) unasked: Vec<Unasked>,
    /// The file that a line would have to go into, where that is none that is found by itself.
    pub(crate) file: Option<Arc<str>>,
}

impl Default for Policy {
    /// Nothing is allowed (E01).
    fn default() -> Self {
        Self {
            allow: Vec::new(),
            deny: Arc::default(),
            providers: Vec::new(),
            default: EgressDefault::Deny,
            ceiling: None,
            denied_status: 403,
            scrub: Scrub::Strict,
            proxies: Proxies::default(),
            companions: Vec::new(),
            unasked: Vec::new(),
            file: None,
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

    /// The web search at a host that is open, but for not having been asked for.
    pub(crate) fn unasked(&self, host: &Host) -> Option<Denial> {
        let search = self.unasked.iter().find(|search| search.host.matches(host))?;
        self.is_open().then(|| search.denial(host))
    }

    /// The provider whose credential is good somewhere at this host and port.
    #[must_use]
    pub fn provider_at(&self, host: &Host, port: Port) -> Option<&Arc<Provider>> {
        self.providers.iter().find(|provider| provider.is_at(host, port))
    }

    /// The companion of a name.
    pub(crate) fn companion(&self, name: &Hostname) -> Option<&CompanionPorts> {
        self.companions.iter().find(|companion| companion.name == *name)
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

    /// What becomes of all that no rule speaks of, as its effect and what it covers.
    #[must_use]
    pub fn rest(&self) -> (&'static str, &'static str) {
        if self.is_open() && self.unasked.is_empty() {
            ("allow", "everything else at public addresses")
        } else if self.is_open() {
            ("allow", "everything else at public addresses, but for web searches that were not asked for")
        } else {
            ("deny", "everything else")
        }
    }
}

impl Policy {
    /// The proxies of the run.
    #[must_use]
    pub fn proxies(&self) -> &Proxies {
        &self.proxies
    }

    /// Has what denials recommend go into a file, by its path.
    pub fn keep_in(&mut self, file: &str) {
        self.file = Some(file.into());
    }

    /// Takes a proxy that the environment names, where nothing else chose one. S1.29
    pub fn fall_back_to(&mut self, proxy: Proxy, direct: Vec<HostPattern>) {
        if matches!(self.proxies.chosen, Way::Unsaid) {
            self.proxies.direct.extend(direct);
            let proxy = Arc::new(proxy);
            self.proxies.declared.push(Arc::clone(&proxy));
            self.proxies.chosen = Way::Through(proxy);
        }
    }
}
