//! `web_search`: lets a run search the web by one of the built-in search providers. The stored credentials select the provider, so
//! that one policy suits users of different services. A run that does not ask for it reaches no search provider, even if every other
//! host is open; a run for which it is forbidden has none. S4.42, S4.43, S4.63.

use std::sync::Arc;

use crate::error::ConfigError;
use crate::layer::{Layer, Layers};
use crate::location::Location;
use crate::origin::Origin;
use crate::pattern::{HostPattern, Width};
use crate::preset::{WebSearch, web_search_domains, web_searches};
use crate::provider::Provider;
use crate::rule::{DenyRule, RuleName};
use crate::rules::Policy;
use crate::spec::RunSpec;
use crate::unrequested_search::UnrequestedSearch;
use crate::written::{DenyConfig, RunConfig};

impl Layers {
    /// Returns whether the last layer that sets `web_search` asks for it and no layer names a search provider. Then
    /// [`choose_search`](Self::choose_search) selects one.
    ///
    /// # Errors
    /// If the embedded table is malformed, which a test rules out.
    pub fn want_a_search(&self) -> Result<bool, ConfigError> {
        let last = self.0.iter().rev().find_map(|layer| layer.config.web_search);
        let all = web_searches()?;
        Ok(last == Some(true) && self.0.iter().all(|layer| named(&layer.config, &all).is_none()))
    }

    /// Returns the search providers that a run leaves out, whichever layer names them: all of them if web search is forbidden. Of layers
    /// that no run accepts nothing is left out.
    #[must_use]
    pub fn forbidden_searches(&self) -> Vec<String> {
        let Ok(all) = web_searches() else { return Vec::new() };
        let is_accepted = refuse_both(&self.0, &all).is_ok();
        let forbids = forbidding_layer(&self.0, &all).is_ok_and(|layer| layer.is_some());
        if is_accepted && forbids { all } else { Vec::new() }
    }

    /// Adds a search provider to the layer that asks for web search: the first whose credential is stored. If none is stored it adds the
    /// first of all, so that the run reports its credential as missing.
    ///
    /// # Errors
    /// If the embedded table is malformed, which a test rules out.
    pub fn choose_search(&mut self, stored: &[String]) -> Result<(), ConfigError> {
        let all = web_searches()?;
        let chosen = all.iter().find(|name| stored.contains(name)).or(all.first());
        let asks = self.0.iter_mut().rev().find(|layer| layer.config.web_search == Some(true));
        if let (Some(chosen), Some(layer)) = (chosen, asks) {
            layer.config.providers.push(chosen.clone());
        }
        Ok(())
    }
}

/// Applies `web_search` after all layers: denies forbidden searches, and leaves out of the open mode those that no layer asked for.
pub(crate) fn settle(layers: &[Layer], spec: &mut RunSpec) -> Result<(), ConfigError> {
    let all = web_searches()?;
    refuse_both(layers, &all)?;
    match forbidding_layer(layers, &all)? {
        Some(origin) => forbid(&origin.to_string(), &all, spec),
        None => {
            leave_out(&mut spec.policy)?;
            spec.companions.iter_mut().try_for_each(|companion| leave_out(&mut companion.policy))
        }
    }
}

/// Refuses a layer that forbids web search and also names a provider of it.
fn refuse_both(layers: &[Layer], all: &[String]) -> Result<(), ConfigError> {
    for Layer { origin, config } in layers {
        if let (Some(false), Some((field, name))) = (config.web_search, named(config, all)) {
            let problem = format!("`{name}` searches the web, and `web_search = false` stands beside it");
            return Err(
                ConfigError::new(&origin.to_string(), field, problem).with_hint("leave one of them out")
            );
        }
    }
    Ok(())
}

/// Returns the origin of the `web_search = false` in force: a managed policy's always; otherwise that of the last layer that sets
/// the field or names a search provider.
///
/// # Errors
/// If a layer asks for web search and a managed policy forbids it.
fn forbidding_layer<'a>(layers: &'a [Layer], all: &[String]) -> Result<Option<&'a Origin>, ConfigError> {
    let forbids =
        |layer: &&Layer| matches!(layer.origin, Origin::Managed(_)) && layer.config.web_search == Some(false);
    let last = layers.iter().rev().find(|layer| layer.config.web_search.is_some());
    let Some(managed) = layers.iter().find(forbids) else {
        let speaks =
            |layer: &&Layer| layer.config.web_search.is_some() || named(&layer.config, all).is_some();
        let last = layers.iter().rev().find(speaks);
        return Ok(last.filter(|layer| layer.config.web_search == Some(false)).map(|layer| &layer.origin));
    };
    let refuse = |origin: &Origin, field, what: String| {
        let problem = format!("{} does not let a command search the web{what}", managed.origin);
        Err(ConfigError::new(&origin.to_string(), field, problem))
    };
    for Layer { origin, config } in layers {
        if let Some((field, name)) = named(config, all) {
            return refuse(origin, field, format!(", which is what `{name}` is for"));
        }
    }
    match last.filter(|layer| layer.config.web_search == Some(true)) {
        Some(asks) => refuse(&asks.origin, "web_search".into(), String::new()),
        None => Ok(Some(&managed.origin)),
    }
}

