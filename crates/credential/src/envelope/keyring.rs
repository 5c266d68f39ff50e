//! The keys that wrap data keys. The first encrypts, all decrypt.

use std::fmt;

use aws_lc_rs::digest::{SHA256, digest};
use data_encoding::{BASE64, BASE64_NOPAD, BASE64URL, BASE64URL_NOPAD, HEXLOWER, HEXLOWER_PERMISSIVE};
use zeroize::Zeroizing;

use super::EnvelopeError;
use super::cipher::{KEY, Purpose, decrypt, encrypt, new_key};
use super::sealed::{KeyId, Sealed};
use crate::secret::Secret;

/// The keys in use, at least one. They are wiped when the ring is dropped.
pub struct Keyring {
    first: Key,
    others: Vec<Key>,
}

/// The result of [`Keyring::rewrap`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rewrapped {
    /// The first key wraps it already.
    Already,
    /// The first key wraps it now.
    Done(Sealed),
}

struct Key {
    id: KeyId,
    octets: Zeroizing<Vec<u8>>,
}

impl Keyring {
    /// Parses keys of 32 octets each, in base64 (either alphabet, padded or not) or hexadecimal, with commas or white space
    /// between them. The first encrypts.
    ///
    /// # Errors
    /// If there is no key, nothing is before or behind a comma, or a word is not a key: the error names its position, never its text.
    pub fn parse(text: &str) -> Result<Self, EnvelopeError> {
        if text.trim().is_empty() {
            return Err(EnvelopeError::NoKeys);
        }
        // Nothing at a comma is a variable that was not set. Skipped, an old key would be the first one, and encrypt.
        let words = text.split(',').flat_map(|part| match part.trim() {
            "" => vec![""],
            keys => keys.split_whitespace().collect(),
        });
        let mut keys = words.zip(1..).map(|(word, position)| match word {
            "" => Err(EnvelopeError::EmptyKey { position }),
            word => decode(word).map(Key::of).ok_or(EnvelopeError::BadKey { position }),
        });
        let first = keys.next().ok_or(EnvelopeError::NoKeys)??;
        Ok(Self { first, others: keys.collect::<Result<_, _>>()? })
    }

    /// Generates a ring of one key. Also returns the key's text in base64, for the caller to keep.
    ///
    /// # Errors
    /// If the system gives no randomness.
    pub fn generate() -> Result<(Self, Secret), EnvelopeError> {
        let octets = new_key()?;
        let text = Secret::from_text(BASE64.encode(&octets));
        Ok((Self { first: Key::of(octets), others: Vec::new() }, text))
    }

    /// Seals a plaintext with a data key of its own, wrapped by the first key. To open it takes the same context.
    ///
    /// # Errors
    /// If the system gives no randomness.
    pub fn seal(&self, plaintext: &Secret, context: &[u8]) -> Result<Sealed, EnvelopeError> {
        let data_key = new_key()?;
        let payload = encrypt(&data_key, plaintext.expose(), Purpose::SealPayload, context)?;
        let wrapped = encrypt(&self.first.octets, &data_key, Purpose::WrapKey, context)?;
        Ok(Sealed { key: self.first.id.clone(), wrapped, payload })
    }

    /// Opens a value that was sealed with any key of the ring, in the same context.
    ///
    /// # Errors
    /// If its key is not in the ring, or it was not sealed in this context.
    pub fn open(&self, sealed: &Sealed, context: &[u8]) -> Result<Secret, EnvelopeError> {
        let (_, data_key) = self.unwrap(sealed, context)?;
        decrypt(&data_key, &sealed.payload, Purpose::SealPayload, context).map(Secret::wiped)
    }

    /// Wraps the data key by the first key, if another key wraps it. The payload stays sealed and unchanged.
    ///
    /// # Errors
    /// If its key is not in the ring, it was not sealed in this context, or the system gives no randomness.
    pub fn rewrap(&self, sealed: Sealed, context: &[u8]) -> Result<Rewrapped, EnvelopeError> {
        // Even if there is nothing to do: a record that cannot be opened must not count as safe.
        let (key, data_key) = self.unwrap(&sealed, context)?;
        drop(decrypt(&data_key, &sealed.payload, Purpose::SealPayload, context)?);
        if std::ptr::eq(key, &self.first) {
            return Ok(Rewrapped::Already);
        }
        let wrapped = encrypt(&self.first.octets, &data_key, Purpose::WrapKey, context)?;
        Ok(Rewrapped::Done(Sealed { key: self.first.id.clone(), wrapped, ..sealed }))
    }

