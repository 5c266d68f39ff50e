//! The raw form of `[env.variable]`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `[env.variable.NAME]`: settings of a provider's variable.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq)]
#[serde(deny_unknown_fields, expecting = "a table, as in { expose = true }")]
pub struct VariableConfig {
    /// Whether it holds the credential itself, in place of a placeholder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expose: Option<bool>,
}
