//! Errors of the vault, one variant per operation. They hold paths and ids, never a secret.

use std::io;
use std::path::PathBuf;

use crate::envelope::EnvelopeError;
use crate::fields::FieldNameError;
use crate::value::ValueError;

/// An error of the vault. Each text reads on after "failed to" and includes its cause; `source()` is for programs.
#[derive(Debug, thiserror::Error)]
pub enum VaultError {
    /// The text is not the id of a provider.
    #[error(
        "use `{id}`: not the id of a provider, which is `name` or `@scope/name` in lower case, digits and hyphens"
    )]
    Id {
        /// The beginning of the text.
        id: String,
    },
    /// The directory cannot be made or opened.
    #[error("open the vault {path}: {source}")]
    OpenDirectory {
        /// The directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The directory cannot be listed.
    #[error("list the vault {path}: {source}")]
    List {
        /// The directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The writers' lock cannot be taken.
    #[error("lock {path}: {source}")]
    Lock {
        /// The lock's file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A file of the vault cannot be read.
    #[error("read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A file of the vault cannot be written.
    #[error("write {path}: {source}")]
    Write {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A record cannot be removed.
    #[error("remove {path}: {source}")]
    Remove {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Something other than a file stands in the place of a file of the vault.
    #[error("use {path}: a link or a device, where only a file is taken; move it away")]
    NotAFile {
        /// Its path.
        path: PathBuf,
    },
    /// A record is damaged.
    #[error("understand {path}: {}{source}", source.advice())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The damage.
        source: Damage,
    },
    /// A record cannot be decrypted with the given keys.
    #[error("decrypt {path}: {source}")]
    Decrypt {
        /// The file.
        path: PathBuf,
        /// The provider.
        id: String,
        /// Whose vault it is in; `None` for the person's own.
        owner: Option<String>,
        /// The cause.
        source: EnvelopeError,
    },
    /// A new credential was to be stored, and no other one can be decrypted with the given keys.
    #[error(
        "store `{id}`: with the keys that are given no other credential of the vault can be decrypted, so they are most likely \
         wrong ones; failed to {source}"
    )]
    WrongKeys {
        /// The provider.
        id: String,
        /// Why the first of the others cannot be decrypted.
        source: Box<VaultError>,
    },
    /// A credential has too much in its fields together.
    #[error(
        "store `{id}`: with this value its fields have {octets} octets together, and {most} at most are taken; set shorter ones, \
         or remove the credential and set only the fields that are used"
    )]
    TooLarge {
        /// The provider.
        id: String,
        /// What the names and values of its fields would have.
        octets: usize,
        /// What they may have.
        most: usize,
    },
    /// A record cannot be encrypted.
    #[error("encrypt {path}: {source}")]
    Encrypt {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: EnvelopeError,
    },
}

/// The damage of a record.
#[derive(Debug, thiserror::Error)]
pub enum Damage {
    /// It is not JSON of the right shape.
    #[error("it is not a record: {0}")]
    Shape(#[from] serde_json::Error),
    /// Its format is unknown to this program.
    #[error("it has format {0}, of another version of Lockgate, and this one knows 1 only")]
    Format(u32),
    /// It holds an invalid field name.
    #[error("it names a field wrongly: {0}")]
    Name(#[from] FieldNameError),
    /// A sealed value is invalid.
    #[error("its field `{field}` is refused: {source}")]
    Value {
        /// The field.
        field: String,
        /// The cause.
        source: ValueError,
    },
    /// The sealed payload is not a list of fields.
    #[error("what is sealed in it is not a list of fields")]
    Payload,
    /// The names beside the sealed payload are not those in it.
    #[error("the fields it names are not those that are sealed in it")]
    Fields,
}

impl Damage {
    /// What to do about it. A record of another version is whole.
    const fn advice(&self) -> &'static str {
        match self {
            Self::Format(_) => "",
            _ => "it is damaged; restore it from a backup, or remove it and set the credential again: ",
        }
    }
}
