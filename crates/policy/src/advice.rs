//! Hints for denials: the exact command or edit that would allow the request, and nothing that opens more.

use std::fmt::Display;
use std::net::{IpAddr, Ipv4Addr};

use crate::address::AddressClass;
use crate::asked::{Asked, Plane, View};
use crate::denial::{Denial, Guard};
use crate::hint::{Hint, on_this_machine};
use crate::hostname::{Host, Hostname};
use crate::name_network::NameNetwork;
use crate::path_levels::EncodedSlash;
use crate::pattern::is_this_machine;
use crate::provider_id::ProviderId;
use crate::rule::{AllowRule, RuleName};
use crate::rules::Policy;
use crate::shell_quoting::shell_word;
use crate::target::Port;

/// A rule that is near to what is asked, and the rule beside it that says where the host is, if one does.
#[derive(Clone, Copy)]
pub(crate) struct Near<'a> {
    pub(crate) rule: &'a AllowRule,
    pub(crate) placing: Option<&'a AllowRule>,
}

impl<'a> Near<'a> {
    /// Returns the rule with the addresses that a further one needs too: without them it would lead nowhere.
    fn with_addresses(self) -> Option<&'a AllowRule> {
        Some(self.rule).filter(|rule| rule.addresses.is_some()).or(self.placing)
    }
}

impl Policy {
    /// Returns the hint to declare a provider that is built in: in the file that hints name, if they do.
    #[must_use]
    pub fn declaring(&self, provider: &str) -> Hint {
        match &self.file {
            Some(file) => Hint::Edit(format!("add \"{provider}\" to `providers` in {}", shell_word(file))),
            None => Hint::Command(format!("lockgate run --provider {provider}")),
        }
    }
}

/// Records a rule that matches the host but not the whole request, if it is nearer to a match than the recorded one.
pub(crate) fn remember_nearest(
    nearest: &mut Option<Denial>,
    guard: Guard,
    reason: String,
    near: Near<'_>,
    asked: &Asked,
) {
    // The nearer a rule is to a match, the less its hint opens.
    let is_nearer = nearest.as_ref().is_none_or(|other| distance(guard) < distance(other.guard));
    if is_nearer {
        let denial = Denial::new(guard, reason).with_rule(near.rule.name.as_str());
        *nearest = Some(denial.with_hint(short_hint(guard, near, asked)));
    }
}

/// Returns how many checks were left when a rule failed to match, in the order of [`fit`](crate::reach::Reach::fit).
fn distance(guard: Guard) -> u8 {
    match guard {
        Guard::Method => 0,
        Guard::Path => 1,
        Guard::SchemeNotAllowed => 2,
        _ => 3,
    }
}

pub(crate) fn not_allowed(asked: &Asked) -> Denial {
    Denial::new(Guard::HostNotAllowed, format!("no rule allows {}", asked.host)).with_hint(allow_hint(asked))
}

pub(crate) fn not_authorized(provider: &ProviderId) -> Denial {
    let reason = format!("URL not authorized for provider \"{provider}\"");
    Denial::new(Guard::NotAuthorized, reason)
        .with_rule(RuleName::of_provider(provider))
        .with_hint(Hint::Edit("name it in its `authorized_uris`".into()))
}

/// Makes the denial of a URI that the provider names, but for an encoded `/` in its path.
pub(crate) fn not_authorized_encoded(provider: &ProviderId) -> Denial {
    let denial = not_authorized(provider);
    let reason = format!("{}: a `/` appears in its path by decoding", denial.reason);
    let hint = Hint::Edit(format!("give the provider `{provider}` the line `encoded_slash = true`"));
    Denial { reason, ..denial }.with_hint(hint)
}

