//! The policy decision: a pure function from a request or connection to a [`Grant`] or a [`Denial`]. Only this module makes
//! a [`Grant`].

mod grant;

use std::sync::Arc;

pub use self::grant::Grant;
use crate::advice::{
    Near, no_host, not_allowed, not_authorized, not_authorized_encoded, remember_nearest, reserved,
};
use crate::asked::Asked;
use crate::carriage::Carriage;
use crate::denial::{Denial, Guard, MANAGED};
use crate::denied_addresses::DeniedAddresses;
use crate::hint::Hint;
use crate::hostname::Host;
use crate::pattern::is_reserved;
use crate::preset::is_provider;
use crate::provider::Provider;
use crate::provider_id::ProviderId;
use crate::reach::Fit;
use crate::rule::{AllowRule, RuleName};
use crate::rules::Policy;

impl Policy {
    /// Decides one request or connection.
    ///
    /// # Errors
    /// A denial with the guard that refused, and with what would allow the request.
    pub fn decide(&self, asked: &Asked) -> Result<Grant, Denial> {
        if let Host::Name(name) = &asked.host
            && is_reserved(name)
        {
            let reason = format!("{name} is this machine, the sidecar or a metadata service");
            return Err(self.advised(reserved(name, reason, asked.port), asked));
        }
        if let Some(rule) = self.deny.iter().find(|rule| rule.reach.catches(asked)) {
            return Err(self.advised(rule.deny(asked), asked));
        }
        if let Host::Address(address) = asked.host
            && self.stand_ins.has(address)
        {
            return Err(no_host(address));
        }
        if asked.provider.is_none()
            && let Host::Name(name) = &asked.host
            && let Some(companion) = self.companion(name)
        {
            let carriage = companion.decide(asked)?;
            return Ok(Grant { companion: true, ..self.grant_by(asked, companion.rule(), carriage) });
        }
        let mut grant = self.decide_allowed(asked).map_err(|denial| self.advised(denial, asked))?;
        let unseen = matches!(grant.carriage, Carriage::Any | Carriage::Tls);
        if unseen && self.denies_in_part(&asked.host, asked.port) {
            grant.carriage = Carriage::Terminated;
        }
        grant.denied_addresses = DeniedAddresses::of(asked, &self.deny);
        match &self.ceiling {
            Some(ceiling) => hold_to_ceiling(grant, ceiling, asked),
            None => Ok(grant),
        }
    }

    /// Returns the question without its provider if this policy does not declare that one: then it is about the host alone.
    fn without_unknown_provider(&self, asked: &Asked) -> Asked {
        let mut known = asked.clone();
        known.provider = known.provider.filter(|id| self.providers.iter().any(|p| p.id() == id));
        known
    }

    /// Completes a denial, and replaces its hint if the managed policy would still refuse after the hint was followed.
    pub(crate) fn advised(&self, denial: Denial, asked: &Asked) -> Denial {
        let allows = denial.hint.as_ref().is_some_and(Hint::allows);
        match &self.ceiling {
            Some(ceiling) if allows && ceiling.decide(&ceiling.without_unknown_provider(asked)).is_err() => {
                denial.with_hint(MANAGED)
            }
            _ => self.in_its_file(denial),
        }
    }

    /// Points a hint at the file that holds these rules.
    pub(crate) fn in_its_file(&self, mut denial: Denial) -> Denial {
        if let Some(Hint::Rule(rule)) = &mut denial.hint {
            rule.file = self.file.as_deref().map(str::to_owned);
        }
        denial
    }

