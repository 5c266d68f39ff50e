//! A directory as a layer: packed into an archive on the way, so that it is read like any other and has a digest that
//! depends on nothing but what is in it.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use tar::{Builder, EntryType, Header};

use super::Overrides;
use crate::error::Error;
use crate::store::{LayerUse, Store};

pub(super) fn import(store: &Store, source: &Path, overrides: &Overrides) -> Result<LayerUse, Error> {
    let read = |source_error| Error::Read { path: source.into(), source: source_error };
    let (reader, writer) = io::pipe().map_err(read)?;
    std::thread::scope(|scope| {
        let packing = scope.spawn(move || pack(source, io::BufWriter::with_capacity(128 << 10, writer)));
        let layer = store.add_layer(None, reader, overrides.bounds, overrides.ownership);
        // What could not be read is the cause where both ends fail.
        let packed = packing.join().unwrap_or_else(|_| Err(io::Error::other("packing it broke off")));
        match (packed, layer) {
            (Err(error), Err(_)) if error.kind() == io::ErrorKind::BrokenPipe => {
                Err(read(io::Error::other("what it holds could not be stored")))
            }
            (Err(error), _) => Err(read(error)),
            (Ok(()), layer) => layer,
        }
    })
}

/// Writes every entry, in the order of their names. Sockets are left out: nobody would listen.
fn pack(source: &Path, to: impl Write) -> io::Result<()> {
    let mut archive = Builder::new(to);
    archive.follow_symlinks(false);
    let mut open = vec![source.to_path_buf()];
    while let Some(path) = open.pop() {
        let inside = path.strip_prefix(source).map_err(io::Error::other)?;
        let metadata = fs::symlink_metadata(&path)?;
        let mut header = Header::new_gnu();
        header.set_mode(metadata.mode() & 0o7777);
        header.set_uid(metadata.uid().into());
        header.set_gid(metadata.gid().into());
        header.set_mtime(u64::try_from(metadata.mtime()).unwrap_or_default());
        header.set_size(0);
        let kind = metadata.file_type();
        if kind.is_dir() {
            let mut below: Vec<_> = fs::read_dir(&path)?.collect::<io::Result<Vec<_>>>()?;
            below.sort_by_key(|entry| std::cmp::Reverse(entry.file_name()));
            open.extend(below.into_iter().map(|entry| entry.path()));
            header.set_entry_type(EntryType::Directory);
            let inside = if inside.as_os_str().is_empty() { Path::new(".") } else { inside };
            archive.append_data(&mut header, inside, io::empty())?;
        } else if kind.is_symlink() {
            header.set_entry_type(EntryType::Symlink);
            archive.append_link(&mut header, inside, fs::read_link(&path)?)?;
        } else if kind.is_file() {
            header.set_size(metadata.len());
            // One that grows meanwhile is cut, and one that shrinks is filled: an entry is as long as its header says.
            let content = io::Read::chain(fs::File::open(&path)?, io::repeat(0));
            archive.append_data(&mut header, inside, io::Read::take(content, metadata.len()))?;
        }
    }
    archive.finish()?;
    archive.into_inner()?.flush()
}
