//! Trust inside for Java, which reads neither bundle nor directory but a key store of its own, in each runtime's folder.
//!
//! The store is made anew from the bundle, in the oldest form (JKS): every runtime reads it, whatever the form of its own.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Dir, Mode, OFlags, ResolveFlags, openat2};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
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
/// The password every such store has: it keeps nothing secret, and many configurations give it.
const PASSWORD: &str = "changeit";
/// What is mixed into the digest beside the password.
const WHITENER: &[u8] = b"Mighty Aphrodite";

/// Lays a store with every authority of the bundle over those of the runtimes that are installed, and of the one that the
/// environment names.
pub(super) fn trust(root: &Root, bundle: &[u8], home: Option<&Path>) -> io::Result<()> {
    let found = stores(root, home);
    if found.is_empty() {
        return Ok(());
    }
    let content = store(bundle);
    let ours = Path::new(OURS).join("cacerts");
    root.file(&ours, &content)?;
    found.iter().try_for_each(|theirs| lay_over(root, &ours, theirs, &content))
}

/// The stores there are inside, each by one name: several lead to one by links.
fn stores(root: &Root, home: Option<&Path>) -> Vec<PathBuf> {
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

/// A key store of all certificates in a text of PEM; what is none is left out.
fn store(bundle: &[u8]) -> Vec<u8> {
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(bundle).flatten().collect();
    let mut out = Vec::with_capacity(bundle.len());
    out.extend(HEAD);
    out.extend((certificates.len() as u32).to_be_bytes());
    for (index, certificate) in certificates.iter().enumerate() {
        out.extend(TRUSTED.to_be_bytes());
        text(&mut out, &format!("lockgate-{index}"));
        out.extend(0u64.to_be_bytes()); // when it was made
        text(&mut out, "X.509");
        out.extend((certificate.len() as u32).to_be_bytes());
        out.extend_from_slice(certificate);
    }
    let mut digest = Sha1::new();
    PASSWORD.encode_utf16().for_each(|unit| digest.update(unit.to_be_bytes()));
    digest.update(WHITENER);
    digest.update(&out);
    out.extend(digest.finalize());
    out
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
