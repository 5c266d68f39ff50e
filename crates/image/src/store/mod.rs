//! The image store: unpacked layers, which images share, and a record of each image.
//!
//! ```text
//! lock                  held while names change or something is removed
//! names.json            the names of images, and the digest of each
//! images/<digest>.json  an image; locked by every run that uses it
//! layers/<digest>/      (`-squashed` if owners are not kept, `-lent-…` if they are kept by lent ids) tree/ is the layer, octets
//!                       its size; that file is locked while an image is being added
//! blobs/<digest>        downloads, complete or partial
//! staging/              unfinished layers, each locked by its maker
//! ```
//! The store belongs to one user, and no other can enter it. Locks end with the process that holds them, so the leftovers of a killed
//! process are told from files in use.

mod collect;
mod document;
mod layer;
mod record;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};

pub(crate) use self::collect::sweep;
pub use self::collect::{Removed, Undeleted};
pub(crate) use self::document::open_or_make;
pub(crate) use self::layer::LayerUse;
pub(crate) use self::record::LayerRecord;
pub use self::record::{ImageRecord, Listed};
use crate::digest::Digest;
use crate::error::Error;
use crate::reference::Reference;
use crate::unpack::{self, Ownership};

/// An image store.
#[derive(Clone, Debug)]
pub struct Store(PathBuf);

/// The image of a name.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Named {
    image: Digest,
    /// The digest by which its registry knows the image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    manifest: Option<Digest>,
}

/// An image to add, whose layers are in the store and stay there as long as this lives.
#[derive(Debug)]
pub(crate) struct Addition {
    pub(crate) record: ImageRecord,
    /// Its names; none if it has none.
    pub(crate) names: Vec<String>,
    /// The digest by which its registry knows it.
    pub(crate) manifest: Option<Digest>,
    #[expect(dead_code, reason = "holding the layers is what it is for")]
    pub(crate) layers: Vec<LayerUse>,
}

/// An image that is not removed as long as this lives.
#[derive(Debug)]
pub struct Held {
    /// Its record.
    pub record: ImageRecord,
    /// The directories of its layers, bottom first.
    pub layers: Vec<PathBuf>,
    #[expect(dead_code, reason = "holding the descriptor is what it is for")]
    lock: File,
}

/// What the store's records say.
#[derive(Default)]
struct Records {
    read: Vec<ImageRecord>,
    /// Those that cannot be read: the image of each, and why.
    unreadable: Vec<(Digest, Error)>,
}

impl Store {
    /// Opens the store in a directory, which is made if it does not exist.
    ///
    /// # Errors
    /// When the directory or a part of it cannot be made, belongs to another user, or others may write to it.
    pub fn open(directory: &Path) -> Result<Self, Error> {
        // Nothing is made in a directory that will not be used.
        make_shut(directory)?;
        let mut parts = ["images", "layers", "blobs", "staging"].iter().map(|part| directory.join(part));
        parts.try_for_each(|part| make_shut(&part))?;
        // Resolves links above it once: later no part of an image is looked up through one.
        directory.canonicalize().map(Self).map_err(|source| failed(directory, source))
    }

