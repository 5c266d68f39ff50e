//! The raw form of `[[inbound]]`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `[[inbound]]`: a port of the command that may be reached from outside.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema, PartialEq)]
#[serde(deny_unknown_fields, expecting = "a port, as in { container_port = 8080 }")]
pub struct InboundConfig {
    /// The TCP port inside.
    pub container_port: u16,
    /// The TCP port of this machine; the same by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_port: Option<u16>,
    /// Who may connect: addresses, or ranges as in `192.168.1.0/24`; only this machine by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allowed_sources: Option<Vec<String>>,
}
