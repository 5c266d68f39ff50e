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

use crate::envelope::{Keyring, Rewrapped};
use crate::fields::{Credential, FieldName};
use crate::value::Value;
use directory::{Directory, Writer};
pub use error::{Damage, VaultError};
use name::RecordId;
use record::{Record, pack};

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
    /// The ids of the records that cannot be read, each with the error.
    pub failed: Vec<(String, String)>,
}

/// The result of a rotation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rotation {
    /// How many records were wrapped again.
    pub rewrapped: usize,
    /// How many records the first key wrapped already.
    pub already: usize,
    /// The ids of the records that stay unchanged, each with the error. While there is one, no old key may be discarded.
    pub failed: Vec<(String, String)>,
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

    /// Sets one field of a provider's credential and keeps the others. Seals the record again, with the first key.
    ///
    /// # Errors
    /// If the id is invalid, an existing record cannot be decrypted, or the new one cannot be written.
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
        // Before the write as well: if this process is killed in between, watchers must not keep the old value for ever.
        writer.advance_generation()?;
        write(&directory, &writer, &id, record)?;
        writer.advance_generation()
    }

    /// Removes a provider's credential. Returns whether there was one. Needs no key, so that a damaged record can be removed too.
    ///
    /// # Errors
    /// If the id is invalid, or the record cannot be removed.
    pub fn remove(&self, id: &str) -> Result<bool, VaultError> {
        let id: RecordId = id.parse()?;
        let Some(directory) = Directory::find(&self.directory)? else { return Ok(false) };
        let writer = directory.lock()?;
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
                Err(error) => listing.failed.push((id.into_string(), error.to_string())),
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
                Err(error) => rotation.failed.push((id.into_string(), error.to_string())),
            }
        }
        Ok(rotation)
    }

    /// Opens the file of a vault's generation for reading: eight octets at offset 0 that differ after every change. Creates it if
    /// necessary. The file is never replaced, so an open descriptor stays valid, also in another process.
    ///
    /// # Errors
    /// If the file or the directory cannot be created or opened.
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
