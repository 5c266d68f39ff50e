//! What can go wrong with an image, a variant an operation.

use std::io;
use std::path::PathBuf;

/// An error of this crate: each reads on after "failed to".
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A reference to an image is not one.
    #[error("understand the image name `{name}`: {why}")]
    Reference {
        /// As it was given.
        name: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The store cannot be used.
    #[error("use the image store at {path}: {source}")]
    Store {
        /// The file or directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file of the store does not hold what was written to it.
    #[error("use the image store at {path}: {why}")]
    Damaged {
        /// The file or directory.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// No image has that name.
    #[error("find the image `{name}`: it is not in the store")]
    NoImage {
        /// As it was given.
        name: String,
        /// How one of that name comes here.
        advice: String,
    },
    /// What should be taken away is not there.
    #[error("remove the image `{name}`: it is not in the store")]
    NothingToRemove {
        /// As it was given.
        name: String,
    },
    /// An image is used by a run.
    #[error("remove the image `{name}`: a run is using it")]
    InUse {
        /// Its name.
        name: String,
    },
    /// What should be imported cannot be read.
    #[error("read {path}: {source}")]
    Read {
        /// The file or directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// What should be imported is none of the known forms.
    #[error("understand {path} as an image: {why}")]
    Form {
        /// The file or directory.
        path: PathBuf,
        /// What is missing or wrong.
        why: String,
    },
    /// A document of the image is malformed.
    #[error("understand the image's {what}: {why}")]
    Document {
        /// Which one.
        what: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// Something is not what its digest says.
    #[error("verify {what}: its digest is {found}, and {expected} was promised")]
    Digest {
        /// Which part.
        what: String,
        /// What was promised.
        expected: String,
        /// What came.
        found: String,
    },
    /// A registry does not give what was asked for.
    #[error("fetch {address}: {source}")]
    Registry {
        /// What was asked for, without what would grant it.
        address: String,
        /// Why it did not come.
        source: io::Error,
    },
    /// A layer cannot be unpacked.
    #[error("unpack layer {layer}: {source}")]
    Unpack {
        /// Its digest, or what stands for it.
        layer: String,
        /// Why.
        source: UnpackError,
    },
}

impl Error {
    /// What the person can do about it, where we know.
    #[must_use]
    pub fn remedy(&self) -> Option<String> {
        match self {
            Self::NoImage { advice, .. } => Some(advice.clone()),
            Self::NothingToRemove { .. } => Some("lockgate image ls names those that are here".into()),
            Self::InUse { .. } => Some("wait for the run to end, or end it".into()),
            Self::Unpack { source: UnpackError::TooLarge { .. }, .. } => {
                Some("if the image is to be trusted with that much, say --max-size".into())
            }
            Self::Damaged { path, .. } if path.ends_with("names.json") => Some(format!(
                    "it is damaged; move {} away, and pull or import the images again under their names",
                    path.display()
                )),
            Self::Damaged { .. } => Some("it is damaged; pull or import the image again".into()),
            Self::Store { source, .. } if is_about_room(source) => Some(
                "free some space, or name another place with XDG_DATA_HOME; images are kept there".into(),
            ),
            Self::Store { .. } => Some(
                "see whose it is and whether it may be written, or name another place with XDG_DATA_HOME; images are kept there".into(),
            ),
            _ => None,
        }
    }
}

/// Whether what failed is that there is no room.
fn is_about_room(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}

/// Why a layer cannot be unpacked.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    /// The archive itself is broken.
    #[error("the archive is malformed: {0}")]
    Malformed(String),
    /// An entry's name is not one that a layer may hold.
    #[error("the entry `{name}` {why}")]
    Entry {
        /// The name, escaped.
        name: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// It holds more than was allowed.
    #[error("it holds more than {bound} {unit}")]
    TooLarge {
        /// The bound.
        bound: u64,
        /// Of what.
        unit: &'static str,
    },
    /// An entry could not be written.
    #[error("write `{name}`: {source}")]
    Write {
        /// The entry's name, escaped.
        name: String,
        /// Why.
        source: io::Error,
    },
    /// The archive could not be read.
    #[error("read the archive: {0}")]
    Read(#[source] io::Error),
}
