//! Reads the entries of a tar archive in order: headers of the old, the GNU and the POSIX format, and the extensions that carry long
//! names. A header's size is counted against the bounds before any content is read.

use std::io::{self, Read, Seek};

use tar::Header;

use super::{Bounds, Unpacked};
use crate::error::{OCTETS, UnpackError};

/// The size of a tar block.
const BLOCK: usize = 512;
/// The largest extension header: a name, a link and a few numbers.
const LARGEST_EXTENSION: u64 = 1 << 20;
/// How many extension headers may stand before one entry.
const MOST_EXTENSIONS: u32 = 16;

/// The kind of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    Directory,
    Link,
    HardLink,
    Pipe,
    Device,
}

/// An entry's owner, mode and time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Meta {
    pub(super) mode: u32,
    pub(super) uid: u64,
    pub(super) gid: u64,
    /// Seconds since the epoch.
    pub(super) mtime: i64,
}

/// One entry.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) name: Vec<u8>,
    pub(crate) link: Vec<u8>,
    pub(crate) kind: Kind,
    pub(super) meta: Meta,
}

/// A reader of an archive.
pub(crate) struct Archive<R> {
    reader: R,
    bounds: Bounds,
    taken: Unpacked,
    /// Unread octets of the current entry's content, and of the padding of its last block.
    content: u64,
    padding: u64,
    /// Skips octets; returns how many.
    pass: fn(&mut R, u64) -> io::Result<u64>,
}

/// The values of extension headers for the entry after them.
#[derive(Default)]
struct Extensions {
    name: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
    uid: Option<u64>,
    gid: Option<u64>,
    mtime: Option<i64>,
}

impl<R: Read> Archive<R> {
    pub(crate) fn new(reader: R, bounds: Bounds) -> Self {
        let pass = |reader: &mut R, left| io::copy(&mut reader.take(left), &mut io::sink());
        let taken = Unpacked { octets: 0, entries: 0 };
        Self { reader, bounds, taken, content: 0, padding: 0, pass }
    }

    /// Returns the offset and the length of the current entry's content, in an archive that is a file.
    pub(crate) fn place(&mut self) -> io::Result<(u64, u64)>
    where
        R: Seek,
    {
        Ok((self.reader.stream_position()?, self.content))
    }

    /// Reads an archive that is a file, whose contents are skipped by seeking.
    pub(crate) fn seekable(reader: R, bounds: Bounds) -> Self
    where
        R: Seek,
    {
        let pass = |reader: &mut R, left: u64| {
            let signed = i64::try_from(left).map_err(io::Error::other)?;
            reader.seek_relative(signed).map(|()| left)
        };
        Self { pass, ..Self::new(reader, bounds) }
    }

    /// Returns how much of the bounds is used.
    pub(super) fn taken(&self) -> Unpacked {
        self.taken
    }

    /// Returns the next entry; `None` at the end. Skips the unread content of the one before.
    pub(crate) fn next(&mut self) -> Result<Option<Entry>, UnpackError> {
        let mut extensions = Extensions::default();
        for _ in 0..=MOST_EXTENSIONS {
            self.skip()?;
            let Some(header) = self.header()? else { return Ok(None) };
            let size = or_zero(&header.as_old().size, || header.entry_size())?;
            match header.entry_type().as_byte() {
                b'L' => extensions.name = Some(until_nul(self.extension(size)?)),
                b'K' => extensions.link = Some(until_nul(self.extension(size)?)),
                b'x' | b'X' => extensions.read(&self.extension(size)?)?,
                // Global extensions: comments, in practice; and the name of the whole archive, tar(5).
                b'g' | b'V' => self.open(size)?,
                _ => return self.entry(&header, size, extensions).map(Some),
            }
        }
        Err(UnpackError::Malformed("too many extension headers stand before one entry".into()))
    }

    /// Reads from the current entry's content.
    pub(super) fn content(&mut self, buffer: &mut [u8]) -> Result<usize, UnpackError> {
        let most = usize::try_from(self.content).unwrap_or(usize::MAX).min(buffer.len());
        if most == 0 {
            return Ok(0);
        }
        let read = self.reader.read(&mut buffer[..most]).map_err(UnpackError::Read)?;
        if read == 0 {
            return Err(UnpackError::Malformed("it ends within an entry".into()));
        }
        self.content -= read as u64;
        Ok(read)
    }

    fn entry(&mut self, header: &Header, size: u64, with: Extensions) -> Result<Entry, UnpackError> {
        let name = with.name.unwrap_or_else(|| header.path_bytes().into_owned());
        let kind = match header.entry_type().as_byte() {
            // Archives without entry kinds mark a directory by its name.
            0 if name.ends_with(b"/") => Kind::Directory,
            b'0' | 0 | b'7' => Kind::File,
            b'1' => Kind::HardLink,
            b'2' => Kind::Link,
            b'3' | b'4' => Kind::Device,
            b'5' => Kind::Directory,
            b'6' => Kind::Pipe,
            b'S' => return Err(super::name::refuse(&name, "is sparse, which is not understood here")),
            _ => return Err(super::name::refuse(&name, "is of a kind that is not understood here")),
        };
        self.taken.entries += 1;
        if self.taken.entries > self.bounds.entries {
            return Err(UnpackError::TooLarge { bound: self.bounds.entries, unit: "entries" });
        }
        // Only a file has content, whatever size the header of another kind gives.
        self.open(if kind == Kind::File { with.size.unwrap_or(size) } else { 0 })?;
        let fields = header.as_old();
        let meta = Meta {
            mode: or_zero(&fields.mode, || header.mode())?,
            uid: with.uid.map_or_else(|| or_zero(&fields.uid, || header.uid()), Ok)?,
            gid: with.gid.map_or_else(|| or_zero(&fields.gid, || header.gid()), Ok)?,
            mtime: match with.mtime {
                Some(mtime) => mtime,
                None => i64::try_from(or_zero(&fields.mtime, || header.mtime())?).unwrap_or_default(),
            },
        };
        let link = with.link.or_else(|| header.link_name_bytes().map(|l| l.into_owned())).unwrap_or_default();
        Ok(Entry { name, link, kind, meta })
    }

