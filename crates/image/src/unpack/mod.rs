//! Unpacks a layer's archive into a directory. Every octet is hostile: names are checked by their text, the kernel resolves every
//! path beneath the layer's own directory, and sizes and counts are bounded.
//!
//! ```text
//! octets ─► compression ─► archive (entries) ─► name (checked) ─► tree (files)
//! ```
//! Devices are skipped, and set-id bits and extended attributes are dropped: no file can give anybody a right.

mod archive;
mod compression;
mod lent;
mod name;
mod ownership;
mod tree;

use std::collections::BTreeSet;
use std::io::Read;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

pub(crate) use self::archive::{Archive, Kind};
pub(crate) use self::compression::decompress;
pub(crate) use self::lent::give;
pub(crate) use self::name::shown;
use self::name::{EntryName, EntryTarget};
pub use self::ownership::{Lent, LentIds, Ownership};
use self::tree::Tree;
pub(crate) use self::tree::{is_opaque, open_beneath};
use crate::error::UnpackError;

/// How much a layer may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Octets, uncompressed.
    pub octets: u64,
    /// Files and directories.
    pub entries: u64,
}

impl Default for Bounds {
    /// 16 GiB and two million entries: several times what large images hold.
    fn default() -> Self {
        Self { octets: 16 << 30, entries: 2_000_000 }
    }
}

/// How much was unpacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unpacked {
    /// Octets of the archive, counted against the bound.
    pub(crate) octets: u64,
    /// Entries.
    pub(crate) entries: u64,
}

/// Unpacks an archive into an empty directory.
pub(crate) fn unpack(
    reader: impl Read,
    directory: BorrowedFd<'_>,
    bounds: Bounds,
    ownership: Ownership,
) -> Result<Unpacked, UnpackError> {
    let mut archive = Archive::new(reader, bounds);
    let mut tree = Tree::new(directory, ownership);
    let mut skipped = Skipped::default();
    while let Some(entry) = archive.next()? {
        let EntryName { parent, place } = EntryName::parse(&entry.name)?;
        let written = match (place, entry.kind) {
            (EntryTarget::Ignored, _) => Ok(()),
            (EntryTarget::Named(name), Kind::Device) => {
                skipped.insert(parent.join(name));
                Ok(())
            }
            (_, Kind::Device) => Ok(()),
            (EntryTarget::Root, Kind::Directory) => tree.root(&entry.meta),
            (EntryTarget::Root, _) => return Err(name::refuse(&entry.name, "would take the root's place")),
            (EntryTarget::Opaque, _) => tree.opaque(&parent),
            (EntryTarget::Whiteout(name), _) => tree.whiteout(&parent, &name),
            (EntryTarget::Named(name), Kind::Directory) => tree.directory(&parent, &name, &entry.meta),
            (EntryTarget::Named(name), Kind::File) => {
                tree.file(&parent, &name, &entry.meta, &mut |buffer| archive.content(buffer))
            }
            (EntryTarget::Named(name), Kind::Link) => {
                name::check_target(&entry.name, &entry.link)?;
                tree.link(&parent, &name, &entry.link, &entry.meta)
            }
            (EntryTarget::Named(name), Kind::Pipe) => tree.pipe(&parent, &name, &entry.meta),
            (EntryTarget::Named(name), Kind::HardLink) => {
                let target = EntryName::parse(&entry.link)?;
                let EntryTarget::Named(file) = target.place else {
                    return Err(name::refuse(&entry.name, "is a hard link to what cannot be linked to"));
                };
                match tree.hard_link(&parent, &name, &target.parent, &file) {
                    // Another name of a device is no more there than the device.
                    Err(tree::Failure::Write(error))
                        if error.kind() == std::io::ErrorKind::NotFound
                            && skipped.has(&target.parent.join(&file)) =>
                    {
                        skipped.insert(parent.join(name));
                        Ok(())
                    }
                    linked => linked,
                }
            }
        };
        written.map_err(|error| match error {
            tree::Failure::Archive(error) => error,
            tree::Failure::Write(source)
                if entry.kind == Kind::HardLink && source.kind() == std::io::ErrorKind::NotFound =>
            {
                name::refuse(&entry.name, "is a hard link to a file that the layer does not have before it")
            }
            tree::Failure::Write(source) => UnpackError::Write { name: name::shown(&entry.name), source },
        })?;
        if archive.taken().entries + tree.implied() > bounds.entries {
            return Err(UnpackError::TooLarge { bound: bounds.entries, unit: "entries" });
        }
    }
    tree.finish();
    Ok(archive.taken())
}

/// The names of the devices that were skipped, to which later entries may link.
#[derive(Default)]
struct Skipped(BTreeSet<PathBuf>);

impl Skipped {
    /// How many are known: `/dev` of an image has some ten.
    const MOST: usize = 4096;

    fn insert(&mut self, name: PathBuf) {
        if self.0.len() < Self::MOST {
            self.0.insert(name);
        }
    }

    fn has(&self, name: &Path) -> bool {
        self.0.contains(name)
    }
}

#[cfg(test)]
mod tests;
