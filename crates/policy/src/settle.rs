//! Checks of companions, inbound ports, the budget, the network of names and the names of providers after all layers: against the
//! backend, and against each other.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::apply::compile_denials;
use crate::backend::Backend;
use crate::companion_ports::CompanionPorts;
use crate::error::ConfigError;
use crate::hostname::Host;
use crate::layer::{Layer, Layers};
use crate::name_network::{self, NameNetwork};
use crate::origin::Origin;
use crate::pattern::HostPattern;
use crate::preset;
use crate::reach::Reach;
use crate::rule::{AllowRule, DenyRule};
use crate::rules::Policy;
use crate::spec::RunSpec;
use crate::written::BudgetConfig;

/// The most companions of a run. Each costs the memory of a sandbox and a sidecar.
const MOST_COMPANIONS: usize = 16;
/// The most inbound ports of a run.
const MOST_PORTS: usize = 32;

/// Completes the companions' policies. A companion without rules of its own gets the command's, none gets its credentials, and each
/// may reach the companions before it.
pub(crate) fn companions(spec: &mut RunSpec) -> Result<(), ConfigError> {
    if spec.companions.is_empty() {
        return Ok(());
    }
    let refuse = |problem: String| ConfigError::new("the run", "companion", problem);
    if spec.backend == Backend::Process {
        return Err(refuse(format!("backend `{}` has no companions", spec.backend))
            .with_hint("use `linux`, `container` or `docker`"));
    }
    if spec.companions.len() > MOST_COMPANIONS {
        return Err(refuse(format!(
            "there are {}, and a run has {MOST_COMPANIONS} at most",
            spec.companions.len()
        )));
    }
    let held = denials_of_all(&spec.layers)?;
    let mut beside = Vec::new();
    for companion in &mut spec.companions {
        let rules = match companion.own_rules {
            true => completed(&companion.policy, &spec.policy, &held),
            false => spec.policy.clone(),
        };
        let (providers, proxies) = (Vec::new(), rules.proxies.without_credentials());
        companion.policy = Policy { providers, proxies, companions: beside.clone(), ..rules };
        beside.push(CompanionPorts { name: companion.name.clone(), ports: companion.ports.clone() });
    }
    spec.policy.companions = beside;
    [&spec.policy]
        .into_iter()
        .chain(spec.companions.iter().map(|it| &it.policy))
        .try_for_each(refuse_denied_in_part)
}

/// Refuses a deny rule for some of a companion's requests: nobody reads what is spoken with a companion, so it could not hold.
fn refuse_denied_in_part(policy: &Policy) -> Result<(), ConfigError> {
    for CompanionPorts { name, ports } in &policy.companions {
        let host = Host::Name(name.clone());
        let is_at = |reach: &Reach| ports.iter().any(|port| reach.is_at(&host, *port));
        if let Some(rule) = policy.deny.iter().find(|rule| rule.reach.is_partial() && is_at(&rule.reach)) {
            let problem = format!(
                "`{name}` is denied in part ({}) by {}, and what is spoken with a companion is not read",
                rule.reach, rule.name
            );
            return Err(ConfigError::new("the run", "companion", problem).with_hint(
                "deny its whole host, or a port of it, without a path and methods; or leave that rule out",
            ));
        }
    }
    Ok(())
}

/// Returns the deny rules that hold for every companion, whatever it allows itself: those of the machine and of the person, which
/// are about more than one run.
fn denials_of_all(layers: &Layers) -> Result<Vec<DenyRule>, ConfigError> {
    let denials = |layer: &Layer| compile_denials(&layer.origin, "", &layer.config);
    let all = layers.0.iter().filter(|layer| is_of_all(layer)).map(denials).collect::<Result<Vec<_>, _>>()?;
    Ok(all.into_iter().flatten().collect())
}

/// Whether a layer is for every run on this machine, or of this person.
fn is_of_all(layer: &Layer) -> bool {
    matches!(layer.origin, Origin::Managed(_) | Origin::User(_))
}

/// Completes a companion's own rules. `held` comes first, and what no companion can say of itself is the run's: the ceiling, the proxies,
/// the status of a denial.
fn completed(own: &Policy, run: &Policy, held: &[DenyRule]) -> Policy {
    Policy {
        allow: own.allow.clone(),
        deny: Arc::new(held.iter().chain(own.deny.iter()).cloned().collect()),
        default: own.default,
        unrequested_searches: own.unrequested_searches.clone(),
        ..run.clone()
    }
}

