//! The identifier of a run, after which its resources are named.

use std::fmt;
use std::str::FromStr;

/// Characters of an identifier: lower case and digits without look-alikes, safe in file, link and host names.
const ALPHABET: &[u8; 32] = b"abcdefghjkmnpqrstuvwxyz023456789";
const LENGTH: usize = 12;

/// Twelve characters, 60 random bits.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RunId(String);

/// The error for a text that is not a run identifier.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a run: an identifier has 12 letters and digits")]
pub struct RunIdError(String);

impl RunId {
    /// Creates an identifier from random octets.
    #[must_use]
    pub fn from_random(bytes: [u8; LENGTH]) -> Self {
        Self(bytes.iter().map(|b| char::from(ALPHABET[usize::from(*b) % ALPHABET.len()])).collect())
    }

    /// Returns the identifier as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for RunId {
    type Err = RunIdError;

    fn from_str(text: &str) -> Result<Self, RunIdError> {
        let shaped = text.len() == LENGTH && text.bytes().all(|b| ALPHABET.contains(&b));
        if shaped { Ok(Self(text.into())) } else { Err(RunIdError(text.escape_default().to_string())) }
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
