//! Taking images away: by name, or all that have none; and the layers that no image has any more. What a run uses stays.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;

use super::{Store, failed, layer_name};
use crate::error::Error;

/// What was taken away.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// How many images.
    pub images: usize,
    /// How many layers.
    pub layers: usize,
    /// How many octets they held, unpacked.
    pub octets: u64,
}

impl Store {
    /// Takes a name away, and the image with it if that was its last.
    ///
    /// # Errors
    /// When there is none of that name, or a run uses it.
    pub fn remove(&self, name: &str) -> Result<Removed, Error> {
        let mut removed = Removed::default();
        let gone = {
            let _lock = self.lock(FlockOperation::LockExclusive)?;
            let digest = self.find(name).map_err(|error| match error {
                Error::NoImage { name, .. } => Error::NothingToRemove { name },
                other => other,
            })?;
            let mut names = self.names()?;
            let own = name.parse::<crate::Reference>().map(|r| r.name()).unwrap_or_default();
            let others = names.iter().any(|(name, named)| named.image == digest && *name != own);
            let by_name = names.contains_key(&own);
            if !(by_name && others) {
                if !free(&self.image(&digest))? {
                    return Err(Error::InUse { name: name.into() });
                }
                names.retain(|_, named| named.image != digest);
            }
            names.remove(&own);
            self.write_names(&names)?;
            self.collect(&mut removed)?
        };
        clear(&gone);
        Ok(removed)
    }

    /// Takes away every image that has no name, every layer that no image has, and what killed processes left.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn prune(&self) -> Result<Removed, Error> {
        let mut removed = Removed::default();
        let gone = {
            let _lock = self.lock(FlockOperation::LockExclusive)?;
            let mut gone = self.collect(&mut removed)?;
            gone.extend(self.abandoned());
            gone.extend(self.broken_off());
            gone
        };
        clear(&gone);
        Ok(removed)
    }

    /// Moves what nobody names or uses out of its place, under the lock; it is cleared after that, without.
    fn collect(&self, removed: &mut Removed) -> Result<Vec<PathBuf>, Error> {
        let named: BTreeSet<_> = self.names()?.into_values().map(|named| named.image).collect();
        let mut wanted = BTreeSet::new();
        for record in self.records()? {
            let path = self.image(&record.digest);
            if named.contains(&record.digest) || !free(&path)? {
                let ownership = record.ownership();
                wanted.extend(record.layers.iter().map(|layer| layer_name(&layer.digest, ownership)));
            } else {
                std::fs::remove_file(&path).map_err(|source| failed(&path, source))?;
                removed.images += 1;
            }
        }
        let directory = self.0.join("layers");
        let entries = std::fs::read_dir(&directory).map_err(|source| failed(&directory, source))?;
        let mut gone = Vec::new();
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let size = entry.path().join("octets");
            if wanted.contains(&name) || !free(&size)? {
                continue;
            }
            let octets = std::fs::read_to_string(&size).ok().and_then(|text| text.trim().parse().ok());
            let aside = tempfile::Builder::new().prefix("gone-").tempdir_in(self.staging());
            let aside = aside.map_err(|source| failed(&self.staging(), source))?.keep();
            std::fs::rename(entry.path(), &aside).map_err(|source| failed(&aside, source))?;
            removed.layers += 1;
            removed.octets += octets.unwrap_or(0);
            gone.push(aside);
        }
        Ok(gone)
    }

    /// What processes that are gone left in the making. The caller holds the store's lock.
    fn abandoned(&self) -> Vec<PathBuf> {
        // A document is written under the lock, so one that is not in its place by now never will be.
        let documents = [self.0.clone(), self.0.join("images")];
        let entries = documents.iter().flat_map(std::fs::read_dir).flatten().flatten();
        let begun = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(".new-"));
        unused(&self.staging()).into_iter().chain(begun.map(|entry| entry.path())).collect()
    }

    /// Downloads that nobody goes on with now. They stay until they are asked for, or not wanted any more.
    fn broken_off(&self) -> Vec<PathBuf> {
        unused(&self.0.join("blobs"))
    }
}

/// What of a directory nobody holds a lock on.
fn unused(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| free(path).unwrap_or(false)).collect()
}

/// Whether nobody holds a lock on a file. The caller holds the store's own, so nobody takes one that would matter.
fn free(path: &Path) -> Result<bool, Error> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(true),
        Err(source) => return Err(failed(path, source)),
    };
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
        Err(errno) => Err(failed(path, errno.into())),
    }
}

/// What is out of its place is nobody's; what cannot be cleared now is found by the next who looks.
fn clear(gone: &[PathBuf]) {
    for path in gone {
        if path.is_dir() {
            let _ = std::fs::remove_dir_all(path);
        } else {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Clears what killed processes left in the making, before more is made.
pub(crate) fn sweep(store: &Store) -> Result<(), Error> {
    let gone = {
        let _lock = store.lock(FlockOperation::LockExclusive)?;
        store.abandoned()
    };
    clear(&gone);
    Ok(())
}
