//! One record as it is read again, and the hashes by which records hang together.

use serde::Deserialize;

use super::word::{EntryPlane, GateAction, Outcome, Vocabulary, Word};

/// A SHA-256 in hexadecimal.
pub type Digest = String;

/// One record, as it is read. Another version may have written it: what it has beside this is left alone.
#[derive(Clone, Debug, Deserialize)]
pub struct Entry {
    /// Its number in the chain, from 0.
    pub seq: u64,
    /// When the exchange began, RFC 3339 UTC with microseconds.
    pub ts: String,
    /// The run.
    pub run: String,
    /// The way it came in.
    pub plane: Word<EntryPlane>,
    /// The rule that decided, if one did.
    #[serde(default)]
    pub cap: Option<String>,
    /// A method, `CONNECT`, `TCP`, `DNS`, or one of [`GateAction`].
    pub action: String,
    /// What was asked for.
    pub target: String,
    /// What came of it.
    pub outcome: Word<Outcome>,
    /// The guard that refused.
    #[serde(default)]
    pub guard: Option<String>,
    /// Why it was refused, or how it failed.
    #[serde(default)]
    pub reason: Option<String>,
    /// Whose credential was put into it, or into the sandbox.
    #[serde(default)]
    pub provider: Option<String>,
    /// The address that was dialled.
    #[serde(default)]
    pub address: Option<String>,
    /// Of a companion that is named: the digest of its image.
    #[serde(default)]
    pub image: Option<String>,
    /// Of a companion that is named: the hash of the first record of its own chain.
    #[serde(default)]
    pub chain: Option<Digest>,
    /// The upstream's HTTP status.
    #[serde(default)]
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

impl Entry {
    /// Whether it is of an exchange, and not of the run itself.
    #[must_use]
    pub fn is_request(&self) -> bool {
        self.plane != Word::Known(EntryPlane::Gate)
    }

    /// What it says of the run itself, if that is what it is of, and this version knows it.
    #[must_use]
    pub fn gate_action(&self) -> Option<GateAction> {
        if self.is_request() { None } else { GateAction::of(&self.action) }
    }

    /// Whether it is the last of its chain.
    #[must_use]
    pub fn closes(&self) -> bool {
        self.gate_action() == Some(GateAction::Close)
    }
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
