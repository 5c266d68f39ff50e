//! A record of the vault: the content of its file, and the plaintext that is sealed inside.
//!
//! The names of the fields are also beside the sealed payload, so that listing needs no key; those in the payload are authoritative.
//! This module touches no file.

use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::error::Damage;
use crate::envelope::Sealed;
use crate::fields::{Credential, FieldName};
use crate::secret::Secret;
use crate::value::Value;

/// The only format.
const FORMAT: u32 = 1;

/// The content of a record's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) fields: Vec<FieldName>,
    /// The time when a field was last set, RFC 3339. For people only: it is not authenticated.
    pub(super) updated: String,
    pub(super) sealed: Sealed,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RecordConfig {
    format: u32,
    fields: Vec<String>,
    updated: String,
    sealed: Sealed,
}

impl Record {
    pub(super) fn parse(text: &[u8]) -> Result<Self, Damage> {
        let config: RecordConfig = serde_json::from_slice(text)?;
        if config.format != FORMAT {
            return Err(Damage::Format(config.format));
        }
        let fields = config.fields.iter().map(|name| name.parse()).collect::<Result<_, _>>()?;
        Ok(Self { fields, updated: config.updated, sealed: config.sealed })
    }

    pub(super) fn text(self) -> Result<Vec<u8>, serde_json::Error> {
        let fields = self.fields.iter().map(ToString::to_string).collect();
        let config = RecordConfig { format: FORMAT, fields, updated: self.updated, sealed: self.sealed };
        let mut text = serde_json::to_vec_pretty(&config)?;
        text.push(b'\n');
        Ok(text)
    }

    /// Parses the credential in a decrypted payload, if it has the fields that the record names.
    pub(super) fn credential(&self, payload: &Secret) -> Result<Credential, Damage> {
        let credential = unpack(payload)?;
        if credential.names().eq(&self.fields) { Ok(credential) } else { Err(Damage::Fields) }
    }
}

/// Returns the plaintext of a record: for each field the length of its name (1 octet), its name, the length of its value (4 octets,
/// big-endian) and its value. Not JSON: its serialisers leave copies of escaped values.
pub(super) fn pack(credential: &Credential) -> Secret {
    let length = credential.iter().map(|(name, value)| 5 + name.as_str().len() + value.expose().len()).sum();
    let mut out = Zeroizing::new(Vec::with_capacity(length));
    for (name, value) in credential.iter() {
        // By their types, names have at most 64 octets and values 64 KiB.
        out.push(name.as_str().len() as u8);
        out.extend_from_slice(name.as_str().as_bytes());
        out.extend_from_slice(&(value.expose().len() as u32).to_be_bytes());
        out.extend_from_slice(value.expose());
    }
    Secret::wiped(out)
}

fn unpack(payload: &Secret) -> Result<Credential, Damage> {
    let mut rest = payload.expose();
    let mut credential = Credential::default();
    while let Some((length, after)) = rest.split_first() {
        let (name, after) = after.split_at_checked(usize::from(*length)).ok_or(Damage::Payload)?;
        let (length, after) = after.split_first_chunk().ok_or(Damage::Payload)?;
        let length = usize::try_from(u32::from_be_bytes(*length)).map_err(|_| Damage::Payload)?;
        let (value, after) = after.split_at_checked(length).ok_or(Damage::Payload)?;
        let name: FieldName = std::str::from_utf8(name).map_err(|_| Damage::Payload)?.parse()?;
        let value = Value::new(Secret::new(value.to_vec()))
            .map_err(|source| Damage::Value { field: name.to_string(), source })?;
        credential.set(name, value);
        rest = after;
    }
    Ok(credential)
}

#[cfg(test)]
mod tests {
    use proptest::collection::{btree_map, vec};
    use proptest::prelude::*;

    use super::*;
    use crate::envelope::Keyring;

    fn record(fields: &[&str]) -> Record {
        let sealed = Keyring::generate().unwrap().0.seal(&Secret::new(Vec::new()), b"").unwrap();
        let fields = fields.iter().map(|name| name.parse().unwrap()).collect();
        Record { fields, updated: "2026-01-02T03:04:05Z".into(), sealed }
    }

    fn unpacked(octets: &[u8]) -> Result<Credential, Damage> {
        unpack(&Secret::new(octets.to_vec()))
    }

    #[test]
    fn a_record_reads_back() {
        let record = record(&["access_token", "user"]);
        assert_eq!(Record::parse(&record.clone().text().unwrap()).unwrap(), record);
    }

    #[test]
    fn what_is_no_record_is_named() {
        let text = String::from_utf8(record(&["user"]).text().unwrap()).unwrap();
        let parse = |text: &str| Record::parse(text.as_bytes()).unwrap_err();
        assert!(matches!(parse(""), Damage::Shape(_)));
        assert!(matches!(parse(&text[..text.len() / 2]), Damage::Shape(_)));
        assert!(matches!(parse(&text.replace("\"updated\"", "\"other\"")), Damage::Shape(_)));
        assert!(matches!(parse(&text.replace("\"format\": 1", "\"format\": 7")), Damage::Format(7)));
        assert!(matches!(parse(&text.replace("\"user\"", "\"us er\"")), Damage::Name(_)));
    }

    #[test]
    fn the_names_beside_must_be_those_inside() {
        let payload = Secret::new(b"\x01a\0\0\0\x01x\x01b\0\0\0\x01y".to_vec());
        assert_eq!(record(&["a", "b"]).credential(&payload).unwrap().field("b").unwrap().expose(), b"y");
        for fields in [["a"].as_slice(), &[], &["a", "c"], &["a", "b", "c"], &["b", "a"]] {
            assert!(matches!(record(fields).credential(&payload), Err(Damage::Fields)));
        }
    }

    #[test]
    fn a_payload_is_read_strictly() {
        for octets in
            [b"\x01".as_slice(), b"\x01a", b"\x01a\0\0\0", b"\x01a\0\0\0\x02x", b"\x02\xff\xff\0\0\0\x01x"]
        {
            assert!(matches!(unpacked(octets), Err(Damage::Payload)), "{octets:?}");
        }
        assert!(matches!(unpacked(b"\x01-\0\0\0\x01x"), Err(Damage::Name(_))));
        assert!(matches!(unpacked(b"\x01a\0\0\0\x01\n"), Err(Damage::Value { .. })));
        assert!(matches!(unpacked(b"\x01a\0\0\0\0"), Err(Damage::Value { .. })));
        assert!(unpacked(b"").unwrap().is_empty());
    }

    proptest! {
        #[test]
        fn a_payload_reads_back(fields in btree_map("[A-Za-z0-9_]{1,64}", vec(32..=255u8, 1..300), 0..6)) {
            let mut credential = Credential::default();
            for (name, value) in &fields {
                credential.set(name.parse().unwrap(), Value::new(Secret::new(value.clone())).unwrap());
            }
            let read = unpack(&pack(&credential)).unwrap();
            let read: Vec<_> = read.iter().map(|(n, v)| (n.to_string(), v.expose().to_vec())).collect();
            prop_assert_eq!(read, fields.into_iter().collect::<Vec<_>>());
        }

        #[test]
        fn no_payload_is_a_panic(octets in vec(any::<u8>(), 0..60)) {
            let _ = unpacked(&octets);
        }
    }
}
