//! One line of the records file: an event at one server of the world. The servers write it and the tests read it; it must contain nothing
//! that only one of the two understands.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// An event at one server of the world.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The server: `resolver`, `web`, `lan`, `metadata`, `private`, `host-loopback`, `anywhere`, …
    pub server: String,
    /// The event: `query`, `connect`, `tls`, `tls-failed`, `request`, `frame`, `malformed`, `closed`, `datagram`, `absent`, …
    pub event: String,
    /// The peer, as `address:port`; empty if it has no address.
    pub peer: String,
    /// The local address, as `address:port`, or the name of a Unix socket.
    pub local: String,
    /// The details; the keys depend on the event.
    pub detail: Value,
}

impl Record {
    /// Returns the text under `key` in the details, or an empty text if it is absent or not text.
    #[must_use]
    pub fn text(&self, key: &str) -> &str {
        self.detail.get(key).and_then(Value::as_str).unwrap_or_default()
    }

    /// Returns the value of the first request header called `name` (any case), of a `request` record.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let headers = self.detail.get("headers")?.as_array()?;
        headers.iter().find_map(|pair| {
            let (key, value) = (pair.get(0)?.as_str()?, pair.get(1)?.as_str()?);
            key.eq_ignore_ascii_case(name).then_some(value)
        })
    }
}
