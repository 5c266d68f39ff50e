//! The store's records of images and layers.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{damaged, document, failed, replace};
use crate::account::Account;
use crate::config::Command;
use crate::digest::Digest;
use crate::error::Error;
use crate::unpack::{Lent, Ownership};

/// The record of an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageRecord {
    /// The digest of its configuration.
    pub digest: Digest,
    /// Its layers, bottom first.
    pub layers: Vec<LayerRecord>,
    /// How it is run.
    pub command: Command,
    /// The account of its command.
    pub account: Account,
    /// Whether its files have the owners that the image gives them.
    pub owners_kept: bool,
    /// The lent ids by which its files keep their owners, if they do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lent: Option<Lent>,
    /// When it was added, RFC 3339.
    pub added: String,
}

/// A layer of an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerRecord {
    /// Its digest.
    pub digest: Digest,
    /// Its size, unpacked.
    pub octets: u64,
}

/// An entry of [`Store::list`](super::Store::list).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its name.
    pub name: Option<String>,
    /// Its record.
    pub record: ImageRecord,
    /// The image that had the name before, if it was another.
    pub before: Option<Digest>,
}

impl ImageRecord {
    /// Returns the size of all its layers, in octets.
    #[must_use]
    pub fn octets(&self) -> u64 {
        self.layers.iter().map(|layer| layer.octets).sum()
    }

    pub(crate) fn ownership(&self) -> Ownership {
        match self.lent {
            Some(lent) => Ownership::Lent(lent),
            None if self.owners_kept => Ownership::Keep,
            None => Ownership::Squash,
        }
    }

    pub(crate) fn new(
        digest: Digest,
        layers: Vec<LayerRecord>,
        command: Command,
        account: Account,
        ownership: Ownership,
    ) -> Self {
        let added = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let lent = match ownership {
            Ownership::Lent(lent) => Some(lent),
            Ownership::Keep | Ownership::Squash => None,
        };
        let owners_kept = ownership == Ownership::Keep;
        Self { digest, layers, command, account, owners_kept, lent, added }
    }

    pub(super) fn read(path: &Path) -> Result<Self, Error> {
        let octets = document::read(path).map_err(|source| failed(path, source))?;
        serde_json::from_slice(&octets).map_err(|e| damaged(path, &e))
    }

    pub(super) fn write(&self, path: &Path) -> Result<(), Error> {
        let text = serde_json::to_vec_pretty(self).map_err(|e| damaged(path, &e))?;
        replace(path, &text)
    }
}
