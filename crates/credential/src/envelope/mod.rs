//! Envelope encryption: each record has a data key of its own, and a key of the ring encrypts only that data key.
//!
//! ```text
//! plaintext ── data key (fresh, AES-256-GCM) ──► payload      ┐
//! data key  ── key of the ring (AES-256-GCM) ──► wrapped key  ┴─ Sealed, with the id of the ring's key
//! ```
//!
//! To rotate a key takes wrapping 32 octets again; the payload is not decrypted. Both layers authenticate a context (the owner and
//! the id of the record): a value that was sealed in one context does not open in another. Random nonces are safe for 2³² uses
//! of a key (NIST SP 800-38D §8.3); a data key is used once, a key of the ring once per write.

mod cipher;
mod keyring;
mod sealed;

pub use keyring::{Keyring, Rewrapped};
pub use sealed::Sealed;

/// An error of the envelope encryption. No variant holds a key or a plaintext.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnvelopeError {
    /// No key was given.
    #[error("no key was given")]
    NoKeys,
    /// Nothing stands before or behind a comma.
    #[error("key {position} of those given is empty")]
    EmptyKey {
        /// Its position, counted from 1.
        position: usize,
    },
    /// One of the given words is not a key.
    #[error("key {position} of those given is not 32 octets in base64 or hexadecimal")]
    BadKey {
        /// Its position, counted from 1.
        position: usize,
    },
    /// The key that sealed the value is not in the ring.
    #[error("no key {id} among those given")]
    UnknownKey {
        /// Its id: the first 8 hexadecimal digits of the SHA-256 of the key.
        id: String,
    },
    /// The sealed value was changed or cut short, or belongs to another record.
    #[error("it is not what was sealed here: changed, cut short, or moved from another record")]
    Tampered,
    /// The stored form of a sealed value is invalid.
    #[error("its `{field}` is not {wanted}")]
    Malformed {
        /// The field.
        field: &'static str,
        /// The expected form.
        wanted: &'static str,
    },
    /// The system gave no randomness, or refused to encrypt.
    #[error("the cryptographic library refused")]
    Refused,
}
