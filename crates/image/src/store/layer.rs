//! Adds a layer to the store: unpacks it in the staging directory, verifies it, and only then gives it its name.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{FlockOperation, Gid, Uid};
use tempfile::TempDir;

use super::{LayerRecord, Store, damaged, document, failed};
use crate::digest::{Digest, Hashing};
use crate::error::{Error, UnpackError};
use crate::unpack::{Bounds, Ownership, decompress, unpack};

/// How many octets may follow the end of an archive: the padding of its last record, and more than any writer adds.
const TRAILER: u64 = 64 << 20;

/// A layer of the store, kept until its image has been added. Copies share one descriptor: an archive of many images may name a
/// layer in each.
#[derive(Clone, Debug)]
pub(crate) struct LayerUse {
    pub(crate) record: LayerRecord,
    #[expect(dead_code, reason = "holding the descriptor is what it is for")]
    lock: Arc<File>,
}

impl Store {
    /// Returns a layer that the store has.
    pub(crate) fn known_layer(
        &self,
        digest: &Digest,
        ownership: Ownership,
    ) -> Result<Option<LayerUse>, Error> {
        let _names = self.lock(FlockOperation::LockShared)?;
        let path = self.layer(digest, ownership).join("octets");
        let file = match document::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(failed(&path, source)),
        };
        lock_shared(&file).map_err(|source| failed(&path, source))?;
        let text = document::read(&path).map_err(|source| failed(&path, source))?;
        let octets = size_in(&text).unwrap_or(0);
        Ok(Some(LayerUse { record: LayerRecord { digest: digest.clone(), octets }, lock: Arc::new(file) }))
    }

    /// Unpacks a layer, and keeps it if it has the expected digest, or none is expected.
    pub(crate) fn add_layer(
        &self,
        promised: Option<&Digest>,
        archive: impl Read,
        bounds: Bounds,
        ownership: Ownership,
    ) -> Result<LayerUse, Error> {
        let shown = || promised.map_or_else(|| "of the image".to_owned(), |d| d.short().to_owned());
        let unpack_failed = |source| Error::Unpack { layer: shown(), source };
        let staged = Staged::begin(self)?;
        if matches!(ownership, Ownership::Lent(_)) {
            // It is the caller's, who is the image's user, unless an entry names its owner.
            let given = rustix::fs::fchown(&staged.tree, Some(Uid::ROOT), Some(Gid::ROOT));
            given.map_err(|e| failed(&self.staging(), e.into()))?;
        }
        let plain = decompress(archive).map_err(|e| unpack_failed(UnpackError::Read(e)))?;
        let mut plain = Hashing::new(plain);
        let taken = unpack(&mut plain, staged.tree.as_fd(), bounds, ownership).map_err(unpack_failed)?;
        let found = plain.finish(TRAILER).map_err(|e| unpack_failed(UnpackError::Read(e)))?;
        if let Some(promised) = promised
            && found != *promised
        {
            let what = format!("layer {}", promised.short());
            return Err(Error::Digest { what, expected: promised.to_string(), found: found.to_string() });
        }
        let record = LayerRecord { digest: found, octets: taken.octets };
        // A named layer must be complete, also after a power failure.
        rustix::fs::syncfs(&staged.tree).map_err(|e| failed(&self.staging(), e.into()))?;
        self.clear_damaged(&record.digest, ownership)?;
        // Nobody can remove it between the look at its name and the lock on it.
        let _names = self.lock(FlockOperation::LockShared)?;
        let lock = staged.publish(&self.layer(&record.digest, ownership), record.octets)?;
        match lock {
            Some(lock) => Ok(LayerUse { record, lock: Arc::new(lock) }),
            // Another process was faster.
            None => self
                .known_layer(&record.digest, ownership)?
                .ok_or_else(|| damaged(&self.staging(), &"a layer was just removed")),
        }
    }
}

/// A layer's directory before it has its name. It is deleted with this value; after a `kill -9` its free lock gives it away.
struct Staged {
    directory: TempDir,
    #[expect(dead_code, reason = "holding the descriptor is what it is for")]
    lock: File,
    tree: File,
}

impl Staged {
    fn begin(store: &Store) -> Result<Self, Error> {
        // A collection must not see it before it is locked.
        let _names = store.lock(FlockOperation::LockShared)?;
        let staging = store.staging();
        let make = || {
            let directory = tempfile::Builder::new().prefix("layer-").tempdir_in(&staging)?;
            let lock = File::open(directory.path())?;
            rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
            let tree = directory.path().join("tree");
            std::fs::create_dir(&tree)?;
            // Whatever the caller's umask is: other users inside read it.
            std::fs::set_permissions(&tree, std::fs::Permissions::from_mode(0o755))?;
            Ok(Self { tree: File::open(&tree)?, lock, directory })
        };
        make().map_err(|source| failed(&staging, source))
    }

    /// Renames it to its place, and returns its lock; `None` if that exists already.
    fn publish(self, place: &Path, octets: u64) -> Result<Option<File>, Error> {
        let size = self.directory.path().join("octets");
        let publish = || {
            std::fs::write(&size, octets.to_string())?;
            let lock = File::open(&size)?;
            lock_shared(&lock)?;
            match std::fs::rename(self.directory.path(), place) {
                Ok(()) => Ok(Some(lock)),
                Err(e) if matches!(e.kind(), ErrorKind::DirectoryNotEmpty | ErrorKind::AlreadyExists) => {
                    Ok(None)
                }
                Err(error) => Err(error),
            }
        };
        let published = publish().map_err(|source| failed(place, source))?;
        if published.is_some() {
            let _ = self.directory.keep();
        }
        Ok(published)
    }
}

/// Parses the size that a layer's file `octets` holds.
pub(super) fn size_in(octets: &[u8]) -> Option<u64> {
    std::str::from_utf8(octets).ok()?.trim().parse().ok()
}

fn lock_shared(file: &File) -> io::Result<()> {
    Ok(rustix::fs::flock(file, FlockOperation::LockShared)?)
}
