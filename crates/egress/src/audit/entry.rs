//! A record as it is read, and the hash that chains records.

use serde::Deserialize;

use super::word::{EntryPlane, GateAction, Outcome, Vocabulary, Word};

/// A SHA-256 in hexadecimal.
pub type Digest = String;

/// A record as it is read. Another version may have written it, so unknown fields are ignored.
#[derive(Clone, Debug, Deserialize)]
pub struct Entry {
    /// Its number in the chain, from 0.
    pub seq: u64,
    /// When the exchange began, RFC 3339 UTC with microseconds.
    pub ts: String,
    /// The run.
    pub run: String,
    /// The plane it came in by.
    pub plane: Word<EntryPlane>,
    /// The rule that decided, if one did.
    #[serde(default, rename = "cap")]
    pub rule: Option<String>,
    /// A method, `CONNECT`, `TCP`, `DNS`, or one of [`GateAction`].
    pub action: String,
    /// What was asked for. In the records of the run itself: the companion or the variable that is meant.
    pub target: String,
    /// Its outcome.
    pub outcome: Word<Outcome>,
    /// The guard that refused.
    #[serde(default)]
    pub guard: Option<String>,
    /// Why it was refused, or how it failed.
    #[serde(default)]
    pub reason: Option<String>,
    /// The provider whose credential was injected into the request, or exposed to the command.
    #[serde(default)]
    pub provider: Option<String>,
    /// The address that was dialled.
    #[serde(default)]
    pub address: Option<String>,
    /// In the record of a companion: the digest of its image.
    #[serde(default)]
    pub image: Option<String>,
    /// In the record of a companion: the hash of the first record of its own chain.
    #[serde(default)]
    pub chain: Option<Digest>,
    /// How many records were left out, where that is what it says.
    #[serde(default)]
    pub omitted: Option<u64>,
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
    /// Whether it is the record of an exchange, and not of the run itself.
    #[must_use]
    pub fn is_request(&self) -> bool {
        self.plane != Word::Known(EntryPlane::Gate)
    }

    /// Returns what it records of the run itself, if it does and this version knows the word.
    #[must_use]
    pub fn gate_action(&self) -> Option<GateAction> {
        if self.is_request() { None } else { GateAction::of(&self.action) }
    }

    /// Returns the companion whose chain it opens; `None` if it opens the command's, or none.
    #[must_use]
    pub fn opened_for(&self) -> Option<&str> {
        let is_companions = self.gate_action() == Some(GateAction::Open) && !self.target.is_empty();
        is_companions.then_some(&self.target)
    }

    /// Whether it closes its chain.
    #[must_use]
    pub fn closes(&self) -> bool {
        self.gate_action() == Some(GateAction::Close)
    }
}

/// Returns the SHA-256 in hexadecimal.
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
