//! The vault: a directory with one sealed record per credential.
//!
//! ```text
//! <id>.json     0600  the names of the fields, and their values sealed; `@` and `/` of the id as `%40` and `%2F`
//! vault.lock          held by a writer; reading needs no lock
//! generation          8 octets that differ after every change, for processes that watch
//! ```
//!
//! This is the only module of the crate that touches files. It keeps no plaintext between two calls, and never writes one.

mod directory;
mod error;
mod name;
mod record;

use std::fs::File;
use std::path::{Path, PathBuf};

use jiff::Timestamp;

use crate::envelope::{EnvelopeError, Keyring, Rewrapped};
use crate::fields::{Credential, FieldName};
use crate::value::Value;
use directory::{Directory, Writer};
pub use error::{Damage, VaultError};
use name::RecordId;
use record::{Record, pack};

/// The most octets of a credential's fields together. In JSON, where an octet takes up to two, they fit into the 256 KiB of the answer in
/// which a sidecar gets them.
const MOST: usize = 112 << 10;

/// A vault and its keys.
#[derive(Debug)]
pub struct Vault {
    directory: PathBuf,
    keyring: Keyring,
    /// The owner, if the same keys open the vaults of several owners.
    owner: Option<String>,
}

/// A credential in a listing. Reading it needs no key, and it is not authenticated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The provider's id.
    pub id: String,
    /// The names of its fields, in order.
    pub fields: Vec<FieldName>,
    /// The time when one of them was last set: UTC to the second, RFC 3339.
    pub updated: String,
}

/// The content of a vault.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// The readable records, sorted by id.
    pub entries: Vec<Entry>,
    /// The records that cannot be read.
    pub failed: Vec<FailedRecord>,
}

/// The result of a rotation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rotation {
    /// How many records were wrapped again.
    pub rewrapped: usize,
    /// How many records the first key wrapped already.
    pub already: usize,
    /// The records that stay unchanged. While there is one, no old key may be discarded.
    pub failed: Vec<FailedRecord>,
}

/// A record at which an operation failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedRecord {
    /// The provider's id.
    pub id: String,
    /// Why, as a fragment after "failed to".
    pub why: String,
}

impl FailedRecord {
    fn of(id: RecordId, error: &VaultError) -> Self {
        Self { id: id.into_string(), why: error.to_string() }
    }
}

/// What became of a record in which a field was set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stored {
    /// It was made, or its other fields were kept.
    Kept,
    /// It could not be decrypted, and was replaced by one of this field alone.
    Replaced {
        /// Why it could not be decrypted.
        why: String,
        /// The names of its other fields, which it had beside the sealed values.
        lost: Vec<FieldName>,
    },
}

impl Vault {
    /// Opens a vault in a directory. The directory need not exist: the first write creates it.
    ///
    /// # Errors
    /// If the path is not a directory, or it cannot be opened.
    pub fn open(directory: PathBuf, keyring: Keyring) -> Result<Self, VaultError> {
        Directory::find(&directory)?;
        Ok(Self { directory, keyring, owner: None })
    }

    /// Opens the vault of an owner. Its records are bound to the owner's name: one that is moved to another owner's vault cannot be
    /// decrypted.
    ///
    /// # Errors
    /// As [`Vault::open`].
    pub fn open_of(owner: &str, directory: PathBuf, keyring: Keyring) -> Result<Self, VaultError> {
        Ok(Self { owner: Some(owner.into()), ..Self::open(directory, keyring)? })
    }

    /// Returns the ids of all records in a directory, sorted. Needs no key. A directory that does not exist has no records.
    ///
    /// # Errors
    /// If the directory cannot be listed.
    pub fn ids(directory: &Path) -> Result<Vec<String>, VaultError> {
        let Some(directory) = Directory::find(directory)? else { return Ok(Vec::new()) };
        Ok(records(&directory)?.into_iter().map(RecordId::into_string).collect())
    }

    /// Returns the credential of a provider.
    ///
    /// # Errors
    /// If the id is invalid, or the record cannot be read, decrypted or parsed.
    pub fn get(&self, id: &str) -> Result<Option<Credential>, VaultError> {
        let id = id.parse()?;
        let Some(directory) = Directory::find(&self.directory)? else { return Ok(None) };
        self.read(&directory, &id)
    }

    /// Returns whether there is a record for a provider, without decrypting it.
    ///
    /// # Errors
    /// If the id is invalid, or the record cannot be read.
    pub fn contains(&self, id: &str) -> Result<bool, VaultError> {
        let id: RecordId = id.parse()?;
        let Some(directory) = Directory::find(&self.directory)? else { return Ok(false) };
        Ok(directory.read(&id.file())?.is_some())
    }

