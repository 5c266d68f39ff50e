//! Where credentials are kept: a directory with a sealed record each.
//!
//! ```text
//! <id>.json     0600  the names of the fields, and their values sealed; `@` and `/` of the id as `%40` and `%2F`
//! vault.lock          held by whoever writes; reading needs none
//! generation          8 octets that change with every change, for processes that watch
//! ```
//!
//! This is the only room of the crate with files in it. It keeps no plaintext between two calls, and never writes one.

mod directory;
mod error;
mod name;
mod record;

use std::fs::File;
use std::path::{Path, PathBuf};

use jiff::Timestamp;

use crate::envelope::{Keyring, Rewrapped};
use crate::fields::{Credential, FieldName};
use crate::value::Value;
use directory::{Directory, Writer};
pub use error::{Damage, VaultError};
use name::RecordId;
use record::{Record, pack};

/// A vault and the keys to it.
#[derive(Debug)]
pub struct Vault {
    directory: PathBuf,
    keyring: Keyring,
    /// Whose it is, where there are several that the same keys open.
    owner: Option<String>,
}

/// What a list says of a credential. No key is needed for it, and nothing vouches for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The provider's id.
    pub id: String,
    /// The names of its fields, in order.
    pub fields: Vec<FieldName>,
    /// When one of them was last set: UTC to the second, RFC 3339.
    pub updated: String,
}

/// What is in a vault.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// What can be told of, sorted by id.
    pub entries: Vec<Entry>,
    /// The ids of the records that cannot be read, each with why.
    pub failed: Vec<(String, String)>,
}

/// What a rotation did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rotation {
    /// How many records the first key wraps now and did not before.
    pub rewrapped: usize,
    /// How many it wrapped already.
    pub already: usize,
    /// The ids of the records that stay as they were, each with why. As long as there is one, no old key may be forgotten.
    pub failed: Vec<(String, String)>,
}

impl Vault {
    /// A vault in a directory. The directory need not be there: it is made by the first write.
    ///
    /// # Errors
    /// When something is there that is no directory, or may not be opened.
    pub fn open(directory: PathBuf, keyring: Keyring) -> Result<Self, VaultError> {
        Directory::find(&directory)?;
        Ok(Self { directory, keyring, owner: None })
    }

    /// The same of an owner whose name its records are bound to: one that is moved to another owner's vault cannot be decrypted.
    ///
    /// # Errors
    /// As [`Vault::open`].
    pub fn open_of(owner: &str, directory: PathBuf, keyring: Keyring) -> Result<Self, VaultError> {
        Ok(Self { owner: Some(owner.into()), ..Self::open(directory, keyring)? })
    }

    /// The ids of all records in a directory, sorted. No key is needed; a directory that is not there has none.
    ///
    /// # Errors
    /// When the directory cannot be listed.
    pub fn ids(directory: &Path) -> Result<Vec<String>, VaultError> {
        let Some(directory) = Directory::find(directory)? else { return Ok(Vec::new()) };
        Ok(records(&directory)?.into_iter().map(RecordId::into_string).collect())
    }

    /// The credential of a provider.
    ///
    /// # Errors
    /// When the id is not one, or the record cannot be read, decrypted or understood.
    pub fn get(&self, id: &str) -> Result<Option<Credential>, VaultError> {
        let id = id.parse()?;
        let Some(directory) = Directory::find(&self.directory)? else { return Ok(None) };
        self.read(&directory, &id)
    }

    /// Whether there is a record for a provider; it is not decrypted.
    ///
    /// # Errors
    /// When the id is not one, or the record cannot be read.
    pub fn contains(&self, id: &str) -> Result<bool, VaultError> {
        let id: RecordId = id.parse()?;
        let Some(directory) = Directory::find(&self.directory)? else { return Ok(false) };
        Ok(directory.read(&id.file())?.is_some())
    }

    /// Sets one field of a provider's credential and keeps the others. The record is sealed anew, by the first key.
    ///
    /// # Errors
    /// When the id is not one, a record that is there cannot be decrypted, or the new one cannot be written.
    pub fn set_field(&self, id: &str, name: FieldName, value: Value) -> Result<(), VaultError> {
        let id: RecordId = id.parse()?;
        let directory = Directory::make(&self.directory)?;
        let writer = directory.lock()?;
        let mut credential = self.read(&directory, &id)?.unwrap_or_default();
        credential.set(name, value);
        let sealed = self
            .keyring
            .seal(&pack(&credential), &self.context(&id))
            .map_err(|source| VaultError::Encrypt { path: directory.path_of(&id.file()), source })?;
        let updated = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let record = Record { fields: credential.names().cloned().collect(), updated, sealed };
        // Before as well: whoever is killed in between must not leave those who watch with the old value for ever.
        writer.advance_generation()?;
        write(&directory, &writer, &id, record)?;
        writer.advance_generation()
    }

