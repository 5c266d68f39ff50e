//! The built-in presets open each of their hosts and everything below it, and no name that only looks like one.
//! S4.18–S4.22, S4.42, S4.43, S4.61.
//!
//! The hosts are read from the data itself. A preset that is missing or empty is a failure.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test file: what panics here is a failed test")]

use std::collections::BTreeSet;

use policy::{Asked, Hostname, Layers, Method, Origin, Plane, Policy, RunConfig, Target};
use toml::{Table, Value};

const DATA: &str = include_str!("../../../profiles/presets.toml");
/// The presets that name hosts.
const GROUPS: [&str; 3] = ["github", "llm-providers", "package-registries"];
/// The web search providers. S4.42
const SEARCHES: [&str; 3] = ["tavily", "exa", "brave"];

fn data() -> Table {
    toml::from_str(DATA).unwrap()
}

/// Returns the hosts of a preset, each of which must cover everything below it.
fn hosts(preset: &str) -> Vec<String> {
    let all = data();
    let rules = all["preset"][preset]["allow"].as_array().unwrap();
    assert!(!rules.is_empty(), "{preset} is empty");
    rules.iter().map(|rule| rule["host"].as_str().unwrap().to_owned()).collect()
}

/// Returns the host of a provider's first URI.
fn host_of(provider: &str) -> String {
    let all = data();
    let Value::Array(addresses) = &all["provider"][provider]["authorized_uris"] else { panic!("{provider}") };
    let address = addresses[0].as_str().unwrap();
    Target::parse(address.trim_end_matches('*')).unwrap().host().to_string()
}

fn compile(text: &str) -> Policy {
    let mut layers = Layers::default();
    layers.push(Origin::Flags, toml::from_str::<RunConfig>(text).unwrap());
    layers.compile().unwrap().policy
}

fn of_presets(presets: &[&str]) -> Policy {
    compile(&format!("presets = {presets:?}"))
}

/// Returns whether a name is open, to a DNS question and to a request alike.
fn is_open(policy: &Policy, name: &str) -> bool {
    let by_name = policy.decide_name(&Hostname::parse(name).unwrap()).is_ok();
    let target = Target::parse(&format!("https://{name}/some/path")).unwrap();
    let asked = Asked::request(Plane::Forward, Method::parse("GET").unwrap(), &target);
    let by_request = policy.decide(&asked).is_ok();
    assert_eq!(by_name, by_request, "{name}: a question and a request are judged differently");
    by_name
}

#[test]
fn the_groups_are_those_of_the_requirements() {
    // S4.19, S4.20
    assert_eq!(hosts("github"), ["github.com", "githubusercontent.com"]);
    assert_eq!(hosts("llm-providers"), ["anthropic.com", "openai.com", "openrouter.ai"]);
    // S4.21: nine groups, each the apex of a domain that somebody registered.
    let registries: BTreeSet<String> = hosts("package-registries").into_iter().collect();
    assert_eq!(registries.len(), 9, "{registries:?}");
    for host in &registries {
        assert_eq!(psl::domain_str(host), Some(host.as_str()));
    }
}

#[test]
fn a_host_is_open_with_all_that_is_below_it() {
    // S4.18
    for preset in GROUPS {
        let policy = of_presets(&[preset]);
        for host in hosts(preset) {
            for below in ["", "a.", "www.", "a.b.", "xn--bcher-kva.", "a-b.c.d.e."] {
                let name = format!("{below}{host}");
                assert!(is_open(&policy, &name), "{preset}: {name} is closed");
            }
            let upper = host.to_uppercase();
            assert!(is_open(&policy, &upper), "{preset}: {upper} is closed");
        }
    }
}

