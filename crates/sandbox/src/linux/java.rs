//! CA trust for Java, which reads a key store in each runtime's folder instead of a bundle or directory.
//!
//! The store is made from the bundle in the oldest format (JKS), which every runtime reads, whatever the format of its own store.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use data_encoding::BASE64;
use rustix::fs::{Dir, Mode, OFlags, ResolveFlags, openat2};
use sha1::{Digest, Sha1};

use super::etc::lay_over;
use super::root::{Root, relative};
use crate::plan::inside::OURS;

/// The directories in which runtimes are installed, each in a folder of its own.
const HOMES: [&str; 3] = ["/usr/lib/jvm", "/usr/lib64/jvm", "/opt"];
/// The store below a runtime's folder: since Java 9, and before.
const PLACES: [&str; 2] = ["lib/security/cacerts", "jre/lib/security/cacerts"];
/// The stores to which a distribution's runtimes link: Debian's, and Fedora's.
const SHARED: [&str; 2] = ["/etc/ssl/certs/java/cacerts", "/etc/pki/ca-trust/extracted/java/cacerts"];
/// The most runtimes that are looked at.
const MOST: usize = 64;

/// `JavaKeyStore.MAGIC` and its version 2.
const HEAD: [u8; 8] = [0xfe, 0xed, 0xfe, 0xed, 0, 0, 0, 2];
/// The tag of a trusted certificate.
const TRUSTED: u32 = 2;
/// The lines around a certificate: RFC 7468 §5.1.
const FIRST_LINE: &[u8] = b"-----BEGIN CERTIFICATE-----";
const LAST_LINE: &[u8] = b"-----END CERTIFICATE-----";
/// The length of a certificate's lines, except the last (RFC 7468 §2).
const LINE: usize = 64;
/// The usual text size of a certificate, at most.
const LIKELY: usize = 4 << 10;
/// The usual password of such a store. It protects nothing secret, and many configurations name it.
const PASSWORD: &str = "changeit";
/// The constant that goes into the digest after the password.
const WHITENER: &[u8] = b"Mighty Aphrodite";

/// Mounts a store over those of the runtimes.
pub(super) fn lay(root: &Root, store: &[u8], theirs: &[PathBuf]) -> io::Result<()> {
    let ours = Path::new(OURS).join("cacerts");
    root.file(&ours, store)?;
    theirs.iter().try_for_each(|theirs| lay_over(root, &ours, theirs))
}

/// Finds the stores that are installed inside, and those of the runtimes that the environment leads to. A store that several links name is
/// returned once.
pub(super) fn stores(root: &Root, led_to: &[&Path]) -> Vec<PathBuf> {
    let installed = HOMES.iter().flat_map(|homes| folders(root, Path::new(homes)));
    let homes = installed.chain(led_to.iter().take(MOST).map(|home| (*home).to_owned()));
    let own = homes.flat_map(|home| PLACES.map(|place| home.join(place)));
    let mut found = Vec::new();
    let mut paths: Vec<PathBuf> = SHARED.iter().map(PathBuf::from).chain(own).collect();
    paths.retain(|path| {
        let new = file(root, path).filter(|file| !found.contains(file));
        found.extend(new);
        new.is_some()
    });
    paths
}

/// Returns the identity of the file that a path inside leads to.
fn file(root: &Root, path: &Path) -> Option<(u64, u64)> {
    let opened = root.follow(path, OFlags::PATH).ok()?;
    let stat = rustix::fs::fstat(&opened).ok()?;
    let is_file = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file();
    is_file.then_some((stat.st_dev, stat.st_ino))
}

fn folders(root: &Root, homes: &Path) -> Vec<PathBuf> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS;
    let opened = root.fd().and_then(|fd| Ok(openat2(fd, relative(homes), flags, Mode::empty(), resolve)?));
    let Ok(listed) = opened.and_then(|fd| Ok(Dir::new(fd)?)) else { return Vec::new() };
    let names = listed.flatten().filter(|entry| !entry.file_name().to_bytes().starts_with(b"."));
    let path = |entry: rustix::fs::DirEntry| {
        homes.join(Path::new(std::ffi::OsStr::from_bytes(entry.file_name().to_bytes())))
    };
    names.take(MOST).map(path).collect()
}