    /// Returns the store's directory.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.0
    }

    /// Whether files here can belong to other users: a network file system may refuse that even if ids are lent.
    #[must_use]
    pub fn keeps_owners(&self) -> bool {
        let other = rustix::fs::Uid::from_raw(0);
        let tried =
            tempfile::tempfile_in(self.staging()).map(|file| rustix::fs::fchown(file, Some(other), None));
        tried.is_ok_and(|given| given.is_ok())
    }

    /// Finds an image by its name or the beginning of its digest, and locks it against removal.
    ///
    /// # Errors
    /// When there is no such image.
    pub fn hold(&self, name: &str) -> Result<Held, Error> {
        let _names = self.lock(FlockOperation::LockShared)?;
        let digest = self.find(name)?;
        let path = self.image(&digest);
        let lock = document::open(&path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => missing(name),
            _ => failed(&path, error),
        })?;
        rustix::fs::flock(&lock, FlockOperation::LockShared).map_err(|e| failed(&path, e.into()))?;
        let record = ImageRecord::read(&path)?;
        let mut layers: Vec<_> =
            record.layers.iter().map(|layer| self.tree(&layer.digest, record.ownership())).collect();
        // The kernel ignores the opaque mark of a layer's root.
        let lowest = layers.iter().rposition(|tree| unpack::is_opaque(tree)).unwrap_or(0);
        layers.drain(..lowest);
        // Of a repeated layer only the upper one counts, and overlayfs refuses a layer that comes twice.
        let all = layers.clone();
        let mut place = 0..;
        layers.retain(|tree| place.next().is_some_and(|at| !all[at + 1..].contains(tree)));
        Ok(Held { record, layers, lock })
    }

    /// Lists every image under each of its names, and the images without one.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn list(&self) -> Result<Vec<Listed>, Error> {
        let _names = self.lock(FlockOperation::LockShared)?;
        let names = self.names()?;
        let mut listed = Vec::new();
        for record in self.records()?.read {
            let own: Vec<&String> = names
                .iter()
                .filter(|(_, named)| named.image == record.digest)
                .map(|(name, _)| name)
                .collect();
            if own.is_empty() {
                listed.push(Listed { name: None, record, before: None });
            } else {
                let all = own.into_iter();
                listed.extend(all.map(|name| Listed {
                    name: Some(name.clone()),
                    record: record.clone(),
                    before: None,
                }));
            }
        }
        listed.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(listed)
    }

    /// Returns why the records of images cannot be read, one error for each: these images are not listed.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn unreadable(&self) -> Result<Vec<Error>, Error> {
        let _names = self.lock(FlockOperation::LockShared)?;
        Ok(self.records()?.unreadable.into_iter().map(|(_, error)| error).collect())
    }

    /// Adds images under their names. All names change in one step, after everything else: no failure lets one image take a name and
    /// another not.
    pub(crate) fn add(&self, images: &[Addition]) -> Result<Vec<Listed>, Error> {
        let _lock = self.lock(FlockOperation::LockExclusive)?;
        let (mut names, mut listed) = (self.names()?, Vec::new());
        for image in images {
            self.write_record(&image.record)?;
        }
        for Addition { record, names: own, manifest, .. } in images {
            let entry = |name, before| Listed { name, record: record.clone(), before };
            if own.is_empty() {
                listed.push(entry(None, None));
            }
            for name in own {
                let named = Named { image: record.digest.clone(), manifest: manifest.clone() };
                let before = names.insert(name.clone(), named).map(|before| before.image);
                listed.push(entry(Some(name.clone()), before.filter(|before| *before != record.digest)));
            }
        }
        if images.iter().any(|image| !image.names.is_empty()) {
            self.write_names(&names)?;
        }
        Ok(listed)
    }

    /// Writes an image's record. The caller holds the store's lock.
    fn write_record(&self, record: &ImageRecord) -> Result<(), Error> {
        let path = self.image(&record.digest);
        // The digest names the content, so a record that is there differs at most in whose its files are. Runs hold locks on that file.
        let stays = match ImageRecord::read(&path) {
            Ok(there) => there.ownership() == record.ownership() || !collect::is_free(&path)?,
            // It is damaged, or there is none. Another file would not have the lock of a run.
            Err(error) if !collect::is_free(&path)? => return Err(error),
            Err(_) => false,
        };
        if stays { Ok(()) } else { record.write(&path) }
    }

    fn find(&self, name: &str) -> Result<Digest, Error> {
        const SHORTEST: usize = 6;
        let hex = name.strip_prefix("sha256:").unwrap_or(name);
        let names = self.names()?;
        if let Some(name) = names_meant(&names, name).first() {
            return Ok(names[name].image.clone());
        }
        let mut found = self.records()?.read.into_iter().filter(|r| r.digest.hex().starts_with(hex));
        match (found.next(), found.next()) {
            (Some(record), None) if hex.len() >= SHORTEST => Ok(record.digest),
            _ => Err(missing(name)),
        }
    }

    fn names(&self) -> Result<BTreeMap<String, Named>, Error> {
        let path = self.0.join("names.json");
        match document::read(&path) {
            Ok(octets) => serde_json::from_slice(&octets).map_err(|e| damaged(&path, &e)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(BTreeMap::new()),
            Err(source) => Err(failed(&path, source)),
        }
    }

    fn write_names(&self, names: &BTreeMap<String, Named>) -> Result<(), Error> {
        let path = self.0.join("names.json");
        let text = serde_json::to_vec_pretty(names).map_err(|e| damaged(&path, &e))?;
        replace(&path, &text)
    }

    /// Reads every record. A damaged one is no reason not to use others, and is repaired when its image is added again.
    fn records(&self) -> Result<Records, Error> {
        let directory = self.0.join("images");
        let entries = std::fs::read_dir(&directory).map_err(|source| failed(&directory, source))?;
        let mut records = Records::default();
        for entry in entries {
            let path = entry.map_err(|source| failed(&directory, source))?.path();
            let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
            let digest = format!("sha256:{stem}").parse::<Digest>();
            let (Ok(digest), true) = (digest, path.extension().is_some_and(|e| e == "json")) else {
                continue;
            };
            match ImageRecord::read(&path) {
                Ok(record) if record.digest == digest => records.read.push(record),
                Ok(_) => records.unreadable.push((digest, damaged(&path, &"it is another image's"))),
                Err(error) => records.unreadable.push((digest, error)),
            }
        }
        Ok(records)
    }

    /// Takes the store's lock: exclusive to change names or remove things, shared to find something and hold it.
    fn lock(&self, how: FlockOperation) -> Result<File, Error> {
        let path = self.0.join("lock");
        let file = document::open_or_make(&path).map_err(|source| failed(&path, source))?;
        rustix::fs::flock(&file, how).map_err(|e| failed(&path, e.into()))?;
        Ok(file)
    }

    fn image(&self, digest: &Digest) -> PathBuf {
        self.0.join("images").join(format!("{}.json", digest.hex()))
    }

    fn layer(&self, digest: &Digest, ownership: Ownership) -> PathBuf {
        self.0.join("layers").join(layer_name(digest, ownership))
    }

    /// Returns the directory of an unpacked layer.
    pub(crate) fn tree(&self, digest: &Digest, ownership: Ownership) -> PathBuf {
        self.layer(digest, ownership).join("tree")
    }

    /// Returns the path of a blob that is being downloaded.
    pub(crate) fn blob(&self, digest: &Digest) -> PathBuf {
        self.0.join("blobs").join(digest.hex())
    }

    fn staging(&self) -> PathBuf {
        self.0.join("staging")
    }
}

