//! Private keys among secrets: what signs for somebody for as long as it is believed, and so is never given out by value.

use data_encoding::{BASE64_NOPAD, BASE64URL_NOPAD};
use memchr::memmem;
use zeroize::Zeroizing;

use crate::secret::Secret;

/// How a label of PEM begins and ends (RFC 7468 §2).
const BEGIN: &[u8] = b"-----BEGIN ";
const DASHES: &[u8] = b"-----";
/// How the label of a private key ends: RSA, EC, OPENSSH, ENCRYPTED, or nothing before it. PGP's says more after it.
const KEY: &[u8] = b"PRIVATE KEY";

impl Secret {
    /// Whether a private key in PEM stands anywhere in it, as it is or with the whole of it in base64. A secret has one line, so
    /// these are the ways in which a key is kept in one.
    #[must_use]
    pub fn holds_private_key(&self) -> bool {
        if holds(self.expose()) {
            return true;
        }
        let packed: Zeroizing<Vec<u8>> =
            Zeroizing::new(self.expose().iter().copied().filter(|o| !b"= \t\r\n".contains(o)).collect());
        [BASE64_NOPAD, BASE64URL_NOPAD]
            .iter()
            .filter_map(|alphabet| alphabet.decode(&packed).ok().map(Zeroizing::new))
            .any(|octets| holds(&octets))
    }
}

fn holds(text: &[u8]) -> bool {
    memmem::find_iter(text, BEGIN).any(|at| {
        let label = &text[at + BEGIN.len()..];
        let end = memmem::find(label, DASHES).unwrap_or(label.len());
        memmem::find(&label[..end], KEY).is_some()
    })
}

#[cfg(test)]
mod tests {
    use data_encoding::{BASE64, BASE64URL};

    use super::*;

    fn is_key(text: &str) -> bool {
        Secret::from_text(text.into()).holds_private_key()
    }

    #[test]
    fn every_kind_of_private_key_is_known_wherever_it_stands() {
        for kind in ["", "RSA ", "EC ", "DSA ", "OPENSSH ", "ENCRYPTED "] {
            let pem =
                format!("-----BEGIN {kind}PRIVATE KEY-----\\nMIIE\\n-----END {kind}PRIVATE KEY-----\\n");
            let service = format!("{{\"type\":\"service_account\",\"private_key\":\"{pem}\"}}");
            let after = format!("-----BEGIN CERTIFICATE-----\\nMIIE\\n-----END CERTIFICATE-----\\n{pem}");
            for text in [&pem, &service, &after, &pem[..pem.len() / 2].to_owned()] {
                assert!(is_key(text), "{text}");
                assert!(is_key(&BASE64.encode(text.as_bytes())), "{text}");
                assert!(is_key(&BASE64_NOPAD.encode(text.as_bytes())), "{text}");
                assert!(is_key(&BASE64URL.encode(text.as_bytes())), "{text}");
            }
        }
        assert!(is_key("-----BEGIN PGP PRIVATE KEY BLOCK-----"));
    }

    #[test]
    fn other_secrets_are_not() {
        for text in [
            "ghp_0123456789abcdefghijklmnopqrstuvwxyz",
            "-----BEGIN CERTIFICATE-----\\nMIIE\\n-----END CERTIFICATE-----",
            "-----BEGIN PUBLIC KEY-----\\nMIIE\\n-----END PUBLIC KEY----- of a PRIVATE KEY",
            "my PRIVATE KEY-----",
            "",
        ] {
            assert!(!is_key(text) && !is_key(&BASE64.encode(text.as_bytes())), "{text}");
        }
    }
}