/// A key store, made from PEM text. Text outside certificates is ignored.
pub(super) struct Store {
    /// The store without its digest. The number of entries is written at the end.
    content: Vec<u8>,
    count: u32,
    /// The beginning of an incomplete line.
    line: Vec<u8>,
    /// The certificate that the text is in.
    entry: Option<Entry>,
}

/// An incomplete entry.
struct Entry {
    /// The offsets of the entry, and of its certificate, which follows its length.
    start: usize,
    certificate: usize,
    /// The last characters, too few to be decoded.
    rest: Vec<u8>,
    /// Whether padding has ended its text.
    is_over: bool,
}

impl Store {
    /// Returns an empty store, with room for a text of this many octets and one more certificate.
    pub(super) fn of_a_text_of(octets: usize) -> Self {
        let mut content = Vec::with_capacity(octets + LIKELY);
        content.extend(HEAD);
        content.extend([0; 4]);
        Self { content, count: 0, line: Vec::new(), entry: None }
    }

    /// Reads the next piece of the text.
    pub(super) fn read(&mut self, mut piece: &[u8]) {
        while let Some(end) = end_of_line(piece) {
            if self.line.is_empty() {
                self.take_line(&piece[..end]);
            } else {
                let mut line = std::mem::take(&mut self.line);
                line.extend_from_slice(&piece[..end]);
                self.take_line(&line);
            }
            piece = &piece[end + 1..];
        }
        self.line.extend_from_slice(piece);
    }

    fn take_line(&mut self, line: &[u8]) {
        let line = line.trim_ascii();
        if line == FIRST_LINE {
            self.drop_entry();
            self.begin();
        } else if line == LAST_LINE {
            self.end();
        } else if let Some(entry) = &mut self.entry
            && entry.read(line, &mut self.content).is_err()
        {
            self.drop_entry();
        }
    }

    fn begin(&mut self) {
        let out = &mut self.content;
        let start = out.len();
        out.extend(TRUSTED.to_be_bytes());
        text(out, &format!("lockgate-{}", self.count));
        out.extend(0u64.to_be_bytes()); // its creation time
        text(out, "X.509");
        out.extend(0u32.to_be_bytes());
        self.entry = Some(Entry { start, certificate: out.len(), rest: Vec::new(), is_over: false });
    }

    fn end(&mut self) {
        match self.entry.take_if(|entry| entry.rest.is_empty()) {
            Some(Entry { certificate, .. }) => {
                let length = (self.content.len() - certificate) as u32;
                self.content[certificate - 4..certificate].copy_from_slice(&length.to_be_bytes());
                self.count += 1;
            }
            None => self.drop_entry(),
        }
    }

    /// Drops the incomplete entry, which is no certificate.
    fn drop_entry(&mut self) {
        if let Some(entry) = self.entry.take() {
            self.content.truncate(entry.start);
        }
    }

    /// Returns the complete store.
    pub(super) fn finish(mut self) -> Vec<u8> {
        let line = std::mem::take(&mut self.line);
        self.take_line(&line);
        self.drop_entry();
        let mut out = self.content;
        out[HEAD.len()..HEAD.len() + 4].copy_from_slice(&self.count.to_be_bytes());
        let mut digest = Sha1::new();
        PASSWORD.encode_utf16().for_each(|unit| digest.update(unit.to_be_bytes()));
        digest.update(WHITENER);
        digest.update(&out);
        out.extend(digest.finalize());
        out
    }
}