    /// Sets one field of a provider's credential and keeps the others. Seals the record again, with the first key. Replaces a record that
    /// cannot be decrypted, and makes a new one beside others, if another one can be: where none can, the keys are not those of this vault.
    ///
    /// # Errors
    /// If the id is invalid, an existing record is damaged, no record can be decrypted, the credential grows too large, or the new record
    /// cannot be written.
    pub fn set_field(&self, id: &str, name: FieldName, value: Value) -> Result<Stored, VaultError> {
        let id: RecordId = id.parse()?;
        let directory = Directory::make(&self.directory)?;
        let writer = directory.lock()?;
        writer.tidy()?;
        let (mut credential, stored) = match self.read(&directory, &id) {
            Ok(Some(found)) => (found, Stored::Kept),
            Ok(None) => {
                self.refuse_wrong_keys(&directory, &id)?;
                (Credential::default(), Stored::Kept)
            }
            Err(error) => (Credential::default(), self.replaced(&directory, &id, &name, error)?),
        };
        credential.set(name, value);
        let packed = pack(&credential);
        if packed.expose().len() > MOST {
            let octets = packed.expose().len();
            return Err(VaultError::TooLarge { id: id.into_string(), octets, most: MOST });
        }
        let sealed = self
            .keyring
            .seal(&packed, &self.context(&id))
            .map_err(|source| VaultError::Encrypt { path: directory.path_of(&id.file()), source })?;
        let updated = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let record = Record { fields: credential.names().cloned().collect(), updated, sealed };
        // Before the write as well: if this process is killed in between, watchers must not keep the old value for ever.
        writer.advance_generation()?;
        write(&directory, &writer, &id, record)?;
        writer.advance_generation()?;
        Ok(stored)
    }

    /// Removes a provider's credential from a directory. Returns whether there was one. Needs no key, so that a damaged record can be
    /// removed too, and one whose key is lost.
    ///
    /// # Errors
    /// If the id is invalid, or the record cannot be removed.
    pub fn remove(directory: &Path, id: &str) -> Result<bool, VaultError> {
        let id: RecordId = id.parse()?;
        let Some(directory) = Directory::find(directory)? else { return Ok(false) };
        let writer = directory.lock()?;
        // A killed write may have left the value beside the record.
        writer.tidy()?;
        // Even if there is no record: the process that removed it may have been killed before it advanced the generation.
        writer.advance_generation()?;
        let removed = writer.remove(&id.file())?;
        writer.advance_generation()?;
        Ok(removed)
    }

    /// Lists all credentials, without their values.
    ///
    /// # Errors
    /// If the directory cannot be listed. Errors of single records are in the result.
    pub fn list(&self) -> Result<Listing, VaultError> {
        let mut listing = Listing::default();
        let Some(directory) = Directory::find(&self.directory)? else { return Ok(listing) };
        for id in records(&directory)? {
            match parse(&directory, &id) {
                Ok(Some(Record { fields, updated, .. })) => {
                    listing.entries.push(Entry { id: id.into_string(), fields, updated });
                }
                // It was removed meanwhile.
                Ok(None) => {}
                Err(error) => listing.failed.push(FailedRecord::of(id, &error)),
            }
        }
        Ok(listing)
    }

    /// Wraps the data key of every record by the first key, one record after the other; other processes may read and write meanwhile.
    /// If it is killed half-way, each record is unchanged or done, and another call does the rest.
    ///
    /// # Errors
    /// If the directory cannot be listed or locked. Errors of single records are in the result.
    pub fn rotate(&self) -> Result<Rotation, VaultError> {
        let mut rotation = Rotation::default();
        let Some(directory) = Directory::find(&self.directory)? else { return Ok(rotation) };
        directory.lock()?.tidy()?;
        for id in records(&directory)? {
            match self.rewrap(&directory, &id) {
                Ok(Some(Rewrapped::Done(_))) => rotation.rewrapped += 1,
                Ok(Some(Rewrapped::Already)) => rotation.already += 1,
                Ok(None) => {}
                Err(error) => rotation.failed.push(FailedRecord::of(id, &error)),
            }
        }
        Ok(rotation)
    }

    /// Opens the file of a vault's generation for reading: eight octets at offset 0 that differ after every change. Creates it if
    /// necessary. No vault replaces the file, so an open descriptor stays valid, also in another process. Somebody who puts a vault back
    /// from a backup may: then the file that is open has no name any more.
    ///
    /// # Errors
    /// If the file or the directory cannot be created or opened.
    pub fn generation_file(directory: &Path) -> Result<File, VaultError> {
        Directory::make(directory)?.generation()
    }

