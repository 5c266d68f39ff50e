//! The parts of a local image by their names: files of a directory, or entries of an archive.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::error::{Error, OCTETS, UnpackError, is_about_room};
use crate::manifest::LARGEST;
use crate::unpack::{Archive, Bounds, Kind, decompress, open_beneath};

/// How many entries of an outer archive are read: an image has a few per layer.
const MOST_ENTRIES: u64 = 100_000;

/// The longest name of a part; an image's are a digest and a few directories.
const LONGEST: usize = 512;

/// The location of the parts.
pub(super) struct Parts {
    path: PathBuf,
    place: Place,
    /// Where an archive breaks off, if it does.
    fault: Option<UnpackError>,
}

enum Place {
    Directory(OwnedFd),
    Archive { file: File, index: HashMap<String, Entry> },
}

enum Entry {
    /// The offset of its octets, and their number.
    Octets(u64, u64),
    /// Another part with the same content: older engines write a repeated layer as a link.
    Alias(String),
}

impl Parts {
    pub(super) fn directory(opened: OwnedFd, path: &Path) -> Self {
        Self { path: path.into(), place: Place::Directory(opened), fault: None }
    }

    /// Reads the names of an archive. A compressed one is decompressed into a temporary file first.
    pub(super) fn archive(
        mut file: File,
        path: &Path,
        bounds: Bounds,
        staging: &Path,
    ) -> Result<Self, Error> {
        let read = |source| Error::Read { path: path.into(), source };
        let mut fault = None;
        if is_compressed(&file).map_err(read)? {
            file = decompressed(file, path, bounds, staging)?;
        } else {
            // It knows those by name that it cannot read.
            fault = decompress(&file).err().map(UnpackError::Read);
            file.rewind().map_err(read)?;
        }
        let archive = file.try_clone().map_err(read)?;
        let bounds = Bounds { octets: u64::MAX, entries: MOST_ENTRIES };
        let mut archive = Archive::seekable(archive, bounds);
        let mut index = HashMap::new();
        // A root file system has more names than an image has parts; an image's come first. An error ends the names here, and counts
        // if they make no image.
        let ended = loop {
            let entry = match archive.next() {
                Ok(Some(entry)) => entry,
                Ok(None) if archive.place().map_err(read)?.0 > file.metadata().map_err(read)?.len() => {
                    // What is skipped is not read.
                    break Some(UnpackError::Malformed("it ends within an entry".into()));
                }
                Ok(None) | Err(UnpackError::TooLarge { .. }) => break None,
                Err(error) => break Some(error),
            };
            let Some(name) = normal(&entry.name) else { continue };
            let found = match entry.kind {
                Kind::File => {
                    let (at, length) = archive.place().map_err(read)?;
                    Entry::Octets(at, length)
                }
                Kind::Link => {
                    let above = Path::new(&name).parent().unwrap_or(Path::new("")).to_string_lossy();
                    let Some(target) = normal(&[above.as_bytes(), b"/", &entry.link].concat()) else {
                        continue;
                    };
                    Entry::Alias(target)
                }
                _ => continue,
            };
            index.insert(name, found);
        };
        Ok(Self { path: path.into(), place: Place::Archive { file, index }, fault: fault.or(ended) })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns why an archive has fewer parts than it should, once.
    pub(super) fn fault(&mut self) -> Option<UnpackError> {
        self.fault.take()
    }

    /// Whether there is a part with this name.
    pub(super) fn has(&self, name: &str) -> bool {
        match &self.place {
            Place::Directory(_) => self.open(name).is_ok(),
            Place::Archive { index, .. } => index.contains_key(name),
        }
    }

    /// Opens a part.
    pub(super) fn open(&self, name: &str) -> Result<Box<dyn Read + '_>, Error> {
        let missing =
            || Error::Form { path: self.path.clone(), why: format!("it has no `{}`", name.escape_default()) };
        let read = |source| Error::Read { path: self.path.join(name), source };
        match &self.place {
            Place::Directory(directory) => {
                let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
                let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
                let opened =
                    open_beneath(directory.as_fd(), Path::new(name), flags, resolve).map_err(|errno| {
                        match errno {
                            Errno::XDEV => Error::Form {
                                path: self.path.clone(),
                                why: format!(
                                    "`{}` is, or is behind, a link that leads out of it",
                                    name.escape_default()
                                ),
                            },
                            errno => read(errno.into()),
                        }
                    })?;
                let file = File::from(opened);
                if file.metadata().map_err(read)?.is_file() { Ok(Box::new(file)) } else { Err(missing()) }
            }
            Place::Archive { file, index } => {
                let entry = match index.get(name) {
                    Some(Entry::Alias(other)) => index.get(other),
                    entry => entry,
                };
                let Some(Entry::Octets(at, length)) = entry else { return Err(missing()) };
                Ok(Box::new(Window { file, at: *at, left: *length }))
            }
        }
    }

