//! Which proxy a granted request goes through, if any. The policy chooses one for all traffic, except to hosts
//! whose addresses it lists itself, and to loopback.

use std::sync::Arc;

use crate::address::AddressClass;
use crate::decide::Grant;
use crate::hostname::Host;
use crate::pattern::HostPattern;
use crate::proxy::{Proxies, Proxy, ProxyChoice};
use crate::rule::AllowRule;
use crate::rules::Policy;

impl Policy {
    /// Returns the proxies of the run.
    #[must_use]
    pub fn proxies(&self) -> &Proxies {
        &self.proxies
    }

    /// Returns the proxy that a granted request goes through if it names none itself. S0.54
    #[must_use]
    pub fn proxy_for(&self, grant: &Grant) -> Option<&Arc<Proxy>> {
        if grant.is_placed() { None } else { self.proxies.on_the_way_to(grant.host()) }
    }

    /// Returns the proxy that a request may have to go through and that needs a credential, if there is one.
    #[must_use]
    pub fn proxy_with_credential(&self) -> Option<&Arc<Proxy>> {
        let proxy = self.proxies.chosen_with_credential()?;
        let bound = self.providers.iter().flat_map(|provider| &provider.rules);
        let goes_through = |rule: &AllowRule| {
            let host = match &rule.reach.host {
                HostPattern::Exact(_) if rule.addresses.is_some() => return false,
                HostPattern::Exact(name) => Host::Name(name.clone()),
                HostPattern::Address(address) if is_loopback(&Host::Address(*address)) => return false,
                HostPattern::Address(address) => Host::Address(*address),
                // Some host of it may be none of those that are reached without.
                HostPattern::OneLabel(_) | HostPattern::ManyLabels(_) | HostPattern::ApexAndBelow(_) => {
                    return true;
                }
            };
            self.proxies.on_the_way_to(&host).is_some()
        };
        let may_leave = self.is_open() || bound.chain(&self.allow).any(goes_through);
        may_leave.then_some(proxy)
    }

    /// Uses a proxy that the environment names, if no layer made a choice. S1.29
    pub fn fall_back_to(&mut self, proxy: Proxy, direct: Vec<HostPattern>) {
        if matches!(self.proxies.chosen, ProxyChoice::Unset) {
            self.proxies.direct.extend(direct);
            let proxy = Arc::new(proxy);
            self.proxies.declared.push(Arc::clone(&proxy));
            self.proxies.chosen = ProxyChoice::Through(proxy);
        }
    }
}

impl Grant {
    /// Whether the policy itself says where the host is: the rule lists its addresses, or it is this machine. A proxy would ask
    /// another resolver, or be asked for a machine that is not meant.
    #[must_use]
    pub fn is_placed(&self) -> bool {
        match self.host() {
            Host::Name(_) => self.addresses().is_some(),
            here => is_loopback(here),
        }
    }
}

fn is_loopback(host: &Host) -> bool {
    matches!(host, Host::Address(address) if AddressClass::of(*address) == AddressClass::Loopback)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::asked::{Asked, Plane};
    use crate::target::{Method, Target};
    use crate::{Layers, Origin};

    const PROXY: &str = "proxy = [{ id = \"corp\", url = \"http://proxy.example:3128\", credential = \"corp\" }]\n\
        egress.proxy = \"corp\"\negress.no_proxy = [\"near.example\", \"**.internal\"]\n";

    fn policy(rest: &str) -> Policy {
        let mut layers = Layers::default();
        layers.push(Origin::Named("p.toml".into()), toml::from_str(&format!("{PROXY}{rest}")).unwrap());
        layers.compile().unwrap().policy
    }

    #[test]
    fn what_goes_past_it_may_be_as_wide_as_a_top_level_domain() {
        let policy = policy("[[egress.allow]]\nhost = \"a.b.internal\"\n");
        assert!(policy.proxy_with_credential().is_none());
    }

    #[test]
    fn what_the_policy_places_itself_goes_past_the_proxy() {
        for (rest, url, goes_through) in [
            ("egress.allow = [{ host = \"far.example\" }]", "http://far.example/", true),
            ("egress.allow = [{ host = \"near.example\" }]", "http://near.example/", false),
            (
                "egress.allow = [{ host = \"db.example\", addresses = [\"10.0.0.5\"] }]",
                "http://db.example/",
                false,
            ),
            (
                "provider = [{ id = \"one\", authorized_uris = [\"https://llm.example/*\"], addresses = [\"127.0.0.1\"] }]",
                "https://llm.example/",
                false,
            ),
            ("egress.allow = [{ host = \"10.0.0.5\" }]", "http://10.0.0.5/", true),
            ("egress.allow = [{ host = \"127.0.0.1\" }]", "http://127.0.0.1/", false),
            ("egress.allow = [{ host = \"[::1]\" }]", "http://[::1]/", false),
        ] {
            let policy = policy(rest);
            let target = Target::parse(url).unwrap();
            let asked = Asked::request(Plane::Forward, Method::parse("GET").unwrap(), &target);
            let grant = policy.decide(&asked).unwrap();
            assert_eq!(policy.proxy_for(&grant).is_some(), goes_through, "{rest}");
            assert_eq!(policy.proxy_with_credential().is_some(), goes_through, "{rest}");
        }
    }
}
