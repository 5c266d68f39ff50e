//! The raw form of `[[setup]]`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::value::is_false;

/// `[[setup]]`.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq)]
#[serde(deny_unknown_fields, expecting = "a command, as in { command = [\"make\"] }")]
pub struct SetupConfig {
    /// The command and its arguments.
    pub command: Vec<String>,
    /// Whether the run ends if it fails; otherwise the failure is reported, and the command runs all the same.
    #[serde(default, skip_serializing_if = "is_false")]
    pub required: bool,
    /// How long it may take, as in `5m`, which is the default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<String>,
}