/// Tells of a budget that nothing is charged to, where somebody set it for this run: one of the machine's or the person's is for others as
/// well.
pub(crate) fn budget(spec: &mut RunSpec) {
    let is_of_run = |layer: &Layer| !is_of_all(layer) && layer.config.llm.budget != BudgetConfig::default();
    if spec.layers.0.iter().any(is_of_run) && spec.policy.providers().all(|it| it.llm().is_none()) {
        spec.notices.push(
            "`llm.budget` limits nothing in this run: requests, tokens and money are counted at providers with `llm`, and it has none"
                .into(),
        );
    }
}

/// Tells of each name of a provider that ships by which another is meant, because a layer before declares it under that name.
pub(crate) fn names(spec: &mut RunSpec) {
    let mut declared: BTreeMap<&str, &Origin> = BTreeMap::new();
    let mut told: BTreeMap<&str, String> = BTreeMap::new();
    for Layer { origin, config } in &spec.layers.0 {
        for name in config.providers.iter().filter(|name| preset::is_provider(name)) {
            if let Some(by) = declared.get(name.as_str()) {
                let told_of = format!(
                    "`{name}` is the `[[provider]]` of {by}, not the one that ships with Lockgate; give yours another `id` to have both"
                );
                told.insert(name, told_of);
            }
        }
        declared.extend(config.provider.iter().map(|own| (own.id.as_str(), origin)));
    }
    spec.notices.extend(told.into_values());
}

/// Refuses a port that is declared twice, and a backend without inbound ports.
pub(crate) fn inbound(spec: &RunSpec) -> Result<(), ConfigError> {
    let refuse = |problem: String| ConfigError::new("the run", "inbound", problem);
    if spec.inbound.is_empty() {
        return Ok(());
    }
    if spec.inbound.len() > MOST_PORTS {
        return Err(refuse(format!("there are {}, and a run has {MOST_PORTS} at most", spec.inbound.len())));
    }
    if spec.backend == Backend::Process {
        let problem = format!("backend `{}` opens no ports of its own", spec.backend);
        return Err(refuse(problem).with_hint("use `linux`, `container` or `docker`"));
    }
    for (index, inbound) in spec.inbound.iter().enumerate() {
        if spec.inbound[..index].iter().any(|other| other.host_port == inbound.host_port) {
            return Err(refuse(format!("port {} of this machine is asked for twice", inbound.host_port)));
        }
    }
    Ok(())
}

