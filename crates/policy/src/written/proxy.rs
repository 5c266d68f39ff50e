//! The raw form of `[[proxy]]`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `[[proxy]]`: a proxy on the way out.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema, PartialEq)]
#[serde(
    deny_unknown_fields,
    expecting = "a proxy, as in { id = \"corp\", url = \"http://proxy.example.com:3128\" }"
)]
pub struct ProxyConfig {
    /// Its name, as in `egress.proxy`.
    pub id: String,
    /// Its URL: `http://`, `https://` or `socks5://`, a host and a port, and nothing else.
    pub url: String,
    /// The credential for authentication to it, as in `creds set NAME`: its fields `username` and `password`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credential: Option<String>,
}
