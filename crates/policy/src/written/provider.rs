//! The raw form of `[[provider]]`, which compiles into a [`crate::Provider`].

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::value::{OneOrMany, is_false, word};

/// `[[provider]]`: an outside service with a credential.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq)]
#[serde(
    deny_unknown_fields,
    expecting = "a provider, as in { id = \"mine\", authorized_uris = [\"https://api.example.com/*\"] }"
)]
pub struct ProviderConfig {
    /// Its name, as in `creds set NAME`.
    // Those that ship with the program have it as their key.
    #[serde(default)]
    #[schemars(!default)]
    pub id: String,
    /// What it is, in one line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub about: Option<String>,
    /// Where its credential is authorized: exact URLs, or prefixes that end in `*`.
    #[schemars(length(min = 1))]
    pub authorized_uris: Vec<String>,
    /// The methods that it may be used with; all by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub methods: Option<Vec<String>>,
    /// Lets `%2F` stand inside a segment of the path.
    #[serde(default, skip_serializing_if = "is_false")]
    pub encoded_slash: bool,
    /// The addresses of its one exact host, which may be private ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub addresses: Option<Vec<String>>,
    /// The variables that hold its placeholder inside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<OneOrMany<String>>,
    /// How the credential is put into a request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inject: Option<OneOrMany<InjectConfig>>,
    /// How often it may be asked; without limit by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<RateConfig>,
    /// The headers of the agent that may pass; others are left out. All may pass by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub headers: Option<Vec<String>>,
    /// Where its placeholder may stand: `in-place`, where the provider and programs put keys, or `anywhere` in target, headers
    /// and, at the gateway, body. The default is `in-place` with an `inject`, and `anywhere` without.
    #[serde(default, deserialize_with = "word", skip_serializing_if = "Option::is_none")]
    pub placeholders: Option<Placeholders>,
    /// Whether the agent's own credentials are refused on its hosts; they are unless this is `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pinned: Option<bool>,
    /// Whether its service speaks gRPC or Connect of its own accord, so that each message of an answer may be passed on as it
    /// ends. If it is not said, the end of a message comes with the next one, or with the end of the answer.
    #[serde(default, skip_serializing_if = "is_false")]
    pub grpc: bool,
    /// Which model API it speaks, so that tokens are counted: `anthropic`, `openai` or `gemini`.
    #[serde(default, deserialize_with = "word", skip_serializing_if = "Option::is_none")]
    pub llm: Option<LlmFormat>,
}

/// `inject`: exactly one of `header`, `query` and `basic`.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq)]
#[serde(
    deny_unknown_fields,
    expecting = "a place, as in { header = \"authorization\", value = \"Bearer {{access_token}}\" }"
)]
pub struct InjectConfig {
    /// The header it is put into, with `value` as its content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub header: Option<String>,
    /// The query parameter it is put into, with `value` as its content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub query: Option<String>,
    /// `USER:PASSWORD` for basic authentication, as in `x-access-token:{{access_token}}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub basic: Option<String>,
    /// The content, as in `Bearer {{access_token}}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// The part of the authorized URIs that this is for; all of them by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
}

/// `rate`: how often a provider may be asked.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(deny_unknown_fields, expecting = "a rate, as in { requests_per_minute = 60 }")]
pub struct RateConfig {
    /// Requests per minute, on average.
    #[schemars(range(max = u32::MAX))]
    pub requests_per_minute: u32,
    /// Requests at once; as many as per minute by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = u32::MAX))]
    pub burst: Option<u32>,
}

/// Where a placeholder may stand.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema, PartialEq, Eq, Hash)]
#[serde(rename_all = "kebab-case")]
pub enum Placeholders {
    /// Where the provider and programs put keys.
    InPlace,
    /// Wherever the agent puts it. A service stores and shows what it receives, so the agent may reveal the credential to others.
    Anywhere,
}

/// A model API.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema, PartialEq, Eq, Hash)]
#[serde(rename_all = "lowercase")]
pub enum LlmFormat {
    /// The Messages API.
    Anthropic,
    /// Chat Completions and Responses.
    OpenAi,
    /// Gemini's own API, and Chat Completions as it answers them.
    Gemini,
}
