//! Imports a directory as a layer: packs it into an archive on the fly, so that it is read like any other layer and its digest
//! depends on its content only.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};
use tar::{Builder, EntryType, Header};

use crate::error::Error;
use crate::manifest::LARGEST;
use crate::store::{LayerUse, Store, failed};
use crate::unpack::{Bounds, Ownership};

/// How deep a directory may lie, as in any layer.
const DEEPEST: usize = 256;
/// The longest link target that fits a tar header.
const LONGEST_LINK: usize = 100;

pub(super) fn import(
    store: &Store,
    source: &Path,
    bounds: Bounds,
    ownership: Ownership,
) -> Result<LayerUse, Error> {
    let read = |source_error| Error::Read { path: source.into(), source: source_error };
    let (reader, writer) = io::pipe().map_err(read)?;
    let shut = Shut::of(store).map_err(|error| failed(store.directory(), error))?;
    let broken = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let packing = scope.spawn(|| {
            let mut archive = Builder::new(io::BufWriter::with_capacity(128 << 10, writer));
            let packed = pack(source, &shut, &mut archive);
            // Before the archive is dropped, which ends the stream.
            broken.store(packed.is_err(), Ordering::Release);
            packed
        });
        let whole = Whole { reader, broken: &broken };
        let layer = store.add_layer(None, whole, bounds, ownership);
        // If both ends fail, the packer's error is the cause.
        let packed = packing.join().unwrap_or_else(|_| Err(io::Error::other("packing it broke off")));
        match (packed, layer) {
            (Err(error), Err(layer)) if error.kind() == io::ErrorKind::BrokenPipe => Err(layer),
            (Err(error), _) => Err(read(error)),
            (Ok(()), layer) => layer,
        }
    })
}

/// Whether a directory is an image in the format `dir:`: a manifest beside the file `version`, and blobs by their digests.
pub(super) fn is_image_of_parts(source: &Path) -> bool {
    #[derive(serde::Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Versioned {
        #[expect(dead_code, reason = "that it is there is what counts")]
        schema_version: u32,
    }
    let [version, manifest] = ["version", "manifest.json"].map(|name| source.join(name));
    let is_small = |path: &Path| std::fs::metadata(path).is_ok_and(|it| it.is_file() && it.len() <= LARGEST);
    is_small(&version)
        && is_small(&manifest)
        && std::fs::File::open(manifest).is_ok_and(|file| {
            // It may have grown since.
            serde_json::from_reader::<_, Versioned>(io::BufReader::new(file).take(LARGEST)).is_ok()
        })
}

/// The directories that are written to meanwhile, each by its device and inode: with them an import would never end.
struct Shut([(u64, u64); 2]);

impl Shut {
    fn of(store: &Store) -> io::Result<Self> {
        let [all, staging] = [store.directory(), &store.directory().join("staging")].map(rustix::fs::stat);
        Ok(Self([identity(&all?), identity(&staging?)]))
    }

    fn refuse(&self, directory: &Stat, path: &Path) -> io::Result<()> {
        if !self.0.contains(&identity(directory)) {
            return Ok(());
        }
        Err(io::Error::other(format!(
            "it holds the image store, at `{}`; import a directory without it, or name another place for images with XDG_DATA_HOME",
            shown(path)
        )))
    }
}

fn identity(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

/// The packed octets. Their end counts only if the packer succeeded.
struct Whole<'a, R> {
    reader: R,
    broken: &'a AtomicBool,
}

impl<R: Read> Read for Whole<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.reader.read(buffer)? {
            0 if self.broken.load(Ordering::Acquire) => Err(io::Error::other("packing it broke off")),
            read => Ok(read),
        }
    }
}

/// Writes every entry, sorted by name. Sockets, pipes and devices are left out: they would have no other end.
fn pack(source: &Path, shut: &Shut, archive: &mut Builder<impl Write>) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(source, flags, Mode::empty())?;
    pack_directory(archive, shut, &root, Path::new("."), 0)?;
    archive.finish()?;
    archive.get_mut().flush()
}

/// Writes the entries of a directory. Opens each relative to its parent and never follows a link: a process that writes there
/// meanwhile cannot make another file part of the image.
fn pack_directory(
    archive: &mut Builder<impl Write>,
    shut: &Shut,
    directory: &OwnedFd,
    path: &Path,
    depth: usize,
) -> io::Result<()> {
    if depth > DEEPEST {
        return Err(io::Error::other(format!("{} lies too deep", shown(path))));
    }
    let stat = rustix::fs::fstat(directory)?;
    shut.refuse(&stat, path)?;
    archive.append_data(&mut header(&stat, EntryType::Directory), path, io::empty())?;
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let name = OsStr::from_bytes(entry?.file_name().to_bytes()).to_owned();
        if name != "." && name != ".." {
            names.push(name);
        }
    }
    names.sort();
    for name in names {
        let below = if path == Path::new(".") { PathBuf::from(&name) } else { path.join(&name) };
        let stat = rustix::fs::statat(directory, &name, AtFlags::SYMLINK_NOFOLLOW)?;
        let open = |flags| {
            let flags = flags | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            rustix::fs::openat(directory, &name, flags, Mode::empty())
        };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                let opened = open(OFlags::DIRECTORY).map_err(|errno| named(&below, errno.into()))?;
                pack_directory(archive, shut, &opened, &below, depth + 1)?;
            }
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(directory, &name, Vec::new())?;
                pack_link(archive, header(&stat, EntryType::Symlink), &below, target.as_bytes())?;
            }
            FileType::RegularFile => {
                let opened = open(OFlags::empty()).map_err(|errno| named(&below, errno.into()))?;
                let file = File::from(opened);
                let stat = rustix::fs::fstat(&file)?;
                if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
                    return Err(io::Error::other(format!("{} was replaced meanwhile", shown(&below))));
                }
                let length = u64::try_from(stat.st_size).unwrap_or_default();
                let mut header = header(&stat, EntryType::Regular);
                header.set_size(length);
                // A file that grows meanwhile is cut, and one that shrinks is padded: the header has fixed the entry's length.
                archive.append_data(&mut header, &below, file.chain(io::repeat(0)).take(length))?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// Writes a link with its target as it is: the library would normalise it.
fn pack_link(
    archive: &mut Builder<impl Write>,
    mut header: Header,
    path: &Path,
    target: &[u8],
) -> io::Result<()> {
    if target.len() > LONGEST_LINK {
        let mut long = Header::new_gnu();
        long.set_entry_type(EntryType::GNULongLink);
        long.set_size(target.len() as u64);
        archive.append_data(&mut long, "././@LongLink", target)?;
    } else {
        header.set_link_name_literal(target)?;
    }
    archive.append_data(&mut header, path, io::empty())
}

/// Escapes an untrusted path for a terminal.
fn shown(path: &Path) -> String {
    crate::unpack::shown(path.as_os_str().as_bytes())
}

fn named(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", shown(path)))
}

fn header(stat: &Stat, kind: EntryType) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(stat.st_mode & 0o7777);
    header.set_uid(stat.st_uid.into());
    header.set_gid(stat.st_gid.into());
    header.set_mtime(u64::try_from(stat.st_mtime).unwrap_or_default());
    header.set_size(0);
    header
}
