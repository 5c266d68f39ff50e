//! The raw form of `[[companion]]`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::egress::{AllowConfig, DenyConfig, EgressDefault};
use super::limits::LimitsConfig;
use super::value::{Number, word};

/// `[[companion]]`: a service beside the command, from an image of its own.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema, PartialEq)]
#[serde(
    deny_unknown_fields,
    expecting = "a companion, as in { name = \"db\", image = \"postgres\", ports = [5432] }"
)]
pub struct CompanionConfig {
    /// The name by which the command reaches it: one label, as in `db`.
    pub name: String,
    /// The image, by its name in the store.
    pub image: String,
    /// Its command; the image's own by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    /// Variables of its environment.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// The TCP ports that may be reached. Others are refused.
    pub ports: Vec<u16>,
    /// When it counts as healthy; by default, when every port accepts a connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub health: Option<HealthConfig>,
    /// Its resource limits, in addition to those of the command.
    #[serde(default, skip_serializing_if = "ResourcesConfig::is_empty")]
    pub resources: ResourcesConfig,
    /// Where its own requests may go; by default where the command's may, without credentials.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub egress: Option<CompanionEgress>,
}

/// `resources`: the resource limits of a companion.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq)]
#[serde(deny_unknown_fields, expecting = "a table, as in { memory = \"2GiB\" }")]
pub struct ResourcesConfig {
    /// Memory, swap included, as in `512MiB`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<String>,
    /// Processors, as in `2` or `0.5`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<Number>,
    /// Processes and threads at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = u32::MAX))]
    pub pids: Option<u32>,
    /// What may be written over its image, as in `1GiB`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk: Option<String>,
}

impl ResourcesConfig {
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub(crate) fn as_limits(&self) -> LimitsConfig {
        let Self { memory, cpus, pids, disk } = self.clone();
        LimitsConfig { memory, cpus, pids, disk, enforce: None }
    }
}

/// `[companion.egress]`: the rules of a companion that has its own.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq)]
#[serde(deny_unknown_fields, expecting = "a table of its rules")]
pub struct CompanionEgress {
    /// Named groups of rules that ship with the program.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub presets: Vec<String>,
    /// What happens to a host that no rule names.
    #[serde(default, deserialize_with = "word", skip_serializing_if = "Option::is_none")]
    pub default: Option<EgressDefault>,
    /// The allow rules. An empty list allows nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<AllowConfig>,
    /// The deny rules, which take precedence over allow rules.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deny: Vec<DenyConfig>,
}

/// `health`: when a companion counts as healthy.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq)]
#[serde(deny_unknown_fields, expecting = "a table of its health check")]
pub struct HealthConfig {
    /// A command that is run in the companion until it exits with 0; by default, every port must accept a connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    /// How long it may take, as in `60s`, which is the default; `10m` at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub within: Option<String>,
}