    /// Removes a provider's credential: whether there was one. It needs no key, so that a damaged record can be removed too.
    ///
    /// # Errors
    /// When the id is not one, or the record cannot be removed.
    pub fn remove(&self, id: &str) -> Result<bool, VaultError> {
        let id: RecordId = id.parse()?;
        let Some(directory) = Directory::find(&self.directory)? else { return Ok(false) };
        let writer = directory.lock()?;
        // Also where there is none any more: whoever took it away may have been killed before it said so.
        writer.advance_generation()?;
        let removed = writer.remove(&id.file())?;
        writer.advance_generation()?;
        Ok(removed)
    }

    /// All credentials, without their values.
    ///
    /// # Errors
    /// When the directory cannot be listed. What fails for a single record is in the result.
    pub fn list(&self) -> Result<Listing, VaultError> {
        let mut listing = Listing::default();
        let Some(directory) = Directory::find(&self.directory)? else { return Ok(listing) };
        for id in records(&directory)? {
            match parse(&directory, &id) {
                Ok(Some(Record { fields, updated, .. })) => {
                    listing.entries.push(Entry { id: id.into_string(), fields, updated });
                }
                // It was removed since.
                Ok(None) => {}
                Err(error) => listing.failed.push((id.into_string(), error.to_string())),
            }
        }
        Ok(listing)
    }

    /// Wraps the data key of every record by the first key, one record after the other, while others may read and write. Killed
    /// half-way, each record is as before or done; another call does the rest.
    ///
    /// # Errors
    /// When the directory cannot be listed or locked. What fails for a single record is in the result.
    pub fn rotate(&self) -> Result<Rotation, VaultError> {
        let mut rotation = Rotation::default();
        let Some(directory) = Directory::find(&self.directory)? else { return Ok(rotation) };
        directory.lock()?.tidy()?;
        for id in records(&directory)? {
            match self.rewrap(&directory, &id) {
                Ok(Some(Rewrapped::Done(_))) => rotation.rewrapped += 1,
                Ok(Some(Rewrapped::Already)) => rotation.already += 1,
                Ok(None) => {}
                Err(error) => rotation.failed.push((id.into_string(), error.to_string())),
            }
        }
        Ok(rotation)
    }

    /// The file of a vault's generation, to read from: eight octets at offset 0 that differ after every change. It is made if it is
    /// not there and never replaced, so it stays good for as long as it is open, also in another process.
    ///
    /// # Errors
    /// When it, or the directory, cannot be made or opened.
    pub fn generation_file(directory: &Path) -> Result<File, VaultError> {
        Directory::make(directory)?.generation()
    }

    fn read(&self, directory: &Directory, id: &RecordId) -> Result<Option<Credential>, VaultError> {
        let Some(record) = parse(directory, id)? else { return Ok(None) };
        let path = || directory.path_of(&id.file());
        let payload = self.keyring.open(&record.sealed, &self.context(id));
        let payload = payload.map_err(|source| VaultError::Decrypt { path: path(), source })?;
        record.credential(&payload).map(Some).map_err(|source| VaultError::Damaged { path: path(), source })
    }

    fn rewrap(&self, directory: &Directory, id: &RecordId) -> Result<Option<Rewrapped>, VaultError> {
        let writer = directory.lock()?;
        let Some(record) = parse(directory, id)? else { return Ok(None) };
        let done = self
            .keyring
            .rewrap(record.sealed, &self.context(id))
            .map_err(|source| VaultError::Decrypt { path: directory.path_of(&id.file()), source })?;
        if let Rewrapped::Done(sealed) = &done {
            let record = Record { fields: record.fields, updated: record.updated, sealed: sealed.clone() };
            write(directory, &writer, id, record)?;
        }
        Ok(Some(done))
    }

    /// What a record's seal is bound to: another record's, or another owner's, cannot be put in its place.
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
