//! The raw form of `[egress]`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::value::{is_false, word};

/// `[egress]`.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq)]
#[serde(deny_unknown_fields, expecting = "a table, as in { default = \"deny\" }")]
pub struct EgressConfig {
    /// What happens to a host that no rule names.
    #[serde(default, deserialize_with = "word", skip_serializing_if = "Option::is_none")]
    pub default: Option<EgressDefault>,
    /// The HTTP status of a denial on the explicit plane; 403 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub denied_status: Option<u16>,
    /// What happens to an answer that cannot be searched for a credential: `strict` (the default) refuses it,
    /// `best-effort` lets it pass and says so in the audit.
    #[serde(default, deserialize_with = "word", skip_serializing_if = "Option::is_none")]
    pub scrub: Option<Scrub>,
    /// The proxy that everything goes through, by its id; `direct` for none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proxy: Option<String>,
    /// Hosts that are reached without the proxy.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub no_proxy: Vec<String>,
    /// The allow rules. An empty list allows nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<AllowConfig>,
    /// The deny rules, which take precedence over allow rules.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deny: Vec<DenyConfig>,
}

impl EgressConfig {
    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// What happens to a host that no rule names.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum EgressDefault {
    /// It is refused.
    Deny,
    /// It is allowed if every address it resolves to is public.
    OpenInternet,
}

/// What happens to an answer that cannot be searched for the credential that was part of its request.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Scrub {
    /// It is refused.
    #[default]
    Strict,
    /// It goes on, and the record says so.
    BestEffort,
}

/// `[[egress.allow]]`: one `url`, or one `host` with its ports.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq)]
#[serde(deny_unknown_fields, expecting = "a rule, as in { host = \"example.com\" }")]
pub struct AllowConfig {
    /// Scheme, host, port and path in one: exact, or a prefix that ends in `*`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// A host pattern; any TCP protocol.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The ports of `host`; 80 and 443 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub ports: Option<Vec<u16>>,
    /// With an exact `host`: everything below it as well.
    #[serde(default, skip_serializing_if = "is_false")]
    pub subdomains: bool,
    /// The methods; all by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub methods: Option<Vec<String>>,
    /// With a `url`: lets `%2F` stand inside a segment.
    #[serde(default, skip_serializing_if = "is_false")]
    pub encoded_slash: bool,
    /// With one exact host: its addresses. It is then not resolved, and they may be private ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub addresses: Option<Vec<String>>,
}

/// `[[egress.deny]]`: deny beats allow.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq)]
#[serde(deny_unknown_fields, expecting = "a rule, as in { host = \"example.com\" }")]
pub struct DenyConfig {
    /// Scheme, host, port and path in one: exact, or a prefix that ends in `*`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// A host pattern.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The ports of `host`; all by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub ports: Option<Vec<u16>>,
    /// With an exact `host`: everything below it as well.
    #[serde(default, skip_serializing_if = "is_false")]
    pub subdomains: bool,
    /// The methods; all by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub methods: Option<Vec<String>>,
    /// The reason, which the agent and the user are told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}
