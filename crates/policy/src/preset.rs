//! Presets and built-in providers: the named rules that ship with the program as one data file. S4.18–S4.22, S4.61.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

use serde::Deserialize;

use crate::asked::{Asked, Plane};
use crate::error::ConfigError;
use crate::hostname::Host;
use crate::location::Location;
use crate::nearest::did_you_mean;
use crate::pattern::Width;
use crate::provider::{Provider, named_fields};
use crate::provider_id::ProviderId;
use crate::rule::{AllowRule, RuleName};
use crate::target::{Method, Port, Target};
use crate::written::{AllowConfig, EgressDefault, OneOrMany, ProviderConfig};

/// profiles/presets.toml, as build.rs writes it.
const DATA: &str = include_str!(concat!(env!("OUT_DIR"), "/presets.json"));

/// A named group of rules.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Preset {
    /// Its purpose, in one line.
    pub about: String,
    /// Its default for hosts that no rule names.
    #[serde(default)]
    pub default: Option<EgressDefault>,
    /// Its allow rules.
    #[serde(default)]
    pub allow: Vec<AllowConfig>,
}

impl Preset {
    pub(crate) fn named(name: &str, origin: &str, field: &str) -> Result<Self, ConfigError> {
        let all = &data()?.preset;
        all.get(name).cloned().ok_or_else(|| {
            let known: Vec<&str> = all.keys().map(String::as_str).collect();
            ConfigError::new(origin, field, format!("there is no preset `{name}`")).with_hint(format!(
                "{}the presets are {}",
                did_you_mean(name, known.iter().copied()),
                known.join(", ")
            ))
        })
    }
}

/// Returns each preset's name and purpose.
///
/// # Errors
/// If the embedded table is malformed, which a test rules out.
pub fn preset_names() -> Result<Vec<(String, String)>, ConfigError> {
    Ok(data()?.preset.iter().map(|(name, preset)| (name.clone(), preset.about.clone())).collect())
}

/// Returns each built-in provider's name and description.
///
/// # Errors
/// If the embedded table is malformed, which a test rules out.
pub fn provider_names() -> Result<Vec<(String, String)>, ConfigError> {
    let row =
        |(name, known): (&String, &ProviderConfig)| (name.clone(), known.about.clone().unwrap_or_default());
    Ok(data()?.provider.iter().map(row).collect())
}

/// Returns each built-in provider and the variables that usually hold its key.
///
/// # Errors
/// If the embedded table is malformed, which a test rules out.
pub fn provider_variables() -> Result<Vec<(ProviderId, Vec<String>)>, ConfigError> {
    let bad = |why| ConfigError::new("presets", "provider", why);
    let row = |(name, known): (&String, &ProviderConfig)| {
        let variables = known.env.as_ref().map_or(&[][..], OneOrMany::as_slice).to_vec();
        Ok((name.parse().map_err(bad)?, variables))
    };
    data()?.provider.iter().map(row).collect()
}

/// Returns the fields that a built-in provider puts into requests by its own templates; none for a provider that is not built in.
///
/// # Errors
/// If the embedded table is malformed, which a test rules out.
pub fn provider_fields(name: &str) -> Result<BTreeSet<&'static str>, ConfigError> {
    let inject = data()?.provider.get(name).and_then(|known| known.inject.as_ref());
    let templates = inject.map_or(&[][..], OneOrMany::as_slice).iter();
    let texts = templates.flat_map(|inject| inject.value.iter().chain(&inject.basic));
    Ok(texts.filter_map(|text| named_fields(text)).flatten().collect())
}

/// Returns the built-in web search providers, in order of preference. S4.42
///
/// # Errors
/// If the embedded table is malformed, which a test rules out.
pub fn web_searches() -> Result<Vec<String>, ConfigError> {
    Ok(data()?.web_search.iter().map(|search| search.provider.clone()).collect())
}

/// Returns the built-in web search providers with their domains, in order of preference.
pub(crate) fn web_search_domains() -> Result<&'static [WebSearch], ConfigError> {
    Ok(&data()?.web_search)
}

/// A provider that searches the web.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct WebSearch {
    pub(crate) provider: String,
    /// Its domains. A run without it reaches none of them, and nothing below them.
    pub(crate) domains: Vec<String>,
}

