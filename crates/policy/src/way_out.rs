//! Which proxy a granted request goes through, if any. The policy chooses one for all traffic, except to hosts
//! whose addresses it lists itself, and to loopback.

use std::net::IpAddr;
use std::sync::Arc;

use crate::address::AddressClass;
use crate::advice::rule_for;
use crate::decide::Grant;
use crate::denial::Denial;
use crate::hostname::Host;
use crate::name_network::NameNetwork;
use crate::pattern::HostPattern;
use crate::proxy::{Proxies, Proxy, ProxyChoice};
use crate::rule::{AllowRule, RuleName};
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
        self.proxy_in_use().filter(|proxy| proxy.credential.is_some())
    }

    /// Returns the proxy that a request may have to go through, if there is one.
    #[must_use]
    pub fn proxy_in_use(&self) -> Option<&Arc<Proxy>> {
        let proxy = self.proxies.chosen()?;
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

    /// Returns the proxy that hosts are asked of which no rule names, if there is one. It resolves each name for itself.
    #[must_use]
    pub fn proxy_of_unnamed(&self) -> Option<&Arc<Proxy>> {
        let is_open = self.is_open() && self.ceiling.as_ref().is_none_or(|ceiling| ceiling.is_open());
        if is_open { self.proxies.chosen() } else { None }
    }

    /// Completes the denial of a granted name that has no address here and is not [asked of a proxy](Grant::needs_no_address).
    #[must_use]
    pub fn not_asked_of_proxy(&self, grant: &Grant, denial: Denial) -> Denial {
        let reason = format!("{}; what no rule names is not asked of the proxy then", denial.reason);
        let denial = Denial { reason, ..denial }.with_hint(rule_for(grant.host(), grant.port()));
        self.in_its_file(denial)
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
    /// Whether a proxy may be asked for a name that has no address here (S1.44): a rule names it. `open-internet` alone opens public
    /// addresses, and here nobody sees which one such a name has.
    #[must_use]
    pub fn needs_no_address(&self) -> bool {
        match self.rule() {
            RuleName::Named(_) | RuleName::Declared(_) | RuleName::BuiltIn(_) => true,
            RuleName::OpenInternet => false,
        }
    }

    /// Whether the addresses that a name has here tell nothing of where it leads, and a proxy may be asked for it: there are none, or a
    /// DNS has made them up, as that of a program does which takes all connections to them.
    #[must_use]
    pub fn is_told_nothing_by(&self, found: &[IpAddr]) -> bool {
        let is_made_up =
            |address: &IpAddr| NameNetwork::default().has(*address) && self.refuse_denied(*address).is_ok();
        self.needs_no_address() && found.iter().all(is_made_up)
    }

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

    // S1.44
    #[test]
    fn only_what_a_rule_names_may_have_no_address_here() {
        let with = |rest: &str| policy(&format!("egress.default = \"open-internet\"\n{rest}"));
        let named = "provider = [{ id = \"one\", authorized_uris = [\"https://api.far.example/*\"] }]";
        for (rest, needs_none) in [
            ("", false),
            ("egress.allow = [{ host = \"b.far.example\" }]", false),
            ("egress.allow = [{ host = \"api.far.example\" }]", true),
            ("egress.allow = [{ host = \"**.far.example\" }]", true),
            (named, true),
        ] {
            let policy = with(rest);
            let target = Target::parse("https://api.far.example/").unwrap();
            let asked = Asked::request(Plane::Forward, Method::parse("GET").unwrap(), &target);
            assert_eq!(policy.decide(&asked).unwrap().needs_no_address(), needs_none, "{rest}");
        }
        assert!(with("").proxy_of_unnamed().is_some());
        assert!(policy("egress.allow = [{ host = \"**.far.example\" }]").proxy_of_unnamed().is_none());
    }

    #[test]
    fn a_managed_policy_that_opens_less_leaves_nothing_unnamed_to_the_proxy() {
        for (managed, is_asked) in [
            ("egress.default = \"open-internet\"", true),
            ("timeout = \"5m\"", true),
            ("egress.default = \"deny\"", false),
            ("egress.allow = [{ host = \"**.far.example\" }]", false),
        ] {
            let mut layers = Layers::default();
            let open = format!("{PROXY}egress.default = \"open-internet\"\n");
            layers.push(Origin::Named("p.toml".into()), toml::from_str(&open).unwrap());
            layers.push(Origin::Managed("managed.toml".into()), toml::from_str(managed).unwrap());
            let policy = layers.compile().unwrap().policy;
            assert_eq!(policy.proxy_of_unnamed().is_some(), is_asked, "{managed}");
        }
    }
}