    /// Reads a document.
    pub(super) fn read(&self, name: &str) -> Result<Vec<u8>, Error> {
        let mut octets = Vec::new();
        let read = self.open(name)?.take(LARGEST + 1).read_to_end(&mut octets);
        read.map_err(|source| Error::Read { path: self.path.join(name), source })?;
        if octets.len() as u64 > LARGEST {
            let why = format!("`{}` is larger than 4 MiB", name.escape_default());
            return Err(Error::Form { path: self.path.clone(), why });
        }
        Ok(octets)
    }

    /// Returns the archive itself, from its beginning.
    pub(super) fn whole(&self) -> io::Result<Window<'_>> {
        match &self.place {
            Place::Archive { file, .. } => Ok(Window { file, at: 0, left: file.metadata()?.len() }),
            Place::Directory(_) => Err(io::ErrorKind::IsADirectory.into()),
        }
    }
}

/// A reader of a range of a file.
pub(super) struct Window<'a> {
    file: &'a File,
    at: u64,
    left: u64,
}

impl Read for Window<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        let read = self.file.read_at(&mut buffer[..most], self.at)?;
        self.at += read as u64;
        self.left -= read as u64;
        Ok(read)
    }
}

/// Whether a file is compressed: an archive begins with a name and has a magic at octet 257, unless it is too old.
fn is_compressed(file: &File) -> io::Result<bool> {
    let mut begin = [0; 4];
    let read = file.read_at(&mut begin, 0)?;
    Ok(matches!(
        &begin[..read],
        [0x1f, 0x8b, ..] | [0x28, 0xb5, 0x2f, 0xfd] | [0x50..=0x5f, 0x2a, 0x4d, 0x18]
    ))
}

/// Decompresses a file into an unnamed temporary file.
fn decompressed(file: File, path: &Path, bounds: Bounds, staging: &Path) -> Result<File, Error> {
    let unpack = || {
        let mut plain = tempfile::tempfile_in(staging)?;
        let octets = io::copy(&mut decompress(file)?.take(bounds.octets.saturating_add(1)), &mut plain)?;
        plain.seek(SeekFrom::Start(0))?;
        Ok((plain, octets))
    };
    let (plain, octets) = unpack().map_err(|source| undone(path, staging, source))?;
    if octets > bounds.octets {
        let source = UnpackError::TooLarge { bound: bounds.octets, unit: OCTETS };
        return Err(Error::Unpack { layer: path.display().to_string(), source });
    }
    Ok(plain)
}

/// Returns the error for a file that could not be decompressed. Only the store has too little room.
fn undone(path: &Path, staging: &Path, source: io::Error) -> Error {
    if is_about_room(&source) {
        return crate::store::failed(staging, source);
    }
    Error::Read { path: path.into(), source }
}

/// Normalises a name; `None` if it is not UTF-8 or leads out of the archive.
fn normal(name: &[u8]) -> Option<String> {
    if name.len() > LONGEST {
        return None;
    }
    let mut parts: Vec<&str> = Vec::new();
    for part in std::str::from_utf8(name).ok()?.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_store_is_told_from_a_source_that_cannot_be_read() {
        let remedy = |kind: io::ErrorKind| undone(Path::new("/s"), Path::new("/store"), kind.into()).remedy();
        assert!(remedy(io::ErrorKind::StorageFull).is_some_and(|it| it.contains("free some space")));
        assert_eq!(remedy(io::ErrorKind::InvalidData), None);
    }
}