/// Returns the built-in provider that has an authorized URI at this host and port.
#[must_use]
pub fn provider_for(host: &Host, port: Port) -> Option<String> {
    provider_which(|provider| provider.is_at(host, port))
}

/// Returns the built-in provider whose credential is good for a request to this target.
#[must_use]
pub fn provider_covering(target: &Target) -> Option<String> {
    let asked = Asked::request(Plane::Forward, Method::parse("GET")?, target);
    provider_which(|provider| provider.rules.iter().any(|rule| rule.reach.covers_asked(&asked)))
}

/// Returns the first built-in provider, by its name, of which this holds.
fn provider_which(holds: impl Fn(&Provider) -> bool) -> Option<String> {
    data().ok()?.provider.iter().find_map(|(name, known)| {
        let at = Location { origin: "provider", field: name, width: Width::AsWritten };
        let config = ProviderConfig { id: name.clone(), ..known.clone() };
        let provider = Provider::compile(&at, &config).ok()?;
        holds(&provider).then(|| name.clone())
    })
}

/// Returns the preset that covers this host and port.
#[must_use]
pub fn preset_for(host: &Host, port: Port) -> Option<String> {
    data().ok()?.preset.iter().find_map(|(name, preset)| {
        let at = Location { origin: "preset", field: name, width: Width::AsWritten };
        let mut rules = preset
            .allow
            .iter()
            .filter_map(|it| AllowRule::compile(&at, it, RuleName::new(name.as_str())).ok());
        rules.any(|rule| rule.reach.is_at(host, port)).then(|| name.clone())
    })
}

/// Returns whether a name is that of a built-in provider.
pub(crate) fn is_provider(name: &str) -> bool {
    data().is_ok_and(|data| data.provider.contains_key(name))
}

/// Returns the declaration of a built-in provider.
pub(crate) fn provider(name: &str, origin: &str, field: &str) -> Result<ProviderConfig, ConfigError> {
    let all = &data()?.provider;
    let found = all.get(name).cloned().ok_or_else(|| {
        let known: Vec<&str> = all.keys().map(String::as_str).collect();
        ConfigError::new(origin, field, format!("there is no provider `{name}`")).with_hint(format!(
            "{}the providers are {}; one of your own is a [[provider]]",
            did_you_mean(name, known.iter().copied()),
            known.join(", ")
        ))
    })?;
    Ok(ProviderConfig { id: name.into(), ..found })
}

/// The embedded data: presets and providers.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Data {
    web_search: Vec<WebSearch>,
    preset: BTreeMap<String, Preset>,
    provider: BTreeMap<String, ProviderConfig>,
}

fn data() -> Result<&'static Data, ConfigError> {
    static READ: OnceLock<Data> = OnceLock::new();
    if let Some(data) = READ.get() {
        return Ok(data);
    }
    let data = serde_json::from_str(DATA).map_err(|e| ConfigError::new("presets", "", e.to_string()))?;
    Ok(READ.get_or_init(|| data))
}

#[cfg(test)]
mod tests {
    use super::*;

    // S4.68
    #[test]
    fn every_preset_compiles() {
        for (name, _) in preset_names().unwrap() {
            let config = crate::RunConfig { presets: vec![name], ..crate::RunConfig::default() };
            let mut layers = crate::Layers::default();
            layers.push(crate::Origin::Flags, config);
            layers.compile().unwrap();
        }
    }

    #[test]
    fn every_provider_compiles() {
        for (name, _) in provider_names().unwrap() {
            let config = crate::RunConfig { providers: vec![name], ..crate::RunConfig::default() };
            let mut layers = crate::Layers::default();
            layers.push(crate::Origin::Flags, config);
            layers.compile().unwrap();
        }
    }

    #[test]
    fn the_fields_that_a_provider_puts_in_are_known() {
        assert!(provider_fields("anthropic").unwrap().contains("access_token"));
        assert!(provider_fields("of-our-own").unwrap().is_empty());
    }

    #[test]
    fn every_search_is_a_provider() {
        let all = web_searches().unwrap();
        assert!(!all.is_empty() && all.iter().all(|name| is_provider(name)), "{all:?}");
    }

    #[test]
    fn every_preset_parses() {
        let names: Vec<String> = preset_names().unwrap().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["github", "llm-providers", "open-internet", "package-registries"]);
    }
}
