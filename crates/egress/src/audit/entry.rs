//! One record, and the hashes by which records hang together.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

/// The plane of the records that open and close a chain.
pub(super) const GATE: &str = "gate";

/// A SHA-256 in hexadecimal.
pub type Digest = String;

/// One record, as it is written.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Entry {
    /// Its number in the chain, from 0.
    pub seq: u64,
    /// When the exchange began, RFC 3339 UTC with microseconds.
    pub ts: String,
    /// The run.
    pub run: String,
    /// The way it came in; `gate` for the records that open and close a chain.
    pub plane: Cow<'static, str>,
    /// The rule that decided, if one did.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cap: Option<String>,
    /// A method, `CONNECT`, `TCP`, `DNS`, `open`, `expose`, `companion` or `close`.
    pub action: String,
    /// What was asked for.
    pub target: String,
    /// `allowed`, `denied` or `failed`.
    pub outcome: Cow<'static, str>,
    /// The guard that refused.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub guard: Option<String>,
    /// Why it was refused, or how it failed.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub reason: Option<String>,
    /// Whose credential was put into it, or into the sandbox.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub provider: Option<String>,
    /// The address that was dialled.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub address: Option<String>,
    /// Of a companion that is named: the digest of its image.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub image: Option<String>,
    /// Of a companion that is named: the hash of the first record of its own chain.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub chain: Option<Digest>,
    /// The upstream's HTTP status.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub status: Option<u16>,
    /// Octets from the agent to the upstream.
    pub sent: u64,
    /// Octets from the upstream to the agent.
    pub received: u64,
    /// How long it took, in microseconds.
    pub us: u64,
    /// The hash of the record before; 64 zeros for the first.
    pub prev: Digest,
}

/// SHA-256 in hexadecimal.
#[must_use]
pub fn digest(bytes: &[u8]) -> Digest {
    hex(aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, bytes).as_ref())
}

pub(super) fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut out = String::with_capacity(bytes.len() * 2);
    for octet in bytes {
        out.push(char::from(DIGITS[usize::from(octet >> 4)]));
        out.push(char::from(DIGITS[usize::from(octet & 15)]));
    }
    out
}