/// Tells each policy out of which network names have their addresses. Refuses another than the default where it could not be had, and one
/// that would hide an address that a rule allows.
pub(crate) fn name_addresses(layers: &Layers, spec: &mut RunSpec) -> Result<(), ConfigError> {
    let network = spec.name_addresses;
    if network == NameNetwork::default() {
        return Ok(());
    }
    let refuse = |problem: String| {
        let last = layers.0.iter().rfind(|layer| layer.config.name_addresses.is_some());
        let origin = last.map(|layer| layer.origin.to_string()).unwrap_or_default();
        ConfigError::new(&origin, name_network::FIELD, problem)
    };
    match spec.backend {
        Backend::Linux | Backend::Container => {}
        Backend::Docker => {
            return Err(refuse("with `docker` names have addresses of the run's own network".into())
                .with_hint("leave it out, or use `container`"));
        }
        Backend::Process => {
            return Err(
                refuse("with `process` names have their own addresses".into()).with_hint("leave it out")
            );
        }
    }
    for policy in [&mut spec.policy].into_iter().chain(spec.companions.iter_mut().map(|it| &mut it.policy)) {
        let rules = policy.allow.iter().chain(policy.providers.iter().flat_map(|provider| &provider.rules));
        let hidden =
            |rule: &&AllowRule| matches!(rule.reach.host, HostPattern::Address(it) if network.has(it));
        if let Some(rule) = rules.clone().find(hidden) {
            return Err(refuse(format!("{network} holds {}, which {} allows", rule.reach.host, rule.name))
                .with_hint(name_network::EXAMPLE));
        }
        policy.stand_ins = network;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_companion_is_denied_as_a_whole_or_not_at_all() {
        let compiled = |origin: Origin, rule: &str| {
            let db = "[[companion]]\nname = \"db\"\nimage = \"i\"\nports = [8080]\n";
            let second = db.replace("db", "second");
            let mut layers = Layers::default();
            layers.push(origin, toml::from_str(&format!("egress.deny = [{rule}]")).unwrap());
            layers.push(Origin::Flags, toml::from_str(&format!("{db}{second}egress = {{}}\n")).unwrap());
            layers.compile().map(drop).map_err(|error| error.to_string())
        };
        for part in [
            "{ url = \"http://db:8080/admin/*\" }",
            "{ host = \"db\", methods = [\"DELETE\"] }",
            "{ host = \"db\", subdomains = true, ports = [8080], methods = [\"DELETE\"] }",
            "{ url = \"https://second:8080/admin\" }",
        ] {
            for origin in [Origin::Managed("/etc/policy".into()), Origin::Named("file".into())] {
                let why = compiled(origin.clone(), part).unwrap_err();
                assert!(why.contains(&format!("egress.deny[0] in {origin}")), "{part}: {why}");
            }
        }
        for whole in [
            "{ host = \"db\" }",
            "{ host = \"db:8080\" }",
            "{ url = \"http://db:8080/*\" }",
            "{ url = \"https://**.db:8080/admin\" }",
            "{ url = \"https://*.db:8080/admin\" }",
            "{ url = \"http://api.example.com:8080/admin\" }",
            // No port of its: it is denied by that already.
            "{ url = \"http://db:8081/admin\" }",
        ] {
            assert_eq!(compiled(Origin::Named("file".into()), whole), Ok(()), "{whole}");
        }
    }

    #[test]
    fn a_name_means_the_provider_that_a_layer_before_declares_under_it() {
        let compiled = |layers: &[(Origin, &str)]| {
            let mut all = Layers::default();
            for (origin, text) in layers {
                all.push(origin.clone(), toml::from_str(text).unwrap());
            }
            let spec = all.compile().unwrap();
            let uris = spec.policy.providers().map(|it| it.first_uri().to_owned()).collect::<Vec<_>>();
            (uris, spec.notices)
        };
        let own =
            "[[provider]]\nid = \"github\"\nauthorized_uris = [\"https://ghe.corp.example/api/v3/*\"]\n";
        let named = "providers = [\"github\"]";
        let project = || Origin::Project { path: "lockgate.toml".into(), approved: true };
        for (first, then) in [
            (Origin::User("config.toml".into()), Origin::Flags),
            (Origin::User("config.toml".into()), project()),
            (Origin::Named("file".into()), Origin::Flags),
            (Origin::Managed("/etc/policy".into()), project()),
        ] {
            let (uris, notices) = compiled(&[(first.clone(), own), (then, named)]);
            assert_eq!(uris, ["https://ghe.corp.example/api/v3/*"], "{first}");
            assert!(
                matches!(&notices[..], [one] if one.starts_with(&format!("`github` is the `[[provider]]` of {first}"))),
                "{notices:?}"
            );
        }
        // Who declares it later says so.
        let (uris, notices) =
            compiled(&[(Origin::User("mine".into()), named), (Origin::Named("file".into()), own)]);
        assert_eq!((uris, notices), (vec!["https://ghe.corp.example/api/v3/*".to_owned()], Vec::new()));
        let (uris, notices) = compiled(&[(Origin::User("mine".into()), named), (Origin::Flags, named)]);
        assert!(
            uris.len() == 1 && uris[0].contains("github.com") && notices.is_empty(),
            "{uris:?} {notices:?}"
        );
    }

    #[test]
    fn a_budget_that_nothing_is_charged_to_is_told_of() {
        let notices_of = |origin: Origin, text: &str| {
            let mut layers = Layers::default();
            layers.push(origin, toml::from_str(text).unwrap());
            layers.compile().unwrap().notices
        };
        let notices = |text: &str| notices_of(Origin::Flags, text);
        let none = |text: &str| assert_eq!(notices(text), [""; 0], "{text}");
        for budget in ["requests = 2", "tokens = 2", "usd = 2"] {
            for providers in ["", "providers = [\"github\"]\n"] {
                let told = notices(&format!("{providers}llm.budget.{budget}\n"));
                assert!(
                    matches!(&told[..], [one] if one.starts_with("`llm.budget` limits nothing")),
                    "{told:?}"
                );
            }
            for model in ["anthropic", "google"] {
                none(&format!("providers = [\"github\", \"{model}\"]\nllm.budget.{budget}\n"));
            }
        }
        assert_eq!(notices_of(Origin::User("mine".into()), "llm.budget.requests = 2\n"), [""; 0]);
        none("llm.price = [{ model = \"mine\", input = 1.0, output = 4.0 }]\n");
    }
}