/// Returns the smallest change that makes a rule match whose host already matches.
fn short_hint(guard: Guard, near: Near<'_>, asked: &Asked) -> Hint {
    match (guard, &asked.view) {
        (Guard::Method, View::Request { method, .. }) => {
            Hint::Edit(format!("add \"{method}\" to the methods of {}", near.rule.name))
        }
        (Guard::Path | Guard::SchemeNotAllowed, View::Request { scheme, path, .. }) => {
            let port =
                if scheme.default_port() == asked.port { String::new() } else { format!(":{}", asked.port) };
            let url = format!("{scheme}://{}{port}{path}", asked.host);
            match path.check_cannot_climb(EncodedSlash::Allow).and_then(|()| path.check_no_host()) {
                Err(_) => "no rule can name this path: ask for it as it is meant, in plain letters".into(),
                Ok(()) if path.as_str().contains('*') => {
                    "`*` stands for more in a rule: none can name this path alone".into()
                }
                Ok(()) => rule_like(near, url),
            }
        }
        _ if near.with_addresses().is_some() && asked.plane != Plane::Dns => {
            rule_like(near, format!("{}:{}", asked.host, asked.port))
        }
        _ => allow_hint(asked),
    }
}

/// Returns the hint to add a rule for a target beside one for the same host.
fn rule_like(near: Near<'_>, target: String) -> Hint {
    let like = near.with_addresses();
    let Some((like, addresses)) = like.and_then(|like| Some((like, like.addresses.as_ref()?))) else {
        return Hint::rule(target);
    };
    let list: Vec<String> = addresses.iter().map(|address| format!("\"{address}\"")).collect();
    let list = list.join(", ");
    Hint::Edit(format!("write a rule for {target} with `addresses = [{list}]`, as {} has them", like.name))
}

/// Returns the exact command that would allow the request. An IP address has one only if a rule may name it.
fn allow_hint(asked: &Asked) -> Hint {
    match asked.host {
        Host::Address(address) if !AddressClass::of(address).may_be_named() => {
            Hint::Advice(format!("no rule can open {address}: it is {}", AddressClass::of(address)))
        }
        // A DNS question does not say which port the name is for.
        _ if asked.plane == Plane::Dns => Hint::rule_at_some_port(asked.host.to_string()),
        _ => rule_for(&asked.host, asked.port),
    }
}

/// Returns the hint to say where a private service is. Where a provider's rule applies, no other rule can say it.
pub(crate) fn private_service(rule: &RuleName) -> Hint {
    let place = match rule {
        RuleName::Named(_) | RuleName::OpenInternet => "a rule".into(),
        RuleName::Declared(name) => format!("the [[provider]] of {name}"),
        RuleName::BuiltIn(_) => "a [[provider]] of your own for this one host".into(),
    };
    Hint::Edit(format!("name the host of a private service with `addresses = [\"…\"]` in {place}"))
}

/// Makes the denial of a name that no rule can open.
pub(crate) fn reserved(name: &Hostname, reason: String, ports: impl Display) -> Denial {
    let denial = Denial::new(Guard::ReservedName, reason);
    match is_this_machine(name) {
        true => denial.with_hint(Hint::Edit(on_this_machine(Ipv4Addr::LOCALHOST.into(), ports))),
        false => denial,
    }
}

/// Makes the denial of an address that stands for a name, or did: a rule for it would lead nowhere.
pub(crate) fn no_host(address: IpAddr) -> Denial {
    let reason = format!("{address} is no host: it stands for a name in the sandbox, or did");
    Denial::new(Guard::Address, reason).with_hint("ask by the name")
}

/// Returns the hint where no rule can open an address. One that stands for a name was answered by a run's or a sidecar's own DNS, or by
/// that of a program on this machine which gives such addresses too.
pub(crate) fn not_to_be_opened(address: IpAddr) -> Hint {
    match NameNetwork::default().has(address) {
        true => "that address stands for a name. If a sidecar's DNS gave it, perhaps its own: give the sidecar a resolv.conf that names \
                 another server. If a VPN or proxy program did (fake-IP): have it give real addresses, or name its proxy port with \
                 --proxy, and the host in a rule"
            .into(),
        false => "no rule can open it".into(),
    }
}