    /// Unwraps the data key. Also returns the key that wrapped it.
    fn unwrap(&self, sealed: &Sealed, context: &[u8]) -> Result<(&Key, Zeroizing<Vec<u8>>), EnvelopeError> {
        let mut named = self.keys().filter(|key| key.id == sealed.key).peekable();
        if named.peek().is_none() {
            return Err(EnvelopeError::UnknownKey { id: sealed.key.0.clone() });
        }
        let open = |key: &Key| decrypt(&key.octets, &sealed.wrapped, Purpose::WrapKey, context).ok();
        // An id is 32 bits: two keys may share one.
        named.find_map(|key| Some((key, open(key)?))).ok_or(EnvelopeError::Tampered)
    }

    fn keys(&self) -> impl Iterator<Item = &Key> {
        std::iter::once(&self.first).chain(&self.others)
    }
}

impl fmt::Debug for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.keys().map(|key| &key.id.0)).finish()
    }
}

impl Key {
    fn of(octets: Zeroizing<Vec<u8>>) -> Self {
        let id = KeyId(HEXLOWER.encode(&digest(&SHA256, &octets).as_ref()[..4]));
        Self { id, octets }
    }
}

/// Decodes a key. 64 characters can only be hexadecimal: base64 of 32 octets has 43 or 44.
fn decode(word: &str) -> Option<Zeroizing<Vec<u8>>> {
    let octets = match word.len() {
        64 => HEXLOWER_PERMISSIVE.decode(word.as_bytes()),
        44 => BASE64.decode(word.as_bytes()).or_else(|_| BASE64URL.decode(word.as_bytes())),
        43 => BASE64_NOPAD.decode(word.as_bytes()).or_else(|_| BASE64URL_NOPAD.decode(word.as_bytes())),
        _ => return None,
    };
    let octets = octets.ok().map(Zeroizing::new)?;
    (octets.len() == KEY).then_some(octets)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ONE: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
    const TWO: &str = "ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff";

    fn ring(text: &str) -> Keyring {
        Keyring::parse(text).unwrap()
    }

    fn secret(text: &str) -> Secret {
        Secret::from_text(text.into())
    }

    #[test]
    fn keys_are_read_in_every_usual_writing() {
        let hex = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
        // The digest of the octets 0 to 31 begins with 630dcd29.
        for text in [ONE, &ONE[..43], hex, &hex.to_uppercase(), &format!(" {ONE}\n")] {
            assert_eq!(format!("{:?}", ring(text)), r#"["630dcd29"]"#);
        }
        let url = BASE64URL_NOPAD.encode(&[0xff; 32]);
        assert_eq!(ring(&url).first.id, ring(TWO).first.id);
        for separator in [",", " ", "\n", ", ", ",\n\t"] {
            let both = ring(&format!("{ONE}{separator}{TWO}"));
            assert_eq!((both.first.id.0.as_str(), both.others.len()), ("630dcd29", 1));
        }
    }

    #[test]
    fn what_is_no_key_is_named_by_its_position() {
        for text in ["", " \n"] {
            assert_eq!(Keyring::parse(text).err(), Some(EnvelopeError::NoKeys));
        }
        for (text, position) in [(",", 1), (",ONE", 1), ("ONE,", 2), ("ONE TWO, ,TWO", 3)] {
            let error = Keyring::parse(&text.replace("ONE", ONE).replace("TWO", TWO)).err();
            assert_eq!(error, Some(EnvelopeError::EmptyKey { position }), "{text}");
        }
        for text in ["short", &TWO[1..], &"!".repeat(44), &"z".repeat(64), &"A".repeat(42)] {
            let error = Keyring::parse(&format!("{ONE},{text}")).unwrap_err();
            assert_eq!(error, EnvelopeError::BadKey { position: 2 });
            assert!(!error.to_string().contains(text));
        }
    }

    #[test]
    fn a_generated_key_is_read_back() {
        let (made, text) = Keyring::generate().unwrap();
        let sealed = made.seal(&secret("x"), b"").unwrap();
        let read = ring(std::str::from_utf8(text.expose()).unwrap());
        assert_eq!(read.open(&sealed, b"").unwrap().expose(), b"x");
        assert_ne!(Keyring::generate().unwrap().0.first.id, made.first.id);
    }

    #[test]
    fn sealing_twice_gives_nothing_equal() {
        let ring = ring(ONE);
        let (one, two) = (ring.seal(&secret("x"), b"").unwrap(), ring.seal(&secret("x"), b"").unwrap());
        assert_ne!(one.payload.nonce, two.payload.nonce);
        assert_ne!(one.payload.data, two.payload.data);
        assert_ne!(one.wrapped, two.wrapped);
    }

    #[test]
    fn the_wrong_context_opens_nothing() {
        let ring = ring(ONE);
        let sealed = ring.seal(&secret("x"), b"record a").unwrap();
        for context in [b"record b".as_slice(), b"", b"record a\0"] {
            assert_eq!(ring.open(&sealed, context).err(), Some(EnvelopeError::Tampered));
            assert_eq!(ring.rewrap(sealed.clone(), context).err(), Some(EnvelopeError::Tampered));
        }
    }

    #[test]
    fn a_missing_key_is_named() {
        let sealed = ring(ONE).seal(&secret("x"), b"").unwrap();
        let error = ring(TWO).open(&sealed, b"").unwrap_err();
        assert_eq!(error.to_string(), "no key 630dcd29 among those given");
        assert!(matches!(ring(TWO).rewrap(sealed, b""), Err(EnvelopeError::UnknownKey { .. })));
    }

    #[test]
    fn another_key_of_the_same_id_is_tried() {
        let sealed = ring(ONE).seal(&secret("x"), b"").unwrap();
        let mut both = ring(&format!("{TWO},{ONE}"));
        both.first.id = both.others[0].id.clone();
        assert_eq!(both.open(&sealed, b"").unwrap().expose(), b"x");
        assert!(matches!(both.rewrap(sealed, b""), Ok(Rewrapped::Done(_))));
    }

    #[test]
    fn every_changed_bit_is_noticed() {
        let ring = ring(ONE);
        let sealed = ring.seal(&secret("key"), b"a").unwrap();
        let parts: [fn(&mut Sealed) -> &mut [u8]; 4] = [
            |s| &mut s.wrapped.nonce,
            |s| &mut s.wrapped.data,
            |s| &mut s.payload.nonce,
            |s| &mut s.payload.data,
        ];
        for part in parts {
            for at in 0..part(&mut sealed.clone()).len() {
                let mut changed = sealed.clone();
                part(&mut changed)[at] ^= 1;
                assert_eq!(ring.open(&changed, b"a").err(), Some(EnvelopeError::Tampered));
                assert_eq!(ring.rewrap(changed, b"a").err(), Some(EnvelopeError::Tampered));
            }
        }
        for length in 0..sealed.payload.data.len() {
            let mut cut = sealed.clone();
            cut.payload.data.truncate(length);
            assert_eq!(ring.open(&cut, b"a").err(), Some(EnvelopeError::Tampered));
        }
    }

    #[test]
    fn layers_cannot_be_exchanged() {
        let ring = ring(ONE);
        let (one, two) = (ring.seal(&secret("one"), b"a").unwrap(), ring.seal(&secret("two"), b"a").unwrap());
        let mixed = Sealed { payload: two.payload, ..one.clone() };
        assert_eq!(ring.open(&mixed, b"a").err(), Some(EnvelopeError::Tampered));
        let swapped = Sealed { wrapped: one.payload, payload: one.wrapped, key: one.key };
        assert_eq!(ring.open(&swapped, b"a").err(), Some(EnvelopeError::Tampered));
    }

    #[test]
    fn rewrapping_leaves_the_payload_sealed() {
        let sealed = ring(ONE).seal(&secret("x"), b"a").unwrap();
        let both = ring(&format!("{TWO},{ONE}"));
        let Ok(Rewrapped::Done(again)) = both.rewrap(sealed.clone(), b"a") else {
            panic!("nothing was done")
        };
        assert_eq!(again.payload, sealed.payload);
        assert_eq!(both.rewrap(again.clone(), b"a"), Ok(Rewrapped::Already));
        assert_eq!(ring(TWO).open(&again, b"a").unwrap().expose(), b"x");
        assert!(matches!(ring(ONE).open(&again, b"a"), Err(EnvelopeError::UnknownKey { .. })));
        assert_eq!(both.open(&sealed, b"a").unwrap().expose(), b"x");
    }

    proptest! {
        #[test]
        fn what_is_sealed_opens(octets in proptest::collection::vec(any::<u8>(), 0..2000), context: Vec<u8>) {
            let ring = ring(ONE);
            let sealed = ring.seal(&Secret::new(octets.clone()), &context).unwrap();
            let text = serde_json::to_string(&sealed).unwrap();
            let read: Sealed = serde_json::from_str(&text).unwrap();
            let opened = ring.open(&read, &context).unwrap();
            prop_assert_eq!(opened.expose(), octets);
        }
    }
}
