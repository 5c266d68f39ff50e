//! Envelope encryption: each record has a data key of its own, and only that key is encrypted by a key of the ring.
//!
//! ```text
//! plaintext ── data key (fresh, AES-256-GCM) ──► payload      ┐
//! data key  ── key of the ring (AES-256-GCM) ──► wrapped key  ┴─ Sealed, with the id of the ring's key
//! ```
//!
//! So a key is rotated by wrapping 32 octets again; the payload is not decrypted. A context (whose record this is, and for what)
//! is authenticated by both layers: what was sealed for one purpose opens for no other. Random nonces are safe for 2³² uses
//! of a key (NIST SP 800-38D §8.3); a data key is used once, a key of the ring once a write.

mod cipher;
mod keyring;
mod sealed;

pub use keyring::{Keyring, Rewrapped};
pub use sealed::Sealed;

/// What can go wrong around the envelope. No variant holds a key or a plaintext.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnvelopeError {
    /// No key was given.
    #[error(
        "no key was given; give 32 octets in base64 or hexadecimal, such as `openssl rand -base64 32` makes"
    )]
    NoKeys,
    /// One of the keys that were given is not one.
    #[error("key {position} of those given is not 32 octets in base64 or hexadecimal")]
    BadKey {
        /// Which, counted from 1.
        position: usize,
    },
    /// The key something was sealed with is not in the ring.
    #[error("no key {id} among those given")]
    UnknownKey {
        /// Its id: the first 8 hexadecimal digits of the SHA-256 of the key.
        id: String,
    },
    /// It was changed, belongs to another record, or is cut short.
    #[error("it is not what was sealed here: changed, cut short, or moved from another record")]
    Tampered,
    /// The text of a sealed value is not one.
    #[error("its `{field}` is not {wanted}")]
    Malformed {
        /// The field.
        field: &'static str,
        /// What would be right.
        wanted: &'static str,
    },
    /// The system gave no randomness, or refused to encrypt.
    #[error("the cryptographic library refused")]
    Refused,
}