/// Returns the first search provider that a layer names, after its field.
fn named<'a>(config: &'a RunConfig, all: &[String]) -> Option<(String, &'a str)> {
    let is_one = |name: &String| all.contains(name);
    let shipped = config.providers.iter().enumerate().find(|(_, name)| is_one(name));
    let own = config.provider.iter().enumerate().find(|(_, own)| is_one(&own.id));
    let shipped = shipped.map(|(at, name)| (format!("providers[{at}]"), name.as_str()));
    shipped.or_else(|| own.map(|(at, own)| (format!("provider[{at}].id"), own.id.as_str())))
}

/// Removes the search providers that other layers named, and denies their domains whatever else would open them.
fn forbid(by: &str, all: &[String], spec: &mut RunSpec) -> Result<(), ConfigError> {
    let is_one = |provider: &Arc<Provider>| all.iter().any(|name| name == provider.id().as_str());
    for provider in spec.policy.providers.extract_if(.., |provider| is_one(provider)) {
        spec.notices.push(format!("`{}` is left out: {by} says `web_search = false`", provider.id()));
    }
    let own = spec.companions.iter_mut().map(|companion| &mut companion.policy);
    for policy in std::iter::once(&mut spec.policy).chain(own) {
        for domain in web_search_domains()?.iter().flat_map(|search| &search.domains) {
            let at = Location { origin: by, field: "web_search", width: Width::Closing };
            let reason = Some(format!("{by} does not let a command search the web"));
            let host = Some(domain.clone());
            let written = DenyConfig { host, subdomains: true, reason, ..DenyConfig::default() };
            let rule = DenyRule::compile(&at, &written, RuleName::new(format!("web_search in {by}")))?;
            Arc::make_mut(&mut policy.deny).push(rule);
        }
    }
    Ok(())
}

