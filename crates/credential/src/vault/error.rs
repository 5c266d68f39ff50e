//! What can go wrong around the vault, a variant an operation. Paths and ids are in it, never a secret.

use std::io;
use std::path::PathBuf;

use crate::envelope::EnvelopeError;
use crate::fields::FieldNameError;
use crate::value::ValueError;

/// An error of the vault. Each text reads on after "failed to" and includes its cause; `source()` is for programs.
#[derive(Debug, thiserror::Error)]
pub enum VaultError {
    /// The name of a provider is not one.
    #[error(
        "use `{id}`: not the id of a provider, which is `name` or `@scope/name` in lower case, digits and hyphens"
    )]
    Id {
        /// What was given, cut.
        id: String,
    },
    /// The directory cannot be made or opened.
    #[error("open the vault {path}: {source}")]
    OpenDirectory {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The directory cannot be listed.
    #[error("list the vault {path}: {source}")]
    List {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The lock of the writers cannot be taken.
    #[error("lock {path}: {source}")]
    Lock {
        /// The lock's file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file of the vault cannot be read.
    #[error("read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file of the vault cannot be written.
    #[error("write {path}: {source}")]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A record cannot be removed.
    #[error("remove {path}: {source}")]
    Remove {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Something stands where a file of the vault should be.
    #[error("use {path}: a link or a device, where only a file is taken; move it away")]
    NotAFile {
        /// What is there.
        path: PathBuf,
    },
    /// A record was read that is not one.
    #[error(
        "understand {path}: it is damaged; restore it from a backup, or remove it and set the credential again: {source}"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: Damage,
    },
    /// A record cannot be opened with the keys that were given.
    #[error("decrypt {path}: {source}")]
    Decrypt {
        /// The file.
        path: PathBuf,
        /// Why.
        source: EnvelopeError,
    },
    /// A record cannot be sealed.
    #[error("encrypt {path}: {source}")]
    Encrypt {
        /// The file.
        path: PathBuf,
        /// Why.
        source: EnvelopeError,
    },
}

/// What is wrong with a record.
#[derive(Debug, thiserror::Error)]
pub enum Damage {
    /// It is not JSON of the right shape.
    #[error("it is not a record: {0}")]
    Shape(#[from] serde_json::Error),
    /// It is of a format this program does not know.
    #[error("it has format {0}, and this program knows 1 only")]
    Format(u32),
    /// It names a field wrongly.
    #[error("it names a field wrongly: {0}")]
    Name(#[from] FieldNameError),
    /// What is sealed in it holds a value that is refused.
    #[error("its field `{field}` is refused: {source}")]
    Value {
        /// The field.
        field: String,
        /// Why.
        source: ValueError,
    },
    /// What is sealed in it is not a list of fields.
    #[error("what is sealed in it is not a list of fields")]
    Payload,
    /// The fields it names are not those that are sealed in it.
    #[error("the fields it names are not those that are sealed in it")]
    Fields,
}