    /// Reads the next header; `None` at the end mark, or at the end of the archive.
    fn header(&mut self) -> Result<Option<Header>, UnpackError> {
        let mut header = Header::new_old();
        let mut filled = 0;
        while filled < BLOCK {
            match self.reader.read(&mut header.as_mut_bytes()[filled..]) {
                Ok(0) if filled == 0 => return Ok(None),
                Ok(0) => return Err(UnpackError::Malformed("it ends within a header".into())),
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(UnpackError::Read(error)),
            }
        }
        self.take(BLOCK as u64)?;
        if header.as_bytes().iter().all(|b| *b == 0) {
            return Ok(None);
        }
        let sum: u32 = header.as_bytes().iter().map(|b| u32::from(*b)).sum();
        let own: u32 = header.as_old().cksum.iter().map(|b| u32::from(*b)).sum();
        // The checksum counts its own field as eight spaces.
        if header.cksum().map_err(malformed)? != sum - own + 8 * 32 {
            return Err(UnpackError::Malformed("the checksum of a header is wrong".into()));
        }
        Ok(Some(header))
    }

    /// Begins an entry's content, and counts it against the bounds.
    fn open(&mut self, size: u64) -> Result<(), UnpackError> {
        if size >= u64::MAX / 2 {
            return Err(UnpackError::Malformed("an entry's size is no size".into()));
        }
        let padding = size.next_multiple_of(BLOCK as u64) - size;
        self.take(size + padding)?;
        (self.content, self.padding) = (size, padding);
        Ok(())
    }

    fn take(&mut self, octets: u64) -> Result<(), UnpackError> {
        self.taken.octets = self.taken.octets.saturating_add(octets);
        if self.taken.octets > self.bounds.octets {
            return Err(UnpackError::TooLarge { bound: self.bounds.octets, unit: OCTETS });
        }
        Ok(())
    }

    fn skip(&mut self) -> Result<(), UnpackError> {
        let left = std::mem::take(&mut self.content) + std::mem::take(&mut self.padding);
        let skipped = (self.pass)(&mut self.reader, left).map_err(UnpackError::Read)?;
        if skipped == left { Ok(()) } else { Err(UnpackError::Malformed("it ends within an entry".into())) }
    }

    fn extension(&mut self, size: u64) -> Result<Vec<u8>, UnpackError> {
        if size > LARGEST_EXTENSION {
            return Err(UnpackError::Malformed("an extension header is larger than 1 MiB".into()));
        }
        self.open(size)?;
        let mut octets = vec![0; usize::try_from(size).unwrap_or(0)];
        self.reader.read_exact(&mut octets).map_err(UnpackError::Read)?;
        self.content = 0;
        Ok(octets)
    }
}

impl Extensions {
    /// Parses records of `LENGTH KEY=VALUE\n`, pax(1). Ignores unknown keys.
    fn read(&mut self, mut octets: &[u8]) -> Result<(), UnpackError> {
        let broken = || UnpackError::Malformed("an extension header is broken".into());
        while !octets.is_empty() {
            let space = octets.iter().take(20).position(|b| *b == b' ').ok_or_else(broken)?;
            let length: usize = number(&octets[..space]).ok_or_else(broken)?;
            let record =
                octets.get(space + 1..length).and_then(|r| r.strip_suffix(b"\n")).ok_or_else(broken)?;
            let equals = record.iter().position(|b| *b == b'=').ok_or_else(broken)?;
            let (key, value) = (&record[..equals], &record[equals + 1..]);
            match key {
                b"path" => self.name = Some(value.to_vec()),
                b"linkpath" => self.link = Some(value.to_vec()),
                b"size" => self.size = Some(number(value).ok_or_else(broken)?),
                b"uid" => self.uid = Some(number(value).ok_or_else(broken)?),
                b"gid" => self.gid = Some(number(value).ok_or_else(broken)?),
                b"mtime" => {
                    let whole = value.split(|b| *b == b'.').next().unwrap_or_default();
                    self.mtime = number(whole);
                }
                key if key.starts_with(b"GNU.sparse.") => {
                    return Err(UnpackError::Malformed(
                        "an entry is sparse, which is not understood here".into(),
                    ));
                }
                _ => {}
            }
            octets = &octets[length..];
        }
        Ok(())
    }
}

fn number<T: std::str::FromStr>(digits: &[u8]) -> Option<T> {
    std::str::from_utf8(digits).ok().filter(|text| !text.starts_with('+')).and_then(|text| text.parse().ok())
}

/// Returns a number of a header; 0 if its field is empty, as some writers leave it.
fn or_zero<T: Default>(field: &[u8], read: impl Fn() -> io::Result<T>) -> Result<T, UnpackError> {
    let is_empty = field.iter().all(|octet| matches!(octet, 0 | b' '));
    if is_empty { Ok(T::default()) } else { read().map_err(malformed) }
}

fn until_nul(mut octets: Vec<u8>) -> Vec<u8> {
    let end = octets.iter().position(|b| *b == 0).unwrap_or(octets.len());
    octets.truncate(end);
    octets
}

/// Returns an error without the library's text, which would show parts of whatever file this is.
fn malformed(_: io::Error) -> UnpackError {
    UnpackError::Malformed("a field of a header is not a number; is this a tar archive?".into())
}
