//! The key that signs audit records.

use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
use credential::Secret;

/// An Ed25519 key pair.
pub struct SigningKey(Ed25519KeyPair);

impl SigningKey {
    /// Makes a new key. Returns its PKCS#8 document as well, which is to be kept readable by its owner only.
    ///
    /// # Errors
    /// When the system gives no randomness.
    pub fn generate() -> Result<(Self, Secret), std::io::Error> {
        let unspecified = |_| std::io::Error::other("the signing key could not be made");
        let pair = Ed25519KeyPair::generate().map_err(unspecified)?;
        let document = pair.to_pkcs8().map_err(unspecified)?;
        let secret = Secret::new(document.as_ref().to_vec());
        Ok((Self(pair), secret))
    }

    /// Reads a key from its PKCS#8 document.
    ///
    /// # Errors
    /// When the document does not hold an Ed25519 key.
    pub fn from_pkcs8(document: &Secret) -> Result<Self, std::io::Error> {
        let rejected = |_| std::io::Error::other("it does not hold an Ed25519 key");
        Ed25519KeyPair::from_pkcs8(document.expose()).map(Self).map_err(rejected)
    }

    /// Returns the public key, 32 octets in hexadecimal.
    #[must_use]
    pub fn public(&self) -> String {
        super::entry::hex(self.0.public_key().as_ref())
    }

    pub(super) fn sign(&self, message: &[u8]) -> String {
        super::entry::hex(self.0.sign(message).as_ref())
    }
}

impl std::fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SigningKey({})", self.public())
    }
}