    fn decide_allowed(&self, asked: &Asked) -> Result<Grant, Denial> {
        if let Some(named) = &asked.provider {
            return self.decide_for(named, asked);
        }
        let mut nearest: Option<Denial> = None;
        // A bound credential comes first: a wider rule for the same host must not lead around it (C22).
        if let Some((provider, rule)) = self.narrowest_for(asked) {
            return Ok(self.grant(asked, rule, Carriage::Request, Some(provider)));
        }
        let placing = self.placing(&asked.host, asked.port);
        for provider in &self.providers {
            for rule in &provider.rules {
                match rule.reach.fit(asked) {
                    Fit::Full(_) => return Ok(self.grant(asked, rule, Carriage::Terminated, None)),
                    Fit::Short(guard, reason) => {
                        let near = Near { rule, placing };
                        remember_nearest(&mut nearest, guard, reason, near, asked);
                    }
                    Fit::None => {}
                }
            }
        }
        // A wider rule does not know where the name leads, and may not lead to a private address.
        let is_placed = placing.is_some();
        let mut terminated = None;
        for rule in self.allow.iter().filter(|rule| !is_placed || rule.addresses.is_some()) {
            match rule.reach.fit(asked) {
                // A later rule may let the connection pass unterminated.
                Fit::Full(Carriage::Terminated) => terminated = terminated.or(Some(rule)),
                Fit::Full(carriage) => return Ok(self.grant(asked, rule, carriage, None)),
                Fit::Short(guard, reason) => {
                    remember_nearest(&mut nearest, guard, reason, Near { rule, placing }, asked);
                }
                Fit::None => {}
            }
        }
        let unrequested = self.deny_unrequested_search(&asked.host);
        if self.is_open() && unrequested.is_none() && !is_placed {
            return Ok(self.grant_by(asked, RuleName::OpenInternet, Carriage::all_of(&asked.view)));
        }
        match terminated {
            Some(rule) => Ok(self.grant(asked, rule, Carriage::Terminated, None)),
            None => Err(nearest.or(unrequested).unwrap_or_else(|| not_allowed(asked))),
        }
    }

    /// Returns this policy's own declaration of the provider that a grant is for.
    fn provider_like(&self, grant: &Grant) -> Option<&Arc<Provider>> {
        let id = grant.provider.as_ref()?.id();
        self.providers.iter().find(|provider| provider.id() == id)
    }

    /// Decides a request that names its provider, by that provider's URIs alone. S0.45, S0.46
    fn decide_for(&self, named: &ProviderId, asked: &Asked) -> Result<Grant, Denial> {
        let Some(provider) = self.providers.iter().find(|provider| provider.id() == named) else {
            let declared: Vec<&str> = self.providers.iter().map(|p| p.id().as_str()).collect();
            let only =
                if declared.is_empty() { String::new() } else { format!(", only: {}", declared.join(", ")) };
            let reason = format!("this run declares no provider `{named}`{only}");
            let hint = match is_provider(named.as_str()) {
                true => self.declaring(named.as_str()),
                false => Hint::Edit("declare it as a [[provider]]".into()),
            };
            return Err(Denial::new(Guard::Provider, reason).with_hint(hint));
        };
        let mut nearest = None;
        for rule in &provider.rules {
            match rule.reach.fit(asked) {
                Fit::Full(Carriage::Request) => {
                    return Ok(self.grant(asked, rule, Carriage::Request, Some(provider)));
                }
                Fit::Short(guard @ Guard::Method, reason) => {
                    remember_nearest(&mut nearest, guard, reason, Near { rule, placing: None }, asked);
                }
                Fit::Full(_) | Fit::Short(..) | Fit::None => {}
            }
        }
        let lacks_encoded_slash = || provider.rules.iter().any(|rule| rule.reach.lacks_encoded_slash(asked));
        Err(nearest.unwrap_or_else(|| match lacks_encoded_slash() {
            true => not_authorized_encoded(named),
            false => not_authorized(named),
        }))
    }

    fn grant(
        &self,
        asked: &Asked,
        rule: &AllowRule,
        carriage: Carriage,
        provider: Option<&Arc<Provider>>,
    ) -> Grant {
        let addresses = match asked.host {
            Host::Address(address) => Some(Arc::from([address])),
            Host::Name(_) => rule.addresses.clone(),
        };
        let metered_as = provider.and_then(|provider| self.metered_as(provider, asked)).cloned();
        let provider = provider.cloned();
        Grant { addresses, provider, metered_as, ..self.grant_by(asked, rule.name.clone(), carriage) }
    }

    fn grant_by(&self, asked: &Asked, rule: RuleName, carriage: Carriage) -> Grant {
        let providers = || self.providers_bound_to(&asked.host);
        let bound = providers().next().is_some();
        // At each of its ports: TLS that passed as it is would be neither searched nor held to `pinned` (C22).
        let carriage = if bound { carriage.opened() } else { carriage };
        let refuses_own_credentials = providers().any(|provider| provider.pinned);
        let message_wise = providers().all(|provider| provider.grpc);
        let (host, port) = (asked.host.clone(), asked.port);
        Grant {
            host,
            port,
            rule,
            carriage,
            addresses: None,
            provider: None,
            metered_as: None,
            bound,
            refuses_own_credentials,
            message_wise,
            companion: false,
            denied_addresses: None,
            ceiling: None,
        }
    }
}

