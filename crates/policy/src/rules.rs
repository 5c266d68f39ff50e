//! The compiled policy: all egress rules of a run.

use std::net::IpAddr;
use std::sync::Arc;

use crate::companion_ports::CompanionPorts;
use crate::denial::Denial;
use crate::hostname::{Host, Hostname};
use crate::name_network::NameNetwork;
use crate::pattern::HostPattern;
use crate::provider::Provider;
use crate::proxy::Proxies;
use crate::reach::Reach;
use crate::rule::{AllowRule, DenyRule, RuleName};
use crate::target::Port;
use crate::unrequested_search::UnrequestedSearch;
use crate::written::{EgressDefault, Scrub};

/// All egress rules of a run, compiled once.
#[derive(Clone, Debug)]
pub struct Policy {
    pub(crate) allow: Vec<AllowRule>,
    pub(crate) deny: Arc<Vec<DenyRule>>,
    pub(crate) providers: Vec<Arc<Provider>>,
    pub(crate) default: EgressDefault,
    /// The managed policy. No other layer can allow more than it does.
    pub(crate) ceiling: Option<Box<Policy>>,
    pub(crate) denied_status: u16,
    pub(crate) scrub: Scrub,
    pub(crate) proxies: Proxies,
    /// The companions that may be reached.
    pub(crate) companions: Vec<CompanionPorts>,
    /// The web searches that the open mode leaves out, because the run did not ask for them.
    pub(crate) unrequested_searches: Vec<UnrequestedSearch>,
    /// The network out of which names have their addresses inside.
    pub(crate) stand_ins: NameNetwork,
    /// The policy file that hints must name, if it is not one that `lockgate` finds by itself.
    pub(crate) file: Option<Arc<str>>,
}

impl Default for Policy {
    /// A policy that allows nothing (E01).
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
            unrequested_searches: Vec::new(),
            stand_ins: NameNetwork::default(),
            file: None,
        }
    }
}

impl Policy {
    /// Returns the HTTP status of a denial on the explicit plane.
    #[must_use]
    pub fn denied_status(&self) -> u16 {
        self.denied_status
    }

    /// Returns what happens to a response that cannot be searched for a credential.
    #[must_use]
    pub fn scrub(&self) -> Scrub {
        self.scrub
    }

