//! Trust inside for Java, which reads neither bundle nor directory but a key store of its own, in each runtime's folder.
//!
//! The store is made anew from the bundle, in the oldest form (JKS): every runtime reads it, whatever the form of its own.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use data_encoding::BASE64;
use rustix::fs::{Dir, Mode, OFlags, ResolveFlags, openat2};
use sha1::{Digest, Sha1};

use super::etc::{OURS, lay_over};
use super::root::{Root, relative};

/// Where runtimes are installed, each in a folder of its own.
const HOMES: [&str; 3] = ["/usr/lib/jvm", "/usr/lib64/jvm", "/opt"];
/// Below a runtime's folder: since Java 9, and before.
const PLACES: [&str; 2] = ["lib/security/cacerts", "jre/lib/security/cacerts"];
/// Where the runtimes of a distribution have theirs by a link: Debian's, and Fedora's.
const SHARED: [&str; 2] = ["/etc/ssl/certs/java/cacerts", "/etc/pki/ca-trust/extracted/java/cacerts"];
/// How many runtimes are looked at.
const MOST: usize = 64;

/// `JavaKeyStore.MAGIC` and its version 2.
const HEAD: [u8; 8] = [0xfe, 0xed, 0xfe, 0xed, 0, 0, 0, 2];
/// The tag of a certificate that is trusted.
const TRUSTED: u32 = 2;
/// Around a certificate: RFC 7468 §5.1.
const FIRST_LINE: &[u8] = b"-----BEGIN CERTIFICATE-----";
const LAST_LINE: &[u8] = b"-----END CERTIFICATE-----";
/// How long one is, as it is written, at most if it is not unusual.
const LIKELY: usize = 4 << 10;
/// The password every such store has: it keeps nothing secret, and many configurations give it.
const PASSWORD: &str = "changeit";
/// What is mixed into the digest beside the password.
const WHITENER: &[u8] = b"Mighty Aphrodite";

/// Lays a store over those of the runtimes.
pub(super) fn lay(root: &Root, store: &[u8], theirs: &[PathBuf]) -> io::Result<()> {
    let ours = Path::new(OURS).join("cacerts");
    root.file(&ours, store)?;
    theirs.iter().try_for_each(|theirs| lay_over(root, &ours, theirs))
}

/// The stores that are installed inside, and that of the runtime which the environment names, each by one name: several lead to
/// one by links.
pub(super) fn stores(root: &Root, home: Option<&Path>) -> Vec<PathBuf> {
    let installed = HOMES.iter().flat_map(|homes| folders(root, Path::new(homes)));
    let homes = installed.chain(home.map(Path::to_owned));
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

/// Which file a path inside leads to.
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

/// A key store that is being made of a text of PEM; what is no certificate is left out.
pub(super) struct Store {
    /// All of it but the digest; the number of entries is not written yet.
    content: Vec<u8>,
    count: u32,
    /// The beginning of a line whose end has not come yet.
    line: Vec<u8>,
    /// What a certificate is written as so far, between its first line and its last.
    written: Option<Vec<u8>>,
}

impl Store {
    /// One of nothing yet.
    pub(super) fn new() -> Self {
        Self { content: [&HEAD[..], &[0; 4]].concat(), count: 0, line: Vec::new(), written: None }
    }

    /// Reads on.
    pub(super) fn read(&mut self, mut piece: &[u8]) {
        while let Some(end) = memchr::memchr(b'\n', piece) {
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
            self.written = Some(Vec::with_capacity(LIKELY));
        } else if line == LAST_LINE {
            if let Some(written) = self.written.take() {
                self.add(&written);
            }
        } else if let Some(written) = &mut self.written {
            written.extend_from_slice(line);
        }
    }

    fn add(&mut self, written: &[u8]) {
        let Ok(room) = BASE64.decode_len(written.len()) else { return };
        let out = &mut self.content;
        let start = out.len();
        out.extend(TRUSTED.to_be_bytes());
        text(out, &format!("lockgate-{}", self.count));
        out.extend(0u64.to_be_bytes()); // when it was made
        text(out, "X.509");
        let length = out.len();
        out.extend(0u32.to_be_bytes());
        let certificate = out.len();
        out.resize(certificate + room, 0);
        match BASE64.decode_mut(written, &mut out[certificate..]) {
            Ok(size) => {
                out.truncate(certificate + size);
                out[length..certificate].copy_from_slice(&(size as u32).to_be_bytes());
                self.count += 1;
            }
            Err(_) => out.truncate(start),
        }
    }

    /// The store of all that was read.
    pub(super) fn finish(mut self) -> Vec<u8> {
        let line = std::mem::take(&mut self.line);
        self.take_line(&line);
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

/// A text as Java writes it: its length in two octets before it.
fn text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u16).to_be_bytes());
    out.extend(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "-----BEGIN CERTIFICATE-----\nMAMCAQE=\n-----END CERTIFICATE-----\n";

    fn store(bundle: &[u8]) -> Vec<u8> {
        let mut store = Store::new();
        store.read(bundle);
        store.finish()
    }

    #[test]
    fn pieces_of_any_size_make_the_same_store() {
        let bundle = format!("x\n{ONE}# {ONE}\r\n{ONE}").replace("\nMAMC", "\r\n MA\nMC");
        let whole = store(bundle.as_bytes());
        assert_eq!(whole[8..12], [0, 0, 0, 2], "the one behind a mark is none");
        for size in 1..bundle.len() {
            let mut pieces = Store::new();
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
        let broken = "-----BEGIN CERTIFICATE-----\n!!!\n-----END CERTIFICATE-----\n";
        assert_eq!(store(broken.as_bytes())[8..12], [0; 4]);
    }
}