#[test]
fn a_name_that_looks_like_one_is_not() {
    for preset in GROUPS {
        let policy = of_presets(&[preset]);
        for host in hosts(preset) {
            let (first, suffix) = host.split_once('.').unwrap();
            let others = [
                format!("x{host}"),
                format!("x-{host}"),
                format!("x{host}.{host}.example"),
                format!("{host}.evil.example"),
                format!("{host}.{suffix}"),
                format!("{host}x"),
                format!("{first}.example"),
                format!("{first}-{suffix}"),
                format!("{first}x.{suffix}"),
                format!("{}.evil.{suffix}", host.replace('.', "-")),
                suffix.to_owned(),
            ];
            for name in others {
                assert!(!is_open(&policy, &name), "{preset}: {name} is open");
            }
        }
        let own = hosts(preset);
        for other in GROUPS.iter().filter(|other| **other != preset).flat_map(|other| hosts(other)) {
            assert!(own.contains(&other) || !is_open(&policy, &other), "{preset} opens {other}");
        }
    }
}

#[test]
fn every_host_is_open_where_that_is_asked_for() {
    // S4.22: the open mode needs no list.
    let policy = of_presets(&["open-internet"]);
    for name in ["evil.example", "www.example.org"] {
        assert!(is_open(&policy, name), "{name}");
    }
    // S4.43: except web searches, which must be asked for by name.
    for search in SEARCHES {
        assert!(!is_open(&policy, &host_of(search)), "{search}");
    }
    assert!(!is_open(&of_presets(&[]), "www.example.org"), "the control: nothing is open without");
}

/// Returns the domains of the web searches, each with its provider.
fn domains() -> Vec<(String, String)> {
    let all = data();
    let rows = all["web_search"].as_array().unwrap().iter();
    let domains = rows.flat_map(|row| {
        let provider = row["provider"].as_str().unwrap();
        let domains = row["domains"].as_array().unwrap().iter();
        domains.map(move |domain| (provider.to_owned(), domain.as_str().unwrap().to_owned()))
    });
    domains.collect()
}

#[test]
fn a_search_is_closed_with_every_name_of_its_service() {
    // S4.43, S4.63: the service has more names than that at which its credential is good.
    let all = domains();
    for name in ["api.tavily.com", "mcp.tavily.com", "exa.ai", "mcp.exa.ai", "search.brave.com"] {
        let covers = |domain: &str| name == domain || name.ends_with(&format!(".{domain}"));
        assert!(all.iter().any(|(_, domain)| covers(domain)), "{name}");
    }
    let open = of_presets(&["open-internet"]);
    let named = "[[egress.allow]]\nhost = \"mcp.exa.ai\"\n";
    let forbidden = compile(&format!("presets = [\"open-internet\"]\nweb_search = false\n{named}"));
    for (provider, domain) in &all {
        assert!(SEARCHES.contains(&provider.as_str()), "{provider}");
        let host = host_of(provider);
        assert!(host == *domain || host.ends_with(&format!(".{domain}")), "{host} is outside {domain}");
        let asked = compile(&format!("presets = [\"open-internet\"]\nproviders = [{provider:?}]"));
        for below in ["", "www.", "mcp.", "a.b."] {
            let name = format!("{below}{domain}");
            assert!(!is_open(&open, &name) && !is_open(&forbidden, &name), "{name} is open");
            assert!(is_open(&asked, &name), "{name} is closed to the run that asks for {provider}");
        }
        assert!(is_open(&open, &format!("x{domain}")), "only looks like {domain}");
    }
    // A rule that names a host opens it, where nothing forbids it.
    let allowed = compile(&format!("presets = [\"open-internet\"]\n{named}"));
    assert!(is_open(&allowed, "mcp.exa.ai") && !is_open(&allowed, "api.exa.ai"));
}

#[test]
fn a_search_is_reached_by_its_own_provider_alone() {
    // S4.42, S4.43
    for preset in GROUPS {
        let policy = of_presets(&[preset]);
        for search in SEARCHES {
            assert!(!is_open(&policy, &host_of(search)), "{preset} opens {search}");
        }
    }
    for asked in SEARCHES {
        let policy = compile(&format!("presets = {GROUPS:?}\nproviders = [{asked:?}]"));
        for search in SEARCHES {
            assert_eq!(is_open(&policy, &host_of(search)), search == asked, "{search} beside {asked}");
        }
    }
}
