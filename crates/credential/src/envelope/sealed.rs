//! The stored form of a sealed value: JSON with base64 in it. [`Keyring`](super::Keyring) opens it.

use data_encoding::BASE64;
use serde::{Deserialize, Serialize};

use super::EnvelopeError;

/// The only version. Another number would mean other algorithms, and is refused.
const VERSION: u32 = 1;

/// The output of AES-256-GCM: ciphertext with tag, and the nonce.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Layer {
    pub(super) nonce: [u8; 12],
    pub(super) data: Vec<u8>,
}

/// The id of a key: the first 8 hexadecimal digits, lower case, of its SHA-256. It reveals nothing of 32 random octets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KeyId(pub(super) String);

/// A sealed value: `{"version": 1, "key_id", "wrapped_key", "wrapped_key_nonce", "ciphertext", "nonce"}`, octets in base64.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "SealedConfig", into = "SealedConfig")]
pub struct Sealed {
    pub(super) key: KeyId,
    pub(super) wrapped: Layer,
    pub(super) payload: Layer,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SealedConfig {
    version: u32,
    key_id: String,
    wrapped_key: String,
    wrapped_key_nonce: String,
    ciphertext: String,
    nonce: String,
}

impl TryFrom<SealedConfig> for Sealed {
    type Error = EnvelopeError;

    fn try_from(config: SealedConfig) -> Result<Self, EnvelopeError> {
        if config.version != VERSION {
            return Err(EnvelopeError::Malformed { field: "version", wanted: "1, the only one known here" });
        }
        let digits = config.key_id.len() == 8
            && config.key_id.bytes().all(|octet| matches!(octet, b'0'..=b'9' | b'a'..=b'f'));
        if !digits {
            return Err(EnvelopeError::Malformed { field: "key_id", wanted: "8 hexadecimal digits" });
        }
        Ok(Self {
            key: KeyId(config.key_id),
            wrapped: Layer {
                nonce: nonce("wrapped_key_nonce", &config.wrapped_key_nonce)?,
                data: octets("wrapped_key", &config.wrapped_key)?,
            },
            payload: Layer {
                nonce: nonce("nonce", &config.nonce)?,
                data: octets("ciphertext", &config.ciphertext)?,
            },
        })
    }
}

impl From<Sealed> for SealedConfig {
    fn from(sealed: Sealed) -> Self {
        Self {
            version: VERSION,
            key_id: sealed.key.0,
            wrapped_key: BASE64.encode(&sealed.wrapped.data),
            wrapped_key_nonce: BASE64.encode(&sealed.wrapped.nonce),
            ciphertext: BASE64.encode(&sealed.payload.data),
            nonce: BASE64.encode(&sealed.payload.nonce),
        }
    }
}

fn octets(field: &'static str, text: &str) -> Result<Vec<u8>, EnvelopeError> {
    BASE64.decode(text.as_bytes()).map_err(|_| EnvelopeError::Malformed { field, wanted: "base64" })
}

fn nonce(field: &'static str, text: &str) -> Result<[u8; 12], EnvelopeError> {
    let wrong = |_| EnvelopeError::Malformed { field, wanted: "12 octets in base64" };
    octets(field, text)?.try_into().map_err(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"{"version":1,"key_id":"0123abcd","wrapped_key":"AAECAw==","wrapped_key_nonce":"AAAAAAAAAAAAAAAA","ciphertext":"BAUG","nonce":"AQEBAQEBAQEBAQEB"}"#;

    #[test]
    fn the_text_is_stable() {
        let sealed: Sealed = serde_json::from_str(TEXT).unwrap();
        assert_eq!(sealed.payload, Layer { nonce: [1; 12], data: vec![4, 5, 6] });
        assert_eq!(serde_json::to_string(&sealed).unwrap(), TEXT);
    }

    #[test]
    fn what_is_not_a_sealed_value_is_named() {
        for (from, to, named) in [
            ("\"version\":1", "\"version\":2", "`version`"),
            ("0123abcd", "0123ABCD", "`key_id`"),
            ("0123abcd", "0123", "`key_id`"),
            ("AAECAw==", "AAECAw", "`wrapped_key`"),
            ("AQEBAQEBAQEBAQEB", "AQEB", "`nonce`"),
            ("BAUG", "!!!!", "`ciphertext`"),
            ("\"version\":1", "\"version\":1,\"more\":1", "more"),
        ] {
            let error = serde_json::from_str::<Sealed>(&TEXT.replacen(from, to, 1)).unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
    }
}
