//! The raw form of `[llm]`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::value::Number;

/// `[llm]`: what a run may spend on models.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq)]
#[serde(deny_unknown_fields, expecting = "a table of models and their budget")]
pub struct LlmConfig {
    /// Checked before a request is sent; a request beyond it ends in 429.
    #[serde(default, skip_serializing_if = "BudgetConfig::is_empty")]
    pub budget: BudgetConfig,
    /// Prices of models, which take precedence over those that ship with the program.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub price: Vec<PriceConfig>,
}

impl LlmConfig {
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// `llm.budget`.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq)]
#[serde(deny_unknown_fields, expecting = "a budget, as in { requests = 100 }")]
pub struct BudgetConfig {
    /// Requests to models.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests: Option<u64>,
    /// Tokens, in and out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// US dollars, as in `2.50`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usd: Option<Number>,
}

impl BudgetConfig {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// `[[llm.price]]`: US dollars per million tokens.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema, PartialEq)]
#[serde(deny_unknown_fields, expecting = "a price, in USD for a million tokens")]
pub struct PriceConfig {
    /// The model's name, or its beginning and `*`.
    pub model: String,
    /// A million input tokens.
    pub input: f64,
    /// A million cached input tokens; as `input` by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cached: Option<f64>,
    /// A million output tokens.
    pub output: f64,
}