    fn read(&self, directory: &Directory, id: &RecordId) -> Result<Option<Credential>, VaultError> {
        let Some(record) = parse(directory, id)? else { return Ok(None) };
        let payload = self.keyring.open(&record.sealed, &self.context(id));
        let payload = payload.map_err(|source| self.undecrypted(directory, id, source))?;
        let damaged = |source| VaultError::Damaged { path: directory.path_of(&id.file()), source };
        record.credential(&payload).map(Some).map_err(damaged)
    }

    fn undecrypted(&self, directory: &Directory, id: &RecordId, source: EnvelopeError) -> VaultError {
        let path = directory.path_of(&id.file());
        VaultError::Decrypt { path, id: id.as_str().into(), owner: self.owner.clone(), source }
    }

    /// Refuses to make a record with keys that decrypt none of those that are there. A damaged one says nothing of the keys.
    fn refuse_wrong_keys(&self, directory: &Directory, id: &RecordId) -> Result<(), VaultError> {
        let mut refused = None;
        for other in records(directory)? {
            match self.read(directory, &other) {
                Ok(Some(_)) => return Ok(()),
                Err(error @ VaultError::Decrypt { source: EnvelopeError::UnknownKey { .. }, .. }) => {
                    refused = refused.or(Some(error));
                }
                Ok(None) | Err(_) => {}
            }
        }
        let wrong = |source| VaultError::WrongKeys { id: id.as_str().into(), source: Box::new(source) };
        refused.map_or(Ok(()), |source| Err(wrong(source)))
    }

    /// Returns what replacing a record loses, which cannot be read for this error; or the error, if it is not to be replaced.
    fn replaced(
        &self,
        directory: &Directory,
        id: &RecordId,
        name: &FieldName,
        error: VaultError,
    ) -> Result<Stored, VaultError> {
        let VaultError::Decrypt { source, .. } = &error else { return Err(error) };
        let opens = |other: &RecordId| other != id && matches!(self.read(directory, other), Ok(Some(_)));
        if !records(directory)?.iter().any(opens) {
            return Err(error);
        }
        let why = source.to_string();
        let fields = parse(directory, id)?.map(|record| record.fields).unwrap_or_default();
        Ok(Stored::Replaced { why, lost: fields.into_iter().filter(|field| field != name).collect() })
    }

    fn rewrap(&self, directory: &Directory, id: &RecordId) -> Result<Option<Rewrapped>, VaultError> {
        let writer = directory.lock()?;
        let Some(record) = parse(directory, id)? else { return Ok(None) };
        let done = self
            .keyring
            .rewrap(record.sealed, &self.context(id))
            .map_err(|source| self.undecrypted(directory, id, source))?;
        if let Rewrapped::Done(sealed) = &done {
            let record = Record { fields: record.fields, updated: record.updated, sealed: sealed.clone() };
            write(directory, &writer, id, record)?;
        }
        Ok(Some(done))
    }

    /// Returns the context of a record's seal. It prevents that a record of another id or owner is put in its place.
    fn context(&self, id: &RecordId) -> Vec<u8> {
        match &self.owner {
            None => [b"lockgate vault record\0", id.as_str().as_bytes()].concat(),
            Some(owner) => {
                [b"lockgate vault record of\0", owner.as_bytes(), b"\0", id.as_str().as_bytes()].concat()
            }
        }
    }
}

fn records(directory: &Directory) -> Result<Vec<RecordId>, VaultError> {
    let mut ids: Vec<RecordId> =
        directory.files()?.iter().filter_map(|file| RecordId::of_file(file)).collect();
    ids.sort_unstable();
    Ok(ids)
}

fn parse(directory: &Directory, id: &RecordId) -> Result<Option<Record>, VaultError> {
    let file = id.file();
    let Some(text) = directory.read(&file)? else { return Ok(None) };
    let damaged = |source| VaultError::Damaged { path: directory.path_of(&file), source };
    Record::parse(&text).map(Some).map_err(damaged)
}

fn write(
    directory: &Directory,
    writer: &Writer<'_>,
    id: &RecordId,
    record: Record,
) -> Result<(), VaultError> {
    let file = id.file();
    let failed =
        |error: serde_json::Error| VaultError::Write { path: directory.path_of(&file), source: error.into() };
    writer.replace(&file, &record.text().map_err(failed)?)
}

#[cfg(test)]
mod tests;
