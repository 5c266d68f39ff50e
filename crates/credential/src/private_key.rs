//! Recognises private keys among secrets. A private key is never exposed by value: whoever has it can sign until it is revoked.

use data_encoding::{BASE64_NOPAD, BASE64URL_NOPAD};
use memchr::memmem;
use serde::Deserialize;
use serde::de::IgnoredAny;
use zeroize::Zeroizing;

use crate::secret::Secret;

/// The beginning and the end of a PEM label (RFC 7468 §2).
const BEGIN: &[u8] = b"-----BEGIN ";
const DASHES: &[u8] = b"-----";
/// Part of the label of a private key, after RSA, EC, OPENSSH, ENCRYPTED or nothing. PGP's label continues after it.
const KEY: &[u8] = b"PRIVATE KEY";
/// The beginning of PuTTY's files, and of OpenSSH's inside their PEM.
const PUTTY: &[u8] = b"PuTTY-User-Key-File-";
const OPENSSH: &[u8] = b"openssh-key-v1\0";
/// DER tags (X.690 §8): integer, octet string, object identifier, sequence.
const INTEGER: u8 = 0x02;
const OCTETS: u8 = 0x04;
const OBJECT: u8 = 0x06;
const SEQUENCE: u8 = 0x30;

impl Secret {
    /// Returns whether the secret, or its base64 decoding, holds a private key: in PEM, OpenSSH's or PuTTY's form anywhere in it, or in
    /// DER or as a JSON web key as the whole of it. A secret is one line, so these are the forms in which one can hold a key.
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
    let is_pem = memmem::find_iter(text, BEGIN).any(|at| {
        let label = &text[at + BEGIN.len()..];
        let end = memmem::find(label, DASHES).unwrap_or(label.len());
        memmem::find(&label[..end], KEY).is_some()
    });
    let is_own_form = || [PUTTY, OPENSSH].iter().any(|mark| memmem::find(text, mark).is_some());
    is_pem || is_own_form() || is_der(text) || is_web_key(text)
}

/// Returns whether the octets are one sequence that begins like a private key: PKCS #8 (RFC 5958 §2), plain or encrypted (§3), RSA's
/// own form (RFC 8017 §A.1.2), EC's (RFC 5915 §3), or PKCS #12 with keys and certificates (RFC 7292 §4).
fn is_der(octets: &[u8]) -> bool {
    let Some((SEQUENCE, inside, [])) = element(octets) else { return false };
    let Some((first, value, rest)) = element(inside) else { return false };
    let Some((second, ..)) = element(rest) else { return false };
    match (first, value, second) {
        // In a public key of RSA's own form the first integer is the modulus.
        (INTEGER, [0 | 1], SEQUENCE | OCTETS | INTEGER) | (INTEGER, [3], SEQUENCE) => true,
        // A public key has a bit string here, and a certificate a sequence.
        (SEQUENCE, algorithm, OCTETS) => matches!(element(algorithm), Some((OBJECT, ..))),
        _ => false,
    }
}

/// Reads the first DER element. Returns its tag, its value and the rest.
fn element(octets: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let [tag, length, rest @ ..] = octets else { return None };
    let (length, rest) = match length {
        ..=0x7f => (usize::from(*length), rest),
        // No key is long enough for four octets of length.
        0x81..=0x83 => {
            let (long, rest) = rest.split_at_checked(usize::from(length - 0x80))?;
            (long.iter().fold(0, |sum, octet| sum << 8 | usize::from(*octet)), rest)
        }
        _ => return None,
    };
    let (value, rest) = rest.split_at_checked(length)?;
    Some((*tag, value, rest))
}

/// The fields that tell a private JSON web key, or a set of them, from a public one: RFC 7518 §6.2.2 and §6.3.2.
#[derive(Deserialize)]
struct WebKey {
    #[serde(rename = "kty")]
    kind: Option<IgnoredAny>,
    #[serde(rename = "d")]
    private: Option<IgnoredAny>,
    #[serde(default)]
    keys: Vec<WebKey>,
}

fn is_web_key(text: &[u8]) -> bool {
    fn is_private(key: &WebKey) -> bool {
        key.kind.is_some() && key.private.is_some() || key.keys.iter().any(is_private)
    }
    text.trim_ascii_start().starts_with(b"{")
        && serde_json::from_slice(text).is_ok_and(|key: WebKey| is_private(&key))
}

