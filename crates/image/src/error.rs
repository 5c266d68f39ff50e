//! The errors of this crate, one variant per failed operation.

use std::io;
use std::path::PathBuf;

use crate::platform::here;

/// An error of this crate. Its text continues "failed to".
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A reference to an image is malformed.
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
    /// Others could write to the store, whose files become root file systems.
    #[error(
        "use the image store at {path}: others may write to it (mode {mode:04o}), and could have changed what is in it"
    )]
    StoreOfOthers {
        /// Its directory, or a part of it.
        path: PathBuf,
        /// The directory's mode.
        mode: u32,
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
        /// How to get an image of that name.
        advice: String,
    },
    /// The image to remove does not exist.
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
    /// What no image needs any more could not be deleted.
    #[error("delete {path}: {why}{}", and_more(*.more))]
    Undeleted {
        /// The first such file or directory.
        path: PathBuf,
        /// Why.
        why: String,
        /// How many more there are.
        more: usize,
    },
    /// The source of an import is not there.
    #[error("import {path}: there is no such file or directory")]
    NoSource {
        /// As it was given.
        path: PathBuf,
    },
    /// The source of an import cannot be read.
    #[error("read {path}: {source}")]
    Read {
        /// The file or directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The source of an import has none of the known forms.
    #[error("understand {path} as an image: {why}")]
    Form {
        /// The file or directory.
        path: PathBuf,
        /// What is missing or wrong.
        why: String,
    },
    /// A root file system is imported without a name.
    #[error("import {path}: a root file system has no name of its own")]
    NoName {
        /// The file or directory.
        path: PathBuf,
    },
    /// An import has no use for an option.
    #[error("import {path}: {why}")]
    Superfluous {
        /// The file or directory.
        path: PathBuf,
        /// Why it has none.
        why: &'static str,
        /// What to do about it.
        remedy: &'static str,
    },
    /// A document of the image is malformed.
    #[error("understand the image's {what}: {why}")]
    Document {
        /// Which one.
        what: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// The image is for another machine.
    #[error("understand the image's configuration: it is for {platform}, and this machine is {here}", here = here())]
    OtherMachine {
        /// The system and the architecture, escaped.
        platform: String,
    },
    /// A part does not match its digest.
    #[error("verify {what}: its digest is {found}, and {expected} was promised")]
    Digest {
        /// Which part.
        what: String,
        /// The expected digest.
        expected: String,
        /// The actual digest.
        found: String,
    },
    /// A request to a registry failed.
    #[error("fetch {address}: {source}")]
    Registry {
        /// The address, without the query, which may grant access.
        address: String,
        /// Why.
        source: io::Error,
    },
    /// A layer cannot be unpacked.
    #[error("unpack layer {layer}: {source}")]
    Unpack {
        /// Its digest, or a substitute.
        layer: String,
        /// Why.
        source: UnpackError,
    },
}

impl Error {
    /// Returns what the user can do about it, if known.
    #[must_use]
    pub fn remedy(&self) -> Option<String> {
        match self {
            Self::Reference { .. } => {
                Some("write it as in registry.example.com/team/app:1.2".into())
            }
            Self::Superfluous { remedy, .. } => Some((*remedy).into()),
            Self::NoSource { .. } => Some("name an archive, or a directory that holds an image or a root".into()),
            Self::NoName { .. } => Some("give it one with --name".into()),
            Self::NoImage { advice, .. } => Some(advice.clone()),
            Self::NothingToRemove { .. } => Some("lockgate image ls names those that are here".into()),
            Self::InUse { .. } => Some("wait for the run to end, or end it".into()),
            Self::Undeleted { .. } => Some(
                "mend that, then lockgate image prune; files of ids that are not lent to you now can be deleted by root alone".into(),
            ),
            Self::Unpack { source: UnpackError::TooLarge { .. }, .. } => {
                Some("to allow more, pass --max-size SIZE".into())
            }
            Self::StoreOfOthers { path, .. } => Some(format!(
                "move it away, and pull or import the images again; if nobody can have written there, chmod go-w {}. If that changes \
                 nothing, its file system keeps no modes: name a place on another with XDG_DATA_HOME",
                path.display()
            )),
            Self::Damaged { path, .. } if path.ends_with("names.json") => Some(format!(
                    "it is damaged; move {} away, and pull or import the images again under their names",
                    path.display()
                )),
            Self::Damaged { .. } => Some("it is damaged; pull or import the image again".into()),
            Self::Store { source, .. } | Self::Unpack { source: UnpackError::Write { source, .. }, .. }
                if is_about_room(source) => Some(
                "free some space (lockgate image prune removes what broken-off pulls left), or name another place with \
                 XDG_DATA_HOME; images are kept there"
                    .into(),
            ),
            Self::Store { source, .. } if source.kind() == io::ErrorKind::Unsupported => Some(
                "name a place on another file system, as ext4, xfs or btrfs, with XDG_DATA_HOME; images are kept there"
                    .into(),
            ),
            Self::Store { .. } => Some(
                "see whose it is and whether it may be written, or name another place with XDG_DATA_HOME; images are kept there".into(),
            ),
            _ => None,
        }
    }
}

fn and_more(more: usize) -> String {
    if more == 0 { String::new() } else { format!("; and {more} more") }
}

/// Whether an operation failed for lack of space.
pub(crate) fn is_about_room(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}

/// The unit of the bound on octets. Headers and padding count, so it is not what the files hold.
pub(crate) const OCTETS: &str = "octets, counted as an archive";

/// Why a layer cannot be unpacked.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    /// The archive itself is broken.
    #[error("the archive is malformed: {0}")]
    Malformed(String),
    /// An entry's name is not allowed in a layer.
    #[error("the entry `{name}` {why}")]
    Entry {
        /// The name, escaped.
        name: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The layer exceeds a bound.
    #[error("it holds more than {bound} {unit}")]
    TooLarge {
        /// The bound.
        bound: u64,
        /// The unit of the bound.
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