    /// Returns whether hosts that no rule names are allowed.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.default == EgressDefault::OpenInternet
    }

    /// Returns the providers of the run.
    pub fn providers(&self) -> impl Iterator<Item = &Arc<Provider>> {
        self.providers.iter()
    }

    /// Returns the denial for a host of a web search that the run did not ask for, if the policy is otherwise open.
    pub(crate) fn deny_unrequested_search(&self, host: &Host) -> Option<Denial> {
        let search = self.unrequested_searches.iter().find(|search| search.host.matches(host))?;
        self.is_open().then(|| search.denial(host).with_hint(self.declaring(&search.provider)))
    }

    /// Returns the provider that has an authorized URI at this host and port.
    #[must_use]
    pub fn provider_at(&self, host: &Host, port: Port) -> Option<&Arc<Provider>> {
        self.providers.iter().find(|provider| provider.is_at(host, port))
    }

    /// Returns the companion of a name.
    pub(crate) fn companion(&self, name: &Hostname) -> Option<&CompanionPorts> {
        self.companions.iter().find(|companion| companion.name == *name)
    }

    /// Returns whether the sidecar may have to terminate a TLS connection: a credential is bound to its host, or a rule names paths or
    /// methods.
    #[must_use]
    pub fn may_open(&self) -> bool {
        let partial = |reach: &Reach| reach.is_partial() && reach.may_be_tls();
        let is_bound = |reach: &Reach| self.bound().any(|rule| rule.reach.host.overlaps(&reach.host));
        let leads_to_bound = |reach: &Reach| reach.may_be_tls() && is_bound(reach);
        self.bound().any(|rule| rule.reach.may_be_tls() || self.is_open())
            || self.allow.iter().any(|rule| partial(&rule.reach) || leads_to_bound(&rule.reach))
            || self.deny.iter().any(|rule| partial(&rule.reach))
            || self.ceiling.as_ref().is_some_and(|ceiling| ceiling.may_open())
    }

    /// Returns whether a credential is bound to host and port, here or in the managed policy. Only requests of HTTP may go there.
    #[must_use]
    pub fn binds(&self, host: &Host, port: Port) -> bool {
        let mut bound = self.providers.iter().flat_map(|provider| &provider.rules);
        bound.any(|rule| rule.reach.is_at(host, port))
            || self.ceiling.as_ref().is_some_and(|ceiling| ceiling.binds(host, port))
    }

    /// Returns whether a rule lists the addresses of exactly this host at this port. Such rules alone allow anything there.
    #[must_use]
    pub fn places(&self, host: &Host, port: Port) -> bool {
        self.placing(host, port).is_some()
    }

    /// Returns the first rule that lists the addresses of exactly this host at this port.
    pub(crate) fn placing(&self, host: &Host, port: Port) -> Option<&AllowRule> {
        let mut rules = self.bound().chain(&self.allow);
        rules.find(|rule| rule.addresses.is_some() && rule.reach.is_at(host, port))
    }

    /// Returns whether a deny rule is for only some of a host's requests.
    #[must_use]
    pub fn denies_in_part(&self, host: &Host, port: Port) -> bool {
        self.deny.iter().any(|rule| rule.reach.is_partial() && rule.reach.is_at(host, port))
    }

    /// Returns whether the method of a request to host and port may decide about it: a rule there names methods, or a credential is bound.
    /// A name may lead to any address that a deny rule names.
    #[must_use]
    pub fn looks_at_methods(&self, host: &Host, port: Port) -> bool {
        let names = |reach: &Reach| reach.names_methods() && reach.is_at(host, port);
        self.binds(host, port)
            || self.allow.iter().any(|rule| names(&rule.reach))
            || self.deny.iter().any(|rule| {
                names(&rule.reach) || (rule.reach.names_methods() && rule.reach.may_be_behind(host, port))
            })
            || self.ceiling.as_ref().is_some_and(|ceiling| ceiling.looks_at_methods(host, port))
    }

    /// Returns each rule for people: its effect, its name and its scope. Those of a managed policy that allow come again at the end: what
    /// none of them covers stays closed.
    pub fn rules(&self) -> impl Iterator<Item = (&'static str, &RuleName, String)> {
        let deny = self.deny.iter().map(|rule| ("deny", &rule.name, rule.reach.to_string()));
        let bound = self.bound().map(|rule| ("bind", &rule.name, rule.reach.to_string()));
        let allow = self.allow.iter().map(|rule| ("allow", &rule.name, rule.reach.to_string()));
        let ceiling = self.ceiling.iter().filter(|ceiling| !ceiling.is_open());
        let most = ceiling.flat_map(|ceiling| ceiling.bound().chain(&ceiling.allow));
        deny.chain(bound).chain(allow).chain(most.map(|rule| ("at most", &rule.name, rule.reach.to_string())))
    }

    /// Returns the allow rules for a loopback address as such, with it and the list of their ports.
    pub fn of_loopback(&self) -> impl Iterator<Item = (&RuleName, IpAddr, String)> {
        self.allow.iter().filter_map(|rule| match rule.reach.host {
            HostPattern::Address(address) if address.is_loopback() => {
                Some((&rule.name, address, rule.reach.listed_ports()))
            }
            _ => None,
        })
    }

    /// Returns the rules of where the credentials of providers may go.
    fn bound(&self) -> impl Iterator<Item = &AllowRule> {
        self.providers.iter().flat_map(|provider| &provider.rules)
    }

    /// Returns the default for everything that no rule names: its effect and its scope.
    #[must_use]
    pub fn rest(&self) -> (&'static str, &'static str) {
        if self.ceiling.as_ref().is_some_and(|ceiling| !ceiling.is_open()) {
            return ("deny", "everything else, and what the managed policy does not allow");
        }
        if self.is_open() && self.unrequested_searches.is_empty() {
            ("allow", "everything else at public addresses")
        } else if self.is_open() {
            ("allow", "everything else at public addresses, but for web searches that were not asked for")
        } else {
            ("deny", "everything else")
        }
    }
}

impl Policy {
    /// Sets the policy file that hints name.
    pub fn keep_in(&mut self, file: &str) {
        self.file = Some(file.into());
    }
}

#[cfg(test)]
mod tests {
    use crate::layer::Layers;
    use crate::origin::Origin;

    #[test]
    fn a_managed_policy_is_listed_as_the_most_there_is() {
        let listed = |managed: &str, own: &str| {
            let mut layers = Layers::default();
            layers.push(Origin::Managed("/etc/policy".into()), toml::from_str(managed).unwrap());
            layers.push(Origin::Named("file".into()), toml::from_str(own).unwrap());
            let policy = layers.compile().unwrap().policy;
            let rules = policy.rules().map(|(effect, _, reach)| format!("{effect} {reach}"));
            let (effect, reach) = policy.rest();
            rules.chain([format!("{effect} {reach}")]).collect::<Vec<_>>()
        };
        let bounded = "egress.allow = [{ host = \"api.example.com:443\" }]";
        let open = "egress.default = \"open-internet\"";
        assert_eq!(
            listed(bounded, "egress.allow = [{ host = \"other.example.org:443\" }]"),
            [
                "allow api.example.com:443",
                "allow other.example.org:443",
                "at most api.example.com:443",
                "deny everything else, and what the managed policy does not allow"
            ]
        );
        assert_eq!(
            listed(bounded, open)[1..],
            [
                "at most api.example.com:443",
                "deny everything else, and what the managed policy does not allow"
            ],
            "its default does not reach beyond the managed policy"
        );
        assert!(listed(open, "").last().unwrap().starts_with("allow everything else"));
        assert_eq!(
            listed("egress.deny = [{ host = \"ads.example.com:443\" }]", open),
            [
                "deny ads.example.com:443",
                "allow everything else at public addresses, but for web searches that were not asked for"
            ]
        );
    }
}