#[cfg(test)]
mod tests {
    use aws_lc_rs::encoding::{AsDer, EcPrivateKeyRfc5915Der, Pkcs8V1Der, PublicKeyX509Der};
    use aws_lc_rs::rsa::KeySize;
    use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair};
    use data_encoding::{BASE64, BASE64URL};
    use proptest::prelude::*;

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
                let in_words = BASE64.encode(text.as_bytes()).replace("LS0t", "LS0t ");
                assert!(in_words.contains(' ') && is_key(&in_words), "{text}");
            }
        }
        assert!(is_key("-----BEGIN PGP PRIVATE KEY BLOCK-----"));
    }

    #[test]
    fn a_key_without_pem_is_known_and_its_public_half_is_none() {
        let ec = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_ASN1_SIGNING).unwrap();
        let ed = Ed25519KeyPair::generate().unwrap();
        let rsa = aws_lc_rs::rsa::KeyPair::generate(KeySize::Rsa2048).unwrap();
        let own_ec: EcPrivateKeyRfc5915Der<'_> = ec.private_key().as_der().unwrap();
        let own_ec = own_ec.as_ref().to_vec();
        let with_public = ed.to_pkcs8().unwrap().as_ref().to_vec();
        let rsa: Pkcs8V1Der<'_> = rsa.as_der().unwrap();
        let rsa = rsa.as_ref().to_vec();
        let ec_pkcs8 = ec.to_pkcs8v1().unwrap();
        let ec_pkcs8 = ec_pkcs8.as_ref().to_vec();
        // In PKCS #8, RSA's own form is the octet string after the version and the algorithm.
        let (_, inside, _) = element(&rsa).unwrap();
        let behind = |octets| element(octets).unwrap().2;
        let (OCTETS, own_rsa, _) = element(behind(behind(inside))).unwrap() else { panic!() };
        for key in [&own_ec, &with_public, &ec_pkcs8, &rsa, &own_rsa.to_vec()] {
            for text in [BASE64.encode(key), BASE64_NOPAD.encode(key), BASE64URL.encode(key)] {
                assert!(is_key(&text), "{text}");
            }
            assert!(!is_der(&key[..key.len() - 1]) && !is_der(&[key, &[0][..]].concat()));
        }
        let public: PublicKeyX509Der<'_> = ec.public_key().as_der().unwrap();
        let public = public.as_ref().to_vec();
        assert!(!is_key(&BASE64.encode(&public)));
        // Encrypted: an algorithm, and an octet string in place of a public key's bit string.
        let mut encrypted = public;
        let (_, algorithm, _) = element(element(&encrypted).unwrap().1).unwrap();
        let at = 2 + 2 + algorithm.len();
        encrypted[at] = OCTETS;
        assert!(is_key(&BASE64.encode(&encrypted)));
        // PKCS #12: the version is 3, and what follows has a type.
        let (store, other) =
            (b"\x30\x07\x02\x01\x03\x30\x02\x06\x00", b"\x30\x07\x02\x01\x04\x30\x02\x06\x00");
        assert!(is_key(&BASE64.encode(store)) && !is_key(&BASE64.encode(other)));
        assert!(is_key(&BASE64.encode(b"openssh-key-v1\0\0\0\0\x04none")));
        assert!(is_key("PuTTY-User-Key-File-3: ssh-ed25519\\nEncryption: none"));
    }

    #[test]
    fn a_web_key_is_known_by_what_is_private_in_it() {
        let private = r#"{"kty":"EC","crv":"P-256","x":"AA","y":"AA","d":"AA"}"#;
        let set = format!(r#"{{"keys":[{{"kty":"RSA","n":"AA","e":"AQAB"}},{private}]}}"#);
        for text in [private, set.as_str()] {
            assert!(is_key(text) && is_key(&BASE64URL.encode(text.as_bytes())), "{text}");
            assert!(is_key(&BASE64.encode(format!("\n  {text}\n").as_bytes())), "{text}");
        }
        for text in [
            r#"{"kty":"RSA","n":"AA","e":"AQAB"}"#,
            r#"{"keys":[{"kty":"RSA","n":"AA"}]}"#,
            r#"{"d":"AA"}"#,
            "{",
        ] {
            assert!(!is_key(text), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_octets_are_looked_at(mut octets: Vec<u8>, tag in 0..8u8) {
            holds(&octets);
            octets.splice(0..0, [SEQUENCE, octets.len() as u8, INTEGER, 1, tag]);
            holds(&octets);
        }
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