impl Entry {
    /// Decodes a line, in whole groups of four characters.
    fn read(&mut self, line: &[u8], out: &mut Vec<u8>) -> Result<(), ()> {
        if line.is_empty() {
            return Ok(());
        }
        if self.is_over {
            return Err(());
        }
        self.is_over = line.ends_with(b"=");
        if self.rest.is_empty() && line.len().is_multiple_of(4) {
            return decode(line, out);
        }
        self.rest.extend_from_slice(line);
        let whole = self.rest.len() / 4 * 4;
        decode(&self.rest[..whole], out)?;
        self.rest.drain(..whole);
        Ok(())
    }
}

fn decode(text: &[u8], out: &mut Vec<u8>) -> Result<(), ()> {
    let room = BASE64.decode_len(text.len()).map_err(drop)?;
    let start = out.len();
    out.resize(start + room, 0);
    let size = BASE64.decode_mut(text, &mut out[start..]).map_err(drop)?;
    out.truncate(start + size);
    Ok(())
}

/// Finds the end of the first line. Most lines have full length, which needs no search.
fn end_of_line(text: &[u8]) -> Option<usize> {
    if text.get(LINE) == Some(&b'\n') && !text[..LINE].contains(&b'\n') {
        return Some(LINE);
    }
    text.iter().position(|octet| *octet == b'\n')
}

/// Writes a text as Java does: after its length in two octets.
fn text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u16).to_be_bytes());
    out.extend(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "-----BEGIN CERTIFICATE-----\nMAMCAQE=\n-----END CERTIFICATE-----\n";

    fn store(bundle: &[u8]) -> Vec<u8> {
        let mut store = Store::of_a_text_of(bundle.len());
        store.read(bundle);
        store.finish()
    }

    #[test]
    fn pieces_of_any_size_make_the_same_store() {
        let bundle = format!("x\n{ONE}# {ONE}\r\n{ONE}").replace("\nMAMC", "\r\n MA\nMC");
        let whole = store(bundle.as_bytes());
        assert_eq!(whole[8..12], [0, 0, 0, 2], "the one behind a mark is none");
        for size in 1..bundle.len() {
            let mut pieces = Store::of_a_text_of(0);
            bundle.as_bytes().chunks(size).for_each(|piece| pieces.read(piece));
            assert_eq!(pieces.finish(), whole, "in pieces of {size}");
        }
    }

    #[test]
    fn every_certificate_is_an_entry_and_the_digest_is_of_all() {
        let made = store(format!("# a comment\n{ONE}\n{ONE}").as_bytes());
        assert_eq!(made[..12], [0xfe, 0xed, 0xfe, 0xed, 0, 0, 0, 2, 0, 0, 0, 2]);
        let entry =
            [&[0, 0, 0, 2, 0, 10][..], b"lockgate-0", &[0; 8], &[0, 5], b"X.509", &[0, 0, 0, 5]].concat();
        assert_eq!(made[12..12 + entry.len()], entry);
        assert_eq!(made.len(), 12 + 2 * (entry.len() + 5) + 20);
    }

    #[test]
    fn what_is_no_certificate_is_left_out() {
        assert_eq!(store(b"nothing here")[8..12], [0; 4]);
        for broken in ["!!!", "!!!!", "MAMCAQ", "MA==\nAQE=", "MA==\nMA", "MAMC\n!!!!\nAQE=", "M"] {
            let broken = format!("-----BEGIN CERTIFICATE-----\n{broken}\n-----END CERTIFICATE-----\n");
            assert_eq!(store(broken.as_bytes()), store(b""), "{broken}");
            assert_eq!(
                store(format!("{broken}{ONE}{broken}{ONE}").as_bytes()),
                store(format!("{ONE}{ONE}").as_bytes()),
                "{broken}"
            );
        }
        let unended = format!("{ONE}-----BEGIN CERTIFICATE-----\nMAMC\n");
        assert_eq!(store(unended.as_bytes()), store(ONE.as_bytes()));
        assert_eq!(store(format!("{unended}{ONE}").as_bytes()), store(format!("{ONE}{ONE}").as_bytes()));
    }
}