pub(crate) fn rule_for(host: &Host, port: Port) -> Hint {
    Hint::rule(format!("{host}:{port}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::denial::MANAGED;
    use crate::layer::Layers;
    use crate::origin::Origin;
    use crate::target::{Method, Target};

    fn policy() -> Policy {
        let rules = "egress.allow = [{ url = \"https://api.example.com/*\", methods = [\"GET\"] }]";
        let mut layers = Layers::default();
        layers.push(Origin::Named("file".into()), toml::from_str(rules).unwrap());
        layers.compile().unwrap().policy
    }

    #[test]
    fn a_name_of_this_machine_is_told_the_rule_that_leads_there() {
        let port = Port::parse("5432").unwrap();
        let compile = |origin: Origin, text: &str| {
            let mut layers = Layers::default();
            layers.push(origin, toml::from_str(text).unwrap());
            layers.compile().map(|spec| spec.policy)
        };
        let asked = |name: &str| {
            let host = Host::Name(Hostname::parse(name).unwrap());
            Asked::connection(Plane::Forward, host, port, View::Opaque)
        };
        let managed = "egress = { default = \"open-internet\" }";
        let managed = compile(Origin::Managed("/etc/policy".into()), managed).unwrap();
        for (name, is_this_machine) in [
            ("localhost", true),
            ("db.localhost", true),
            ("host.docker.internal", true),
            ("sidecar", false),
            ("metadata.google.internal", false),
        ] {
            let hint = |policy: &Policy| policy.decide(&asked(name)).unwrap_err().hint;
            let of_rule = format!("egress.allow = [{{ host = \"{name}:5432\" }}]");
            let refused = compile(Origin::Flags, &of_rule).unwrap_err().hint;
            let of_dns = policy().decide_name(&Hostname::parse(name).unwrap()).unwrap_err().hint;
            let told = hint(&policy()).map(|hint| hint.to_string());
            assert_eq!(told, refused, "{name}");
            assert_eq!(told.is_some(), is_this_machine, "{name}");
            assert_eq!(of_dns.is_some(), is_this_machine, "{name}");
            let Some(told) = told else { continue };
            assert!(of_dns.unwrap().to_string().contains("ports = [PORT]"), "{name}");
            assert_eq!(hint(&managed), Some(MANAGED.into()), "{name}");
            let (_, rule) = told.split_once("[[egress.allow]]: ").unwrap();
            let (rule, name) = rule.split_once("; then ask for ").unwrap();
            let leading = compile(Origin::Flags, &format!("egress.allow = [{{ {rule} }}]")).unwrap();
            leading.decide(&asked(name)).unwrap().vet(&[Ipv4Addr::LOCALHOST.into()]).unwrap();
        }
    }

    #[test]
    fn a_provider_is_declared_in_the_file_that_hints_name_if_they_do() {
        let mut layers = Layers::default();
        layers.push(Origin::Flags, toml::from_str("egress.default = \"open-internet\"").unwrap());
        let mut policy = layers.compile().unwrap().policy;
        let hints = |policy: &Policy| {
            let name = Hostname::parse("api.tavily.com").unwrap();
            let host = Host::Name(name.clone());
            let connection = Asked::connection(Plane::Forward, host, Port::parse("443").unwrap(), View::Tls);
            let for_provider = Asked { provider: Some("tavily".parse().unwrap()), ..connection.clone() };
            let denials = [policy.decide(&connection), policy.decide(&for_provider)].map(Result::unwrap_err);
            let denials = denials.into_iter().chain([policy.decide_name(&name).unwrap_err()]);
            denials.map(|denial| denial.hint.unwrap().to_string()).collect::<Vec<_>>()
        };
        assert_eq!(hints(&policy), ["lockgate run --provider tavily"; 3]);
        policy.keep_in("/srv/my policy.toml");
        assert_eq!(hints(&policy), ["add \"tavily\" to `providers` in '/srv/my policy.toml'"; 3]);
    }

    #[test]
    fn an_edit_names_the_rule_and_its_file() {
        let target = Target::parse("https://api.example.com/x").unwrap();
        let asked = Asked::request(Plane::Forward, Method::parse("DELETE").unwrap(), &target);
        let hint = policy().decide(&asked).unwrap_err().hint.unwrap().to_string();
        assert_eq!(hint, "add \"DELETE\" to the methods of egress.allow[0] in file");
    }

    #[test]
    fn where_only_the_method_is_missing_that_is_told() {
        let get = "url = \"https://api.example.com/repos/*\", methods = [\"GET\"]";
        let other = "https://api.example.com/other/*";
        let provider = |id: &str, rest: &str| format!("[[provider]]\nid = \"{id}\"\n{rest}\n");
        let one = "authorized_uris = [\"https://api.example.com/repos/*\"]\nmethods = [\"GET\"]";
        let two = format!("authorized_uris = [\"{other}\"]");
        for (rules, named, rule) in [
            (
                format!("egress.allow = [{{ {get} }}, {{ url = \"{other}\" }}]"),
                None,
                "egress.allow[0] in file",
            ),
            (
                format!("egress.allow = [{{ url = \"{other}\" }}, {{ {get} }}]"),
                None,
                "egress.allow[1] in file",
            ),
            (provider("one", one) + &provider("two", &two), None, "provider one"),
            (provider("two", &two) + &provider("one", one), Some("one"), "provider one"),
        ] {
            let mut layers = Layers::default();
            layers.push(Origin::Named("file".into()), toml::from_str(&rules).unwrap());
            let policy = layers.compile().unwrap().policy;
            let target = Target::parse("https://api.example.com/repos/x").unwrap();
            let mut asked = Asked::request(Plane::Forward, Method::parse("POST").unwrap(), &target);
            asked.provider = named.map(|id| id.parse().unwrap());
            let denial = policy.decide(&asked).unwrap_err();
            assert_eq!(denial.guard, Guard::Method, "{rules}");
            assert_eq!(denial.rule.as_deref(), Some(rule), "{rules}");
            let hint = format!("add \"POST\" to the methods of {rule}");
            assert_eq!(denial.hint, Some(Hint::Edit(hint)), "{rules}");
        }
    }

    #[test]
    fn an_answer_of_a_sidecars_own_dns_is_told_as_that() {
        let hint = |address: &str| not_to_be_opened(address.parse().unwrap()).to_string();
        assert!(hint("198.18.0.1").contains("another server") && hint("198.19.255.1").contains("sidecar"));
        assert!(hint("198.18.5.5").contains("fake-IP") && hint("198.18.5.5").contains("--proxy"));
        for other in ["198.20.0.1", "169.254.169.254", "2002:808:808::1"] {
            assert_eq!(hint(other), "no rule can open it");
        }
    }

    #[test]
    fn where_a_private_service_is_can_be_said_as_it_is_told() {
        let private = ["10.0.0.5".parse().unwrap()];
        let vetted = |rules: &str| {
            let mut layers = Layers::default();
            layers.push(Origin::Named("file".into()), toml::from_str(rules).unwrap());
            let of_openai = rules.contains("openai");
            let url = if of_openai { "https://api.openai.com/v1/x" } else { "http://priv.example.com/" };
            let target = Target::parse(url).unwrap();
            let asked = Asked::request(Plane::Forward, Method::parse("GET").unwrap(), &target);
            layers.compile().unwrap().policy.decide(&asked).unwrap().vet(&private)
        };
        let addresses = "addresses = [\"10.0.0.5\"]";
        let rule = |more: &str| format!("[[egress.allow]]\nhost = \"priv.example.com\"\n{more}\n");
        let provider = |more: &str| {
            format!("[[provider]]\nid = \"p\"\nauthorized_uris = [\"http://priv.example.com/*\"]\n{more}\n")
        };
        let built_in = "providers = [\"openai\"]\n".to_owned();
        let own = "[[provider]]\nid = \"p\"\nauthorized_uris = [\"https://api.openai.com/v1/*\"]\n";
        for (before, place, after) in [
            (rule(""), "in a rule", rule(addresses)),
            (provider(""), "in the [[provider]] of provider p", provider(addresses)),
            (provider("") + &rule(addresses), "in the [[provider]] of provider p", provider(addresses)),
            (
                built_in.clone(),
                "in a [[provider]] of your own for this one host",
                format!("{built_in}{own}{addresses}\n"),
            ),
        ] {
            let hint = vetted(&before).unwrap_err().hint.unwrap().to_string();
            assert!(hint.ends_with(place), "{before}: {hint}");
            assert_eq!(vetted(&after), Ok(()), "{after}");
        }
    }

    #[test]
    fn where_only_an_encoded_slash_is_missing_that_is_told() {
        let uris = "[[provider]]\nid = \"one\"\nauthorized_uris = [\"https://api.example.com/v1/*\"]\n";
        let asked = |rules: &str, path: &str| {
            let mut layers = Layers::default();
            layers.push(Origin::Named("file".into()), toml::from_str(rules).unwrap());
            let target = Target::parse(&format!("https://api.example.com{path}")).unwrap();
            let mut asked = Asked::request(Plane::Gateway, Method::parse("GET").unwrap(), &target);
            asked.provider = Some("one".parse().unwrap());
            layers.compile().unwrap().policy.decide(&asked).map(drop)
        };
        let told = |path: &str| {
            let denial = asked(uris, path).unwrap_err();
            assert_eq!(denial.guard, Guard::NotAuthorized, "{path}");
            (denial.reason.contains("appears in its path by decoding"), denial.hint.unwrap().to_string())
        };
        let (is_told, hint) = told("/v1/group%2Fproject");
        assert!(is_told && hint.contains("`encoded_slash = true`"), "{hint}");
        let with_hint = format!("{uris}encoded_slash = true\n");
        assert_eq!(asked(&with_hint, "/v1/group%2Fproject"), Ok(()), "the hint helps");
        for path in ["/v2/group%2Fproject", "/v1/group%2F..", "/v2/x"] {
            assert_eq!(told(path), (false, "name it in its `authorized_uris`".into()), "{path}");
        }
    }

    #[test]
    fn a_rule_beside_one_with_addresses_needs_them_too() {
        let rules = "egress.allow = [{ url = \"https://priv.example.com/x/*\", addresses = [\"10.0.0.5\"] }]";
        let mut layers = Layers::default();
        layers.push(Origin::Named("file".into()), toml::from_str(rules).unwrap());
        let policy = layers.compile().unwrap().policy;
        for (target, named) in [
            ("https://priv.example.com/y", "https://priv.example.com/y"),
            ("https://priv.example.com:8443/x/1", "priv.example.com:8443"),
        ] {
            let asked = Target::parse(target).unwrap();
            let asked = Asked::request(Plane::Forward, Method::parse("GET").unwrap(), &asked);
            let hint = policy.decide(&asked).unwrap_err().hint.unwrap();
            let text = format!(
                "write a rule for {named} with `addresses = [\"10.0.0.5\"]`, as egress.allow[0] in file has them"
            );
            assert_eq!(hint, Hint::Edit(text));
        }
    }

    #[test]
    fn a_rule_beside_one_without_addresses_needs_those_of_the_rule_that_places() {
        let one = "[[provider]]\nid = \"one\"\nauthorized_uris = [\"http://example.com:443/v1/*\"]\naddresses = [\"10.0.0.5\"]\n";
        let two = "[[provider]]\nid = \"two\"\nauthorized_uris = [\"https://example.com/v1/x\"]\n";
        let decided = |rules: &str| {
            let mut layers = Layers::default();
            layers.push(Origin::Named("file".into()), toml::from_str(rules).unwrap());
            let asked = Target::parse("https://example.com/y").unwrap();
            let asked = Asked::request(Plane::Forward, Method::parse("GET").unwrap(), &asked);
            layers.compile().unwrap().policy.decide(&asked)
        };
        for rules in [format!("{one}{two}"), format!("{two}{one}")] {
            let denial = decided(&rules).unwrap_err();
            assert_eq!(denial.rule.as_deref(), Some("provider two"));
            let told = "write a rule for https://example.com/y with `addresses = [\"10.0.0.5\"]`, as provider one has them";
            assert_eq!(denial.hint, Some(Hint::Edit(told.into())), "{rules}");
            let rule = "[[egress.allow]]\nurl = \"https://example.com/y\"\n";
            assert!(decided(&format!("{rules}{rule}")).is_err(), "without them it would change nothing");
            assert!(decided(&format!("{rules}{rule}addresses = [\"10.0.0.5\"]\n")).is_ok(), "{rules}");
        }
    }

    #[test]
    fn a_name_without_a_port_is_told_of_the_port() {
        let name = crate::hostname::Hostname::parse("git.example.org").unwrap();
        let hint = policy().decide_name(&name).unwrap_err().hint.unwrap();
        assert_eq!(hint, Hint::rule_at_some_port("git.example.org"));
        assert_eq!(hint.to_string(), "lockgate policy allow git.example.org");
    }
}
