//! Records of the vault: the input as a record's file, and as the plaintext of one. An unreadable record is named, stays as it is,
//! and hides no other record; a readable one has the fields that a simple reader finds.

use std::fs;
use std::path::Path;

use credential::{Credential, Keyring, Secret, Stored, Value, Vault, VaultError};

use crate::scratch;

/// The key that sealed the seeds, and the newer key that replaces it.
const OLD: &str = "1111111111111111111111111111111111111111111111111111111111111111";
const NEW: &str = "2222222222222222222222222222222222222222222222222222222222222222";
const ID: &str = "gmail";
/// The context that a record's seal is bound to.
const CONTEXT: &[u8] = b"lockgate vault record\0gmail";

/// The fields of a record: a name, and its value.
type Fields = Vec<(String, Vec<u8>)>;

fn vault(directory: &Path, keys: &str) -> Vault {
    let keyring = Keyring::parse(keys).expect("constant keys");
    Vault::open(directory.to_owned(), keyring).expect("the directory is there")
}

/// Reads the input as the file of a record, and as what is sealed in one.
pub fn vault_record(bytes: &[u8]) {
    let folder = scratch::folder();
    read_as_file(folder.path(), bytes);
    let (record, expected) = sealed(bytes);
    let read = read_as_file(folder.path(), &record).map(|credential| fields(&credential));
    assert_eq!(read, expected, "{:?}", bytes.escape_ascii().to_string());
}

/// Puts a record beside a good one, and runs every operation of the vault on it.
fn read_as_file(directory: &Path, record: &[u8]) -> Option<Credential> {
    let file = directory.join(format!("{ID}.json"));
    let good = Value::new(Secret::from_text("value".into())).expect("a constant value");
    let both = vault(directory, &format!("{NEW},{OLD}"));
    let _ = Vault::remove(directory, ID).expect("a record is removed whatever it is");
    both.set_field("@good/one", "user".parse().expect("a name"), good.clone())
        .expect("the vault is writable");
    fs::write(&file, record).expect("the directory is writable");

    let before = both.get(ID);
    assert!(both.contains(ID).expect("it can be read"));
    assert_eq!(Vault::ids(directory).expect("the directory can be listed"), ["@good/one", ID]);
    let listing = both.list().expect("the directory can be listed");
    let told = listing.entries.iter().map(|entry| entry.id.as_str());
    assert!(told.chain(listing.failed.iter().map(|it| it.id.as_str())).eq(["@good/one", ID]), "{listing:?}");
    assert!(listing.failed.is_empty() || before.is_err(), "it opens and cannot be listed");
    let rotation = both.rotate().expect("the directory is writable");
    assert_eq!(rotation.rewrapped + rotation.already + rotation.failed.len(), 2);
    assert!(rotation.failed.iter().all(|it| it.id == ID), "{rotation:?}");
    if rotation.failed.is_empty() {
        // What could be read before can be read now, without the old key.
        let after = vault(directory, NEW).get(ID).map(|credential| credential.map(|c| fields(&c)));
        if let Ok(before) = &before {
            assert_eq!(after.expect("it was rotated"), before.as_ref().map(fields));
        }
    } else {
        assert!(before.is_err(), "it opens and cannot be rotated: {rotation:?}");
        assert_eq!(fs::read(&file).expect("it is still there"), record);
    }
    let set = both.set_field(ID, "other".parse().expect("a name"), good);
    // The good record opens, so one that cannot be decrypted is replaced.
    let is_replaced = matches!(&before, Err(VaultError::Decrypt { .. }));
    assert_eq!(set.is_ok(), before.is_ok() || is_replaced, "{set:?}");
    assert_eq!(matches!(set, Ok(Stored::Replaced { .. })), is_replaced, "{set:?}");
    assert!(set.is_ok() || fs::read(&file).is_ok_and(|left| rotation.failed.is_empty() || left == record));
    let other = both.get("@good/one").expect("the good record opens").expect("it is there");
    assert_eq!(other.field("user").map(Secret::expose), Some(b"value".as_slice()));
    before.ok().flatten()
}

fn fields(credential: &Credential) -> Fields {
    let value = |name: &str| credential.field(name).map_or(Vec::new(), |secret| secret.expose().to_vec());
    credential.names().map(|name| (name.to_string(), value(name.as_str()))).collect()
}

/// Seals the input into a record, and returns it with the fields a simple reader finds.
fn sealed(payload: &[u8]) -> (Vec<u8>, Option<Fields>) {
    let keyring = Keyring::parse(OLD).expect("a constant key");
    let sealed = keyring.seal(&Secret::new(payload.to_vec()), CONTEXT).expect("there is randomness");
    let fields = unpacked(payload);
    let names: Vec<&str> = fields.iter().flatten().map(|(name, _)| name.as_str()).collect();
    let record = serde_json::json!({
        "format": 1, "fields": names, "updated": "2026-01-02T03:04:05Z", "sealed": sealed,
    });
    (record.to_string().into_bytes(), fields)
}

/// Parses names and values, each with its length before it; the last value of a name counts.
fn unpacked(mut payload: &[u8]) -> Option<Fields> {
    let mut fields = std::collections::BTreeMap::new();
    while let [length, rest @ ..] = payload {
        let (name, rest) = rest.split_at_checked(usize::from(*length))?;
        let (length, rest) = rest.split_first_chunk()?;
        let (value, rest) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
        let word = name.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'_');
        let line = value.iter().all(|b| !matches!(b, b'\r' | b'\n' | 0));
        if !word || !(1..=64).contains(&name.len()) || !line || !(1..=65536).contains(&value.len()) {
            return None;
        }
        fields.insert(String::from_utf8_lossy(name).into_owned(), value.to_vec());
        payload = rest;
    }
    Some(fields.into_iter().collect())
}
