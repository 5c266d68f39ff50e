//! The raw form of `[limits]`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::value::Number;
use crate::choice::words_or_null;
use crate::enforcement::Enforcement;

/// `[limits]`.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq)]
#[serde(deny_unknown_fields, expecting = "a table, as in { memory = \"2GiB\" }")]
pub struct LimitsConfig {
    /// Memory, swap included, as in `1536MiB`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<String>,
    /// Processors, as in `2` or `0.5`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<Number>,
    /// Concurrent processes and threads.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 2, max = u32::MAX))]
    pub pids: Option<u32>,
    /// What may be written to the private directories, as in `4GiB`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk: Option<String>,
    /// `required` (the default) refuses a run whose limits this host cannot enforce; `best-effort` says so and goes on.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = words_or_null::<Enforcement>()))]
    pub enforce: Option<String>,
}

impl LimitsConfig {
    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