/// Returns which names a name means. A digest in the reference must be the image's. One without a tag finds it under whatever names its
/// repository gives it.
fn names_meant(names: &BTreeMap<String, Named>, name: &str) -> BTreeSet<String> {
    // A whole digest is never a name: a name could be made to look like another image's.
    const WHOLE: usize = 64;
    let hex = name.strip_prefix("sha256:").unwrap_or(name);
    let Some(reference) = name.parse::<Reference>().ok().filter(|_| hex.len() != WHOLE) else {
        return BTreeSet::new();
    };
    let is_meant = |(name, named): &(&String, &Named)| {
        let digest = reference.digest();
        let is_its = digest.is_none_or(|d| *d == named.image || Some(d) == named.manifest.as_ref());
        let is_whole = digest.is_some() && reference.tag().is_none();
        is_its && (**name == reference.name() || is_whole && reference.shares_repository(name))
    };
    names.iter().filter(is_meant).map(|(name, _)| name.clone()).collect()
}

/// Returns the error for an unknown name, with advice how to get the image. A pull needs a registry in the name.
fn missing(name: &str) -> Error {
    // What is imported has not always the digest by which a registry knows the image.
    let without = name.split('@').next().unwrap_or(name);
    let advice = match name.parse::<Reference>() {
        Ok(reference) if reference.registry().is_some() => {
            format!("lockgate image pull {name}, or lockgate image import FILE --name {without}")
        }
        Ok(_) => format!(
            "lockgate image import FILE --name {without}; a pull takes the whole name, REGISTRY/{name}, as no registry is the default"
        ),
        Err(_) => "lockgate image ls names those that are here".into(),
    };
    Error::NoImage { name: name.escape_default().to_string(), advice }
}

/// Returns the name of a layer's directory, which differs by ownership.
fn layer_name(digest: &Digest, ownership: Ownership) -> String {
    match ownership {
        Ownership::Keep => digest.hex().to_owned(),
        Ownership::Squash => format!("{}-squashed", digest.hex()),
        Ownership::Lent(lent) => format!("{}-{}", digest.hex(), lent.suffix()),
    }
}

/// Replaces a file atomically, and syncs the new content.
fn replace(path: &Path, content: &[u8]) -> Result<(), Error> {
    let directory = path.parent().unwrap_or(path);
    let write = || {
        let mut file = tempfile::Builder::new().prefix(".new-").tempfile_in(directory)?;
        io::Write::write_all(&mut file, content)?;
        file.as_file().sync_all()?;
        file.persist(path).map_err(|e| e.error)?;
        File::open(directory)?.sync_all()
    };
    write().map_err(|source| failed(path, source))
}

/// Makes a directory, and closes it to other users: its content becomes a root file system. One in which others could write already
/// may hold what they put there.
fn make_shut(path: &Path) -> Result<(), Error> {
    let failed = |source| failed(path, source);
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed)?;
    let metadata = std::fs::metadata(path).map_err(failed)?;
    if metadata.uid() != rustix::process::geteuid().as_raw() {
        return Err(failed(io::Error::new(io::ErrorKind::PermissionDenied, "it belongs to somebody else")));
    }
    if metadata.mode() & 0o022 != 0 {
        return Err(Error::StoreOfOthers { path: path.into(), mode: metadata.mode() & 0o7777 });
    }
    if metadata.mode() & 0o077 != 0 {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700))
            .and_then(|()| refuse_open(std::fs::metadata(path)?.mode()))
            .map_err(failed)?;
    }
    Ok(())
}

/// Refuses a directory that is open to others although it was closed.
fn refuse_open(mode: u32) -> io::Result<()> {
    match mode & 0o077 {
        0 => Ok(()),
        _ => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "its file system keeps no modes, so others could write there",
        )),
    }
}

pub(crate) fn failed(path: &Path, source: io::Error) -> Error {
    Error::Store { path: path.into(), source }
}

fn damaged(path: &Path, why: &impl ToString) -> Error {
    Error::Damaged { path: path.into(), why: why.to_string() }
}

#[cfg(test)]
mod tests;
