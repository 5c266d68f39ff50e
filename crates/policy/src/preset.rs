//! Presets: named groups of rules that ship as one data file. S4.18–S4.22, S4.61.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::config::{AllowConfig, EgressDefault};
use crate::error::ConfigError;

const DATA: &str = include_str!("../../../profiles/presets.toml");

/// A named group of rules.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Preset {
    /// What it is for, in one line.
    pub about: String,
    /// What it does to hosts that no rule names.
    #[serde(default)]
    pub default: Option<EgressDefault>,
    /// What it allows.
    #[serde(default)]
    pub allow: Vec<AllowConfig>,
}

impl Preset {
    pub(crate) fn named(name: &str, origin: &str, field: &str) -> Result<Self, ConfigError> {
        let mut all = table()?;
        let known: Vec<String> = all.keys().cloned().collect();
        all.remove(name).ok_or_else(|| {
            ConfigError::new(origin, field, format!("there is no preset `{name}`"))
                .with_hint(format!("the presets are {}", known.join(", ")))
        })
    }
}

/// Each preset's name and what it is for.
///
/// # Errors
/// When the embedded table is malformed, which its test rules out.
pub fn preset_names() -> Result<Vec<(String, String)>, ConfigError> {
    Ok(table()?.into_iter().map(|(name, preset)| (name, preset.about)).collect())
}

fn table() -> Result<BTreeMap<String, Preset>, ConfigError> {
    toml::from_str(DATA).map_err(|e| ConfigError::new("presets", "", e.message()))
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn every_preset_parses() {
        let names: Vec<String> = preset_names().unwrap().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["github", "llm-providers", "open-internet", "package-registries"]);
    }
}