fn leave_out(policy: &mut Policy) -> Result<(), ConfigError> {
    let is_asked = |name: &str| policy.providers.iter().any(|provider| provider.id().as_str() == name);
    let mut left_out = Vec::new();
    for WebSearch { provider, domains } in web_search_domains()?.iter().filter(|it| !is_asked(&it.provider)) {
        for domain in domains {
            let host = HostPattern::parse(domain).and_then(HostPattern::with_subdomains);
            let host = host.map_err(|why| ConfigError::new("presets", "web_search", why))?;
            left_out.push(UnrequestedSearch { provider: provider.as_str().into(), host });
        }
    }
    policy.unrequested_searches = left_out;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::asked::{Asked, Plane, View};
    use crate::denial::Guard;
    use crate::hostname::{Host, Hostname};
    use crate::target::Scheme;

    const ASKED: &str = "web_search = true";
    const NOT: &str = "web_search = false";

    fn layers(managed: &str, texts: &[&str]) -> Layers {
        let mut layers = Layers::default();
        layers.push(Origin::Managed("managed.toml".into()), toml::from_str(managed).unwrap());
        for text in texts {
            layers.push(Origin::Named("file".into()), toml::from_str(text).unwrap());
        }
        layers
    }

    fn chosen(texts: &[&str], stored: &[&str]) -> Vec<String> {
        let mut layers = layers("", texts);
        if layers.want_a_search().unwrap() {
            let stored: Vec<String> = stored.iter().map(|id| (*id).to_owned()).collect();
            layers.choose_search(&stored).unwrap();
        }
        layers.compile().unwrap().policy.providers().map(|it| it.id().to_string()).collect()
    }

    #[test]
    fn the_first_that_has_a_credential_is_taken() {
        assert_eq!(chosen(&[ASKED], &["brave", "exa", "tavily"]), ["tavily"]);
        assert_eq!(chosen(&[ASKED], &["brave", "exa", "github"]), ["exa"]);
        assert_eq!(chosen(&[ASKED], &["brave"]), ["brave"]);
        assert_eq!(chosen(&[ASKED], &[]), ["tavily"]);
    }

    #[test]
    fn one_that_is_named_is_taken_and_no_other() {
        assert_eq!(chosen(&[ASKED, "providers = [\"brave\"]"], &["tavily"]), ["brave"]);
        assert_eq!(chosen(&["providers = [\"exa\"]", ASKED], &["tavily"]), ["exa"]);
    }

    #[test]
    fn the_last_layer_that_speaks_of_it_is_heard() {
        assert_eq!(chosen(&[ASKED, NOT], &["tavily"]), [""; 0]);
        assert_eq!(chosen(&[NOT, ASKED], &["exa"]), ["exa"]);
        assert_eq!(chosen(&["timeout = \"1m\""], &["tavily"]), [""; 0]);
    }

    #[test]
    fn a_managed_policy_has_the_last_word_against_it() {
        let refused = layers(NOT, &[ASKED]).compile().unwrap_err();
        assert_eq!(refused.problem, "managed.toml does not let a command search the web");
        assert!(layers(ASKED, &[]).want_a_search().unwrap());
        assert!(!layers(ASKED, &[NOT]).want_a_search().unwrap());
    }

    #[test]
    fn who_names_one_that_is_forbidden_is_refused_by_its_name() {
        let exa = "provider = [{ id = \"exa\", authorized_uris = [\"https://example.com/*\"] }]";
        for (managed, file, field) in [
            (NOT, "providers = [\"github\", \"tavily\"]", "file: providers[1]: "),
            (NOT, exa, "file: provider[0].id: "),
            ("web_search = false\nproviders = [\"brave\"]", "", "managed.toml: providers[0]: "),
            ("", "web_search = false\nproviders = [\"brave\"]", "file: providers[0]: "),
        ] {
            let refused = layers(managed, &[file]).compile().unwrap_err().to_string();
            let name = ["tavily", "exa", "brave"].into_iter().find(|name| refused.contains(name));
            assert!(refused.starts_with(field) && name.is_some(), "{managed}, {file}: {refused}");
        }
        assert_eq!(chosen(&["providers = [\"brave\"]", NOT], &[]), [""; 0], "the last one is heard");
        assert_eq!(chosen(&[NOT, "providers = [\"brave\"]"], &[]), ["brave"], "who names one asks");
    }

    #[test]
    fn those_that_a_run_leaves_out_are_told() {
        for (managed, file, own, is_told) in [
            ("", "providers = [\"tavily\"]", NOT, true),
            (NOT, "", "", true),
            ("", NOT, "providers = [\"tavily\"]", false),
            ("", "providers = [\"tavily\"]", "", false),
            // No run accepts these.
            (NOT, "providers = [\"tavily\"]", "", false),
            ("", "", "web_search = false\nproviders = [\"tavily\"]", false),
        ] {
            let told = layers(managed, &[file, own]).forbidden_searches();
            assert_eq!(
                told.iter().any(|name| name == "tavily"),
                is_told,
                "{managed}, {file}, {own}: {told:?}"
            );
        }
    }

    #[test]
    fn where_every_host_is_open_a_search_is_still_asked_for() {
        let denied = |managed: &str, texts: &[&str], host: &str| {
            let policy = layers(managed, texts).compile().unwrap().policy;
            let asked = |host: &str| {
                let host = Host::Name(Hostname::parse(host).unwrap());
                Asked::connection(Plane::Forward, host, Scheme::Https.default_port(), View::Tls)
            };
            assert!(policy.decide(&asked("example.com")).is_ok());
            let name = policy.decide_name(&Hostname::parse(host).unwrap());
            let denial = policy.decide(&asked(host)).err();
            assert_eq!(name.err(), denial, "by its name as by its connection");
            denial.map(|it| (it.guard, it.hint.map(|hint| hint.to_string()).unwrap_or_default()))
        };
        let open = "egress.default = \"open-internet\"";
        let hint = |name: &str| Some((Guard::HostNotAllowed, format!("lockgate run --provider {name}")));
        assert_eq!(denied("", &[open], "api.tavily.com"), hint("tavily"));
        assert_eq!(denied(open, &[open], "api.exa.ai"), hint("exa"));
        assert_eq!(denied("", &[open, "providers = [\"exa\"]"], "api.exa.ai"), None);
        assert_eq!(denied(open, &["providers = [\"exa\"]", open], "api.exa.ai"), None);
        assert_eq!(denied("", &[open, "providers = [\"exa\"]"], "api.tavily.com"), hint("tavily"));
        let named = "egress.allow = [{ host = \"api.tavily.com\" }]";
        assert_eq!(denied("", &[open, named], "api.tavily.com"), None);
        let shut = Some((Guard::DenyRule, String::new()));
        assert_eq!(denied(NOT, &[open, named], "api.tavily.com"), shut);
        assert_eq!(denied("", &[open, named, NOT], "api.tavily.com"), shut);
    }
}
