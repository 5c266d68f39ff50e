//! Removes images, by name or all without a name, and the layers that no image has any more. Images that a run uses stay.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;

use super::layer::size_in;
use super::{Named, Records, Store, damaged, document, failed, layer_name, names_meant};
use crate::digest::Digest;
use crate::error::Error;
use crate::unpack::Ownership;

/// What was removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// The number of images.
    pub images: usize,
    /// The number of layers that were deleted.
    pub layers: usize,
    /// Their unpacked size, and that of what killed processes had left and is deleted, in octets.
    pub octets: u64,
    /// Why no layer was removed, if the record of an image that stays cannot be read: any layer may be of that image.
    pub kept: Option<String>,
    /// What could not be deleted. The next removal of what nothing needs tries again.
    pub undeleted: Vec<Undeleted>,
}

/// What nothing needs, and could not be deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Undeleted {
    /// The file or directory.
    pub path: PathBuf,
    /// Why.
    pub why: String,
}

/// What nothing needs, and is to be deleted.
struct Unneeded {
    path: PathBuf,
    layers: usize,
    octets: u64,
}

impl Unneeded {
    /// Returns what a killed process left.
    fn left(path: PathBuf) -> Self {
        Self { layers: 0, octets: octets_in(&path), path }
    }
}

impl Removed {
    /// Checks that everything was deleted that was to be.
    ///
    /// # Errors
    /// When something was not: it tells of the first.
    pub fn check_deleted(&self) -> Result<(), Error> {
        let Some(Undeleted { path, why }) = self.undeleted.first() else { return Ok(()) };
        Err(Error::Undeleted { path: path.clone(), why: why.clone(), more: self.undeleted.len() - 1 })
    }

    /// Deletes what nothing needs. What cannot be deleted does not count, and does not keep the rest.
    fn delete(&mut self, all: Vec<Unneeded>) {
        for Unneeded { path, layers, octets } in all {
            match delete(&path) {
                Ok(()) => {
                    self.layers += layers;
                    self.octets += octets;
                }
                Err(error) => self.undeleted.push(Undeleted { path, why: error.to_string() }),
            }
        }
    }
}

impl Store {
    /// Removes names, and each image whose last name is among them. Of a reference with a digest and no tag, these are all names that
    /// its repository gives the image.
    ///
    /// # Errors
    /// When there is none of one of these names, or a run uses it: then all stay.
    pub fn remove(&self, names: &[impl AsRef<str>]) -> Result<Removed, Error> {
        let mut removed = Removed::default();
        let unneeded = {
            let _lock = self.lock(FlockOperation::LockExclusive)?;
            let names = self.names_without(names)?;
            match self.write_names(&names) {
                // The room for them comes from what is removed, so that goes first. A name without an image, if this ends in
                // between, counts as none.
                Err(Error::Store { source, .. }) if is_full(&source) => {
                    let unneeded = self.collect(&names, &mut removed)?;
                    removed.delete(unneeded);
                    self.write_names(&names)?;
                    Vec::new()
                }
                written => {
                    written?;
                    self.collect(&names, &mut removed)?
                }
            }
        };
        removed.delete(unneeded);
        Ok(removed)
    }

    /// Returns the names that are left after some are removed. The caller holds the store's lock.
    fn names_without(&self, removed: &[impl AsRef<str>]) -> Result<BTreeMap<String, Named>, Error> {
        let names = self.names()?;
        let (mut left, mut images) = (names.clone(), Vec::new());
        for name in removed.iter().map(AsRef::as_ref) {
            let digest = self.find(name).map_err(|error| match error {
                Error::NoImage { name, .. } => Error::NothingToRemove { name },
                other => other,
            })?;
            let mut own = names_meant(&names, name);
            own.retain(|name| names[name].image == digest);
            // The beginning of a digest means all names of its image.
            let is_meant = |name: &str, image: &Digest| {
                if own.is_empty() { *image == digest } else { own.contains(name) }
            };
            left.retain(|name, named| !is_meant(name, &named.image));
            images.push((name, digest));
        }
        // Only now is known which images lose their last name.
        for (name, digest) in images {
            let keeps_a_name = left.values().any(|named| named.image == digest);
            if !keeps_a_name && !is_free(&self.image(&digest))? {
                return Err(Error::InUse { name: name.into() });
            }
        }
        Ok(left)
    }