/// Narrows a grant to what the managed policy grants for the same request: not a private address, not another protocol,
/// not another URI of a provider that it declares. A name leads nowhere but where it resolves to, or the managed policy says.
fn hold_to_ceiling(mut grant: Grant, ceiling: &Policy, asked: &Asked) -> Result<Grant, Denial> {
    let known = ceiling.without_unknown_provider(asked);
    let most = ceiling.decide(&known).map_err(Denial::managed)?;
    grant.bound |= most.bound;
    grant.refuses_own_credentials |= most.refuses_own_credentials;
    grant.message_wise &= most.message_wise;
    grant.metered_as = grant.metered_as.or_else(|| most.metered_as.clone());
    if let (Some(own), Some(bound)) = (&grant.provider, ceiling.provider_like(&grant)) {
        let within = bound.rules.iter().any(|rule| matches!(rule.reach.fit(&known), Fit::Full(_)));
        if !within {
            let reason = format!("the managed policy authorizes `{}` elsewhere", own.id());
            return Err(Denial::new(Guard::NotAuthorized, reason).managed());
        }
    }
    match (&grant.addresses, &asked.host) {
        (Some(addresses), Host::Name(_)) if !ceiling.is_open() => {
            most.vet_listed(addresses).map_err(Denial::managed)?
        }
        (Some(addresses), _) => most.vet(addresses).map_err(Denial::managed)?,
        (None, _) => {}
    }
    grant.carriage = match (most.carriage, grant.carriage) {
        (Carriage::Terminated, Carriage::Any | Carriage::Tls) => Carriage::Terminated,
        (Carriage::Tls, Carriage::Any) => Carriage::Tls,
        (_, own) => own,
    };
    if grant.bound {
        grant.carriage = grant.carriage.opened();
    }
    grant.ceiling = Some(Box::new(most));
    Ok(grant)
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::asked::{Plane, View};
    use crate::hostname::Hostname;
    use crate::layer::Layers;
    use crate::origin::Origin;
    use crate::path::Path;
    use crate::target::{Method, Port, Scheme};

    #[test]
    fn only_rules_that_list_addresses_allow_anything_where_one_does() {
        let placed = "{ url = \"https://priv.corp.example:39443/x/*\", addresses = [\"127.0.0.1\"] }";
        let wide = "{ host = \"**.corp.example\", ports = [443, 39443] }";
        let allow = |rules: &[&str]| format!("egress.allow = [{}]", rules.join(", "));
        let open = "egress.default = \"open-internet\"\n";
        for layers_of in [
            vec![allow(&[placed, wide])],
            vec![allow(&[wide, placed])],
            vec![allow(&[wide]), allow(&[placed])],
            vec![allow(&[placed]), allow(&[wide])],
            vec![format!("{open}{}", allow(&[placed]))],
        ] {
            let mut layers = Layers::default();
            for text in &layers_of {
                layers.push(Origin::Named("file".into()), toml::from_str(text).unwrap());
            }
            let policy = layers.compile().unwrap().policy;
            let at = |host: &str, port: &str, view: View| {
                let (host, port) = (Host::parse(host).unwrap(), Port::parse(port).unwrap());
                let granted = policy.decide(&Asked::connection(Plane::Forward, host, port, view));
                let seen = granted.map(|it| (it.carriage(), it.addresses().map(<[IpAddr]>::to_vec)));
                seen.map_err(|denial| denial.guard)
            };
            let get = |path: &str| View::Request {
                scheme: Scheme::Https,
                method: Method::parse("GET").unwrap(),
                path: Path::new(path),
            };
            let here = || Some(vec!["127.0.0.1".parse().unwrap()]);
            let name = "priv.corp.example";
            for view in [View::Opaque, View::Tls] {
                assert_eq!(at(name, "39443", view), Ok((Carriage::Terminated, here())), "{layers_of:?}");
            }
            assert_eq!(at(name, "39443", get("/x/1")), Ok((Carriage::Request, here())), "{layers_of:?}");
            assert_eq!(at(name, "39443", get("/y")), Err(Guard::Path), "{layers_of:?}");
            // At its other ports, and for other names, the wider one decides as ever.
            assert_eq!(at(name, "443", View::Opaque), Ok((Carriage::Any, None)), "{layers_of:?}");
            assert_eq!(
                at("b.corp.example", "39443", View::Opaque),
                Ok((Carriage::Any, None)),
                "{layers_of:?}"
            );
        }
    }

    // R7
    #[test]
    fn a_connection_passes_unopened_only_where_a_rule_covers_every_request_in_it() {
        let at = |rule: &str, view: View| {
            let mut layers = Layers::default();
            let text = format!("egress.allow = [{rule}]");
            layers.push(Origin::Named("file".into()), toml::from_str(&text).unwrap());
            let (host, port) = (Host::parse("a.example.com").unwrap(), Port::parse("443").unwrap());
            let asked = Asked::connection(Plane::Forward, host, port, view);
            let granted = layers.compile().unwrap().policy.decide(&asked);
            granted.map(|grant| grant.carriage()).map_err(|denial| denial.guard)
        };
        let (opened, tls, any) = (Ok(Carriage::Terminated), Ok(Carriage::Tls), Ok(Carriage::Any));
        for (rule, of_tls, of_any) in [
            ("{ host = \"a.example.com\" }", tls, any),
            ("{ host = \"a.example.com\", methods = [\"GET\"] }", opened, opened),
            ("{ url = \"https://a.example.com/*\" }", tls, tls),
            ("{ url = \"https://a.example.com/*\", methods = [\"GET\"] }", opened, opened),
            ("{ url = \"https://a.example.com/x/*\" }", opened, opened),
            ("{ url = \"https://a.example.com/x\" }", opened, opened),
            ("{ url = \"http://a.example.com:443/*\" }", Err(Guard::SchemeNotAllowed), opened),
        ] {
            assert_eq!((at(rule, View::Tls), at(rule, View::Opaque)), (of_tls, of_any), "{rule}");
        }
    }

    // R7, R8
    #[test]
    fn a_connection_is_opened_where_a_deny_rule_or_the_managed_policy_looks_into_it() {
        let carriage = |managed: &str, own: &str, view: View| {
            let mut layers = Layers::default();
            layers.push(Origin::Managed("/etc/policy".into()), toml::from_str(managed).unwrap());
            layers.push(Origin::Named("file".into()), toml::from_str(own).unwrap());
            let host = Host::parse("a.example.com").unwrap();
            let asked = Asked::connection(Plane::Forward, host, Scheme::Https.default_port(), view);
            layers.compile().unwrap().policy.decide(&asked).unwrap().carriage()
        };
        let host = "egress.allow = [{ host = \"a.example.com\" }]\n";
        let url = "egress.allow = [{ url = \"https://a.example.com/*\" }]\n";
        let part = "egress.allow = [{ url = \"https://a.example.com/x/*\" }]\n";
        let deny = format!("{host}egress.deny = [{{ url = \"https://a.example.com/x/*\" }}]\n");
        let elsewhere = format!("{host}egress.deny = [{{ url = \"https://a.example.com:8443/x/*\" }}]\n");
        let bound =
            format!("{host}[[provider]]\nid = \"one\"\nauthorized_uris = [\"https://a.example.com/*\"]");
        for (managed, own, of_tls, of_any) in [
            ("", host, Carriage::Tls, Carriage::Any),
            ("", &deny, Carriage::Terminated, Carriage::Terminated),
            ("", &elsewhere, Carriage::Tls, Carriage::Any),
            (host, host, Carriage::Tls, Carriage::Any),
            (url, host, Carriage::Tls, Carriage::Tls),
            (part, host, Carriage::Terminated, Carriage::Terminated),
            (&deny, host, Carriage::Terminated, Carriage::Terminated),
            (&bound, url, Carriage::Terminated, Carriage::Terminated),
        ] {
            let seen = (carriage(managed, own, View::Tls), carriage(managed, own, View::Opaque));
            assert_eq!(seen, (of_tls, of_any), "{managed}{own}");
        }
    }

    // R10, E14
    #[test]
    fn who_lists_the_addresses_of_a_host_and_who_binds_it_is_known_by_host_and_port() {
        let text = "egress.allow = [{ host = \"a.example.com\", addresses = [\"10.0.0.5\"] }]\n\
                    egress.deny = [{ url = \"https://a.example.com/x\" }, { host = \"b.example.com\" }]\n\
                    [[provider]]\nid = \"mine\"\nauthorized_uris = [\"https://c.example.com/*\"]";
        let of = |origin: Origin| {
            let mut layers = Layers::default();
            layers.push(origin, toml::from_str(text).unwrap());
            layers.compile().unwrap().policy
        };
        let (own, held) = (of(Origin::Flags), of(Origin::Managed("/etc/policy".into())));
        for (host, port, places, binds, denies_in_part) in [
            ("a.example.com", "443", true, false, true),
            ("a.example.com", "444", false, false, false),
            ("b.example.com", "443", false, false, false),
            ("c.example.com", "443", false, true, false),
            ("c.example.com", "444", false, false, false),
        ] {
            let (name, port) = (Host::parse(host).unwrap(), Port::parse(port).unwrap());
            assert_eq!(own.places(&name, port), places, "{host}:{port}");
            assert_eq!(own.binds(&name, port), binds, "{host}:{port}");
            assert_eq!(held.binds(&name, port), binds, "{host}:{port}");
            assert_eq!(own.denies_in_part(&name, port), denies_in_part, "{host}:{port}");
            assert_eq!(own.provider_at(&name, port).is_some(), binds, "{host}:{port}");
        }
    }

    #[test]
    fn a_name_that_is_denied_in_part_is_resolved() {
        let named = |deny: &str| {
            let mut layers = Layers::default();
            let text =
                format!("egress.allow = [{{ host = \"a.example.com\" }}]\negress.deny = [{{ {deny} }}]");
            layers.push(Origin::Named("file".into()), toml::from_str(&text).unwrap());
            layers.compile().unwrap().policy.decide_name(&Hostname::parse("a.example.com").unwrap()).is_ok()
        };
        assert!(!named("host = \"a.example.com\""));
        for part in [
            "host = \"a.example.com\", ports = [8443]",
            "host = \"a.example.com\", methods = [\"DELETE\"]",
            "url = \"https://a.example.com/x/*\"",
        ] {
            assert!(named(part), "{part}");
        }
    }

    #[test]
    fn a_name_leads_nowhere_but_where_the_managed_policy_lets_it() {
        let verdict = |managed: &str, own: &str, view: View| {
            let mut layers = Layers::default();
            layers.push(Origin::Managed("/etc/policy".into()), toml::from_str(managed).unwrap());
            layers.push(Origin::Named("file".into()), toml::from_str(own).unwrap());
            let host = Host::parse("api.example.com").unwrap();
            let asked = Asked::connection(Plane::Forward, host, Scheme::Https.default_port(), view);
            let granted = layers.compile().unwrap().policy.decide(&asked);
            granted.map(|grant| grant.addresses().map(<[IpAddr]>::to_vec)).map_err(|denial| denial.guard)
        };
        let request = || View::Request {
            scheme: Scheme::Https,
            method: Method::parse("GET").unwrap(),
            path: Path::new("/v1/x"),
        };
        let there = Ok(Some(vec!["93.184.215.14".parse().unwrap()]));
        let rule = |more: &str| format!("egress.allow = [{{ host = \"api.example.com\"{more} }}]");
        let provider = "[[provider]]\nid = \"mine\"\nauthorized_uris = [\"https://api.example.com/*\"]\n\
                        addresses = [\"93.184.215.14\"]";
        for (managed, wanted) in [
            (rule(""), Err(Guard::Managed)),
            (rule(", addresses = [\"10.0.0.5\"]"), Err(Guard::Managed)),
            (rule(", addresses = [\"10.0.0.5\", \"93.184.215.14\"]"), there.clone()),
            // What may be reached is every public address then.
            ("egress.default = \"open-internet\"".to_owned(), there.clone()),
        ] {
            assert_eq!(verdict(&managed, provider, request()), wanted, "{managed}");
        }
        let elsewhere = rule(", addresses = [\"93.184.215.14\"]");
        // And no other one.
        let private = rule(", addresses = [\"10.0.0.5\"]");
        assert_eq!(verdict("egress.default = \"open-internet\"", &private, View::Tls), Err(Guard::Managed));
        let part = "egress.allow = [{ url = \"https://api.example.com/v1/*\" }]";
        assert_eq!(verdict(part, &elsewhere, View::Tls), Err(Guard::Managed));
        assert_eq!(verdict("", &elsewhere, View::Tls), there);
        assert_eq!(verdict(part, &rule(""), View::Tls), Ok(None));
    }
}
