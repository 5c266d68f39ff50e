//! AES-256-GCM for one layer of an envelope, and key generation.
//!
//! The caller owns a key's octets and wipes them. A key is expanded for each use: the library does not wipe an expanded key, so
//! none is kept.

use aws_lc_rs::aead::{AES_256_GCM, Aad, Nonce, RandomizedNonceKey};
use aws_lc_rs::rand;
use zeroize::Zeroizing;

use super::EnvelopeError;
use super::sealed::Layer;

/// The lengths of a key, and of the tag that GCM appends.
pub(super) const KEY: usize = 32;
const TAG: usize = 16;

/// The purpose of a layer. It is authenticated with the context, so a wrapped key is never taken for a payload.
#[derive(Clone, Copy)]
pub(super) enum Purpose {
    WrapKey,
    SealPayload,
}

impl Purpose {
    fn with(self, context: &[u8]) -> Aad<Vec<u8>> {
        let name = match self {
            Self::WrapKey => b"lockgate envelope 1 key\0".as_slice(),
            Self::SealPayload => b"lockgate envelope 1 payload\0",
        };
        Aad::from([name, context].concat())
    }
}

/// Generates a key.
pub(super) fn new_key() -> Result<Zeroizing<Vec<u8>>, EnvelopeError> {
    let mut key = Zeroizing::new(vec![0; KEY]);
    rand::fill(&mut key).map_err(|_| EnvelopeError::Refused)?;
    Ok(key)
}

/// Encrypts with a random nonce.
pub(super) fn encrypt(
    key: &[u8],
    plaintext: &[u8],
    purpose: Purpose,
    context: &[u8],
) -> Result<Layer, EnvelopeError> {
    let cipher = RandomizedNonceKey::new(&AES_256_GCM, key).map_err(|_| EnvelopeError::Refused)?;
    // With room for the tag, so that growing leaves no copy of the plaintext; wiped if encryption fails.
    let mut data = Zeroizing::new(Vec::with_capacity(plaintext.len() + TAG));
    data.extend_from_slice(plaintext);
    let sealed = cipher.seal_in_place_append_tag(purpose.with(context), &mut *data);
    let nonce = sealed.map_err(|_| EnvelopeError::Refused)?;
    Ok(Layer { nonce: *nonce.as_ref(), data: std::mem::take(&mut data) })
}

/// Decrypts a layer that was encrypted with this key, for this purpose and in this context.
pub(super) fn decrypt(
    key: &[u8],
    layer: &Layer,
    purpose: Purpose,
    context: &[u8],
) -> Result<Zeroizing<Vec<u8>>, EnvelopeError> {
    let cipher = RandomizedNonceKey::new(&AES_256_GCM, key).map_err(|_| EnvelopeError::Tampered)?;
    let nonce = Nonce::assume_unique_for_key(layer.nonce);
    let mut data = Zeroizing::new(layer.data.clone());
    let opened = cipher.open_in_place(nonce, purpose.with(context), &mut data);
    let length = opened.map_err(|_| EnvelopeError::Tampered)?.len();
    data.truncate(length);
    Ok(data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_opens_for_its_purpose_and_context_only() {
        let key = new_key().unwrap();
        let layer = encrypt(&key, b"plain", Purpose::WrapKey, b"a").unwrap();
        assert_eq!(layer.data.len(), 5 + TAG);
        assert_eq!(decrypt(&key, &layer, Purpose::WrapKey, b"a").unwrap().as_slice(), b"plain");
        assert_eq!(decrypt(&key, &layer, Purpose::SealPayload, b"a"), Err(EnvelopeError::Tampered));
        assert_eq!(decrypt(&key, &layer, Purpose::WrapKey, b"b"), Err(EnvelopeError::Tampered));
        assert_eq!(
            decrypt(&new_key().unwrap(), &layer, Purpose::WrapKey, b"a"),
            Err(EnvelopeError::Tampered)
        );
    }

    #[test]
    fn a_key_of_another_length_is_refused() {
        assert_eq!(encrypt(&[0; 16], b"", Purpose::WrapKey, b""), Err(EnvelopeError::Refused));
        let layer = Layer { nonce: [0; 12], data: vec![0; TAG] };
        assert_eq!(decrypt(&[0; 31], &layer, Purpose::WrapKey, b""), Err(EnvelopeError::Tampered));
    }
}