    /// Removes every image without a name, every layer without an image, and the leftovers of killed processes.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn prune(&self) -> Result<Removed, Error> {
        let mut removed = Removed::default();
        let (unneeded, left) = {
            let _lock = self.lock(FlockOperation::LockExclusive)?;
            // First, or what is moved out of its place next would be among them, and count twice.
            let left = [self.abandoned(), self.broken_off()].concat();
            (self.collect(&self.names()?, &mut removed)?, left)
        };
        let left = left.into_iter().map(Unneeded::left).collect();
        removed.delete(unneeded);
        removed.delete(left);
        Ok(removed)
    }

    /// Moves everything unnamed and unused away, under the lock. The caller deletes it later, without the lock.
    fn collect(
        &self,
        names: &BTreeMap<String, Named>,
        removed: &mut Removed,
    ) -> Result<Vec<Unneeded>, Error> {
        let named: BTreeSet<_> = names.values().map(|named| &named.image).collect();
        let stays =
            |digest: &Digest| Ok::<_, Error>(named.contains(digest) || !is_free(&self.image(digest))?);
        let mut wanted = BTreeSet::new();
        let mut unwanted = Vec::new();
        let Records { read, unreadable } = self.records()?;
        for record in read {
            if stays(&record.digest)? {
                let ownership = record.ownership();
                wanted.extend(record.layers.iter().map(|layer| layer_name(&layer.digest, ownership)));
            } else {
                unwanted.push(record.digest);
            }
        }
        for (digest, error) in unreadable {
            if stays(&digest)? {
                removed.kept = Some(error.to_string());
            } else {
                unwanted.push(digest);
            }
        }
        for path in unwanted.iter().map(|digest| self.image(digest)) {
            std::fs::remove_file(&path).map_err(|source| failed(&path, source))?;
            removed.images += 1;
        }
        if removed.kept.is_some() {
            return Ok(Vec::new());
        }
        let directory = self.0.join("layers");
        let entries = std::fs::read_dir(&directory).map_err(|source| failed(&directory, source))?;
        let mut unneeded = Vec::new();
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let size = entry.path().join("octets");
            if wanted.contains(&name) || !is_free(&size)? {
                continue;
            }
            let octets = document::read(&size).ok().and_then(|text| size_in(&text));
            let path = self.put_aside(&entry.path())?;
            unneeded.push(Unneeded { path, layers: 1, octets: octets.unwrap_or(0) });
        }
        Ok(unneeded)
    }

    /// Moves a layer out of its place, for the caller to delete.
    fn put_aside(&self, layer: &Path) -> Result<PathBuf, Error> {
        // A full disk has no room for a directory to rename it over.
        let aside = tempfile::Builder::new()
            .prefix("gone-")
            .make_in(self.staging(), |aside| std::fs::rename(layer, aside))
            .and_then(|aside| Ok(aside.into_temp_path().keep()?));
        aside.map_err(|source| failed(&self.staging(), source))
    }

    /// Removes what is in a layer's place without the size of a layer: something has damaged it.
    ///
    /// # Errors
    /// When a run uses it.
    pub(super) fn clear_damaged(&self, digest: &Digest, ownership: Ownership) -> Result<(), Error> {
        let place = self.layer(digest, ownership);
        let is_damaged =
            || place.symlink_metadata().is_ok() && place.join("octets").symlink_metadata().is_err();
        if !is_damaged() {
            return Ok(());
        }
        let gone = {
            let _lock = self.lock(FlockOperation::LockExclusive)?;
            if !is_damaged() {
                return Ok(());
            }
            let Records { read, unreadable } = self.records()?;
            // Any layer may be of an image whose record cannot be read.
            for (digest, error) in unreadable {
                if !is_free(&self.image(&digest))? {
                    return Err(error);
                }
            }
            for record in read {
                let has_it = record.layers.iter().any(|layer| layer.digest == *digest);
                if has_it && record.ownership() == ownership && !is_free(&self.image(&record.digest))? {
                    return Err(damaged(&place, &"a file of this layer is gone, and a run uses it"));
                }
            }
            self.put_aside(&place)?
        };
        // It is out of the way, and the next `prune` tells of what cannot be deleted.
        let _ = delete(&gone);
        Ok(())
    }

    /// Returns the unfinished files of dead processes. The caller holds the store's lock.
    fn abandoned(&self) -> Vec<PathBuf> {
        // A document is written under the lock, so an unfinished one is never finished.
        let documents = [self.0.clone(), self.0.join("images")];
        let entries = documents.iter().flat_map(std::fs::read_dir).flatten().flatten();
        let begun = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(".new-"));
        unused(&self.staging()).into_iter().chain(begun.map(|entry| entry.path())).collect()
    }

    /// Returns the downloads no process works on. They stay until a pull resumes them, or they are pruned.
    fn broken_off(&self) -> Vec<PathBuf> {
        unused(&self.0.join("blobs"))
    }
}

/// Returns the entries of a directory that nobody holds a lock on.
fn unused(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| is_free(path).unwrap_or(false)).collect()
}

/// Whether nobody holds a lock on a file. The caller holds the store's lock, so nobody takes one meanwhile that would matter.
pub(super) fn is_free(path: &Path) -> Result<bool, Error> {
    let file = match document::open_entry(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
        Err(source) => return Err(failed(path, source)),
    };
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
        Err(errno) => Err(failed(path, errno.into())),
    }
}

/// Whether nothing can be written for lack of room.
fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Returns the size of a file, or of all files in a directory. What cannot be read counts as nothing.
fn octets_in(path: &Path) -> u64 {
    match path.symlink_metadata() {
        Ok(metadata) if metadata.is_dir() => {
            let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
            entries.map(|entry| octets_in(&entry.path())).sum()
        }
        // Each name of a file has its part.
        Ok(metadata) if metadata.is_file() => metadata.len() / metadata.nlink().max(1),
        _ => 0,
    }
}

/// Deletes a file or directory. What cannot be deleted now is found by the next collection.
fn delete(path: &Path) -> io::Result<()> {
    let deleted = if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
    match deleted {
        // Another process found it as well.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        deleted => deleted,
    }
}

/// Deletes the unfinished files of killed processes, before new ones are made. Those that cannot be deleted do not stop what follows.
pub(crate) fn sweep(store: &Store) -> Result<(), Error> {
    let gone = {
        let _lock = store.lock(FlockOperation::LockExclusive)?;
        store.abandoned()
    };
    for path in gone {
        let _ = delete(&path);
    }
    Ok(())
}
