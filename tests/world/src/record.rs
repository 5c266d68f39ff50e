//! One line of the records file: what one server of the world saw. The shape is shared by the servers that write it and
//! the tests that read it; it must never carry anything that only one of the two understands.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Something that happened at one server of the world.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Which server: `resolver`, `web`, `lan`, `metadata`, `private`, `host-loopback`, `anywhere`, …
    pub server: String,
    /// What happened: `query`, `connect`, `tls`, `tls-failed`, `request`, `frame`, `malformed`, `closed`, `datagram`,
    /// `absent`, …
    pub event: String,
    /// Who came, as `address:port`; empty where a peer has no address.
    pub peer: String,
    /// Where it arrived, as `address:port`, or the name of a Unix socket.
    pub local: String,
    /// What it brought; the keys depend on the event.
    pub detail: Value,
}

impl Record {
    /// The text under `key` in the detail, or nothing when it is absent or not text.
    #[must_use]
    pub fn text(&self, key: &str) -> &str {
        self.detail.get(key).and_then(Value::as_str).unwrap_or_default()
    }

    /// The value of the first request header called `name` (any case), of a `request` record.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let headers = self.detail.get("headers")?.as_array()?;
        headers.iter().find_map(|pair| {
            let (key, value) = (pair.get(0)?.as_str()?, pair.get(1)?.as_str()?);
            key.eq_ignore_ascii_case(name).then_some(value)
        })
    }
}
