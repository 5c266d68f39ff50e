//! Reads or opens what a sidecar needs of its machine, before it is confined.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use policy::agreed::CA_BUNDLES;
use rustls::pki_types::{CertificateDer, UnixTime};

use crate::file_opener::FileOpener;
use crate::local_addresses::LocalAddresses;
use crate::read_file::{ReadFile, open_regular};
use crate::resolve::{Answers, HOSTS, RESOLV_CONF};
use crate::trusted::{Trusted, certificates_in};

/// The largest bundle of authorities that is read, in octets.
pub(crate) const LARGEST_BUNDLE: u64 = 8 << 20;
/// How much of a bundle is searched for a first authority.
const BEGINNING: u64 = 32 << 10;
/// The lines around a certificate (RFC 7468 §5.1).
const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
const END: &str = "-----END CERTIFICATE-----";

/// The files that a sidecar needs, read or opened before it is confined.
#[derive(Debug, Default)]
pub struct Files {
    resolv_conf: ReadFile,
    hosts: ReadFile,
    opener: Option<FileOpener>,
    bundle: Bundle,
    local: LocalAddresses,
}

/// The certification authorities that upstreams are verified against.
#[derive(Debug, Default)]
pub(crate) enum Bundle {
    /// The authorities in a file that `SSL_CERT_FILE` names, and no others.
    Named(File),
    /// The authorities of a machine.
    Usual(File),
    /// The authorities that are compiled in.
    #[default]
    BuiltIn,
}

/// What a sidecar needs of its machine cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    /// The file that `SSL_CERT_FILE` names cannot be used.
    #[error("use the authorities in {path}, which SSL_CERT_FILE names: {source}")]
    Bundle {
        /// Its path.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// The kernel does not tell this machine's addresses.
    #[error("ask for this machine's addresses: {0}")]
    Addresses(#[source] io::Error),
}

impl Files {
    /// Reads the resolver's configuration and opens the bundle. `bundle` is the value of `SSL_CERT_FILE`, if it is set.
    ///
    /// # Errors
    /// When the named file cannot be read or holds no authority, because to fall back to others would trust them unasked; and when the
    /// kernel does not tell this machine's addresses.
    pub fn open(bundle: Option<&str>) -> Result<Self, FilesError> {
        let bundle = match bundle.filter(|path| !path.is_empty()) {
            Some(path) => {
                Bundle::Named(named(path).map_err(|source| FilesError::Bundle { path: path.into(), source })?)
            }
            None => {
                let usual = CA_BUNDLES.iter().find_map(|path| open_regular(path).ok());
                usual.map_or(Bundle::BuiltIn, Bundle::Usual)
            }
        };
        Ok(Self {
            resolv_conf: ReadFile::open(Path::new(RESOLV_CONF)),
            hosts: ReadFile::open(Path::new(HOSTS)),
            opener: None,
            bundle,
            local: LocalAddresses::look().map_err(FilesError::Addresses)?,
        })
    }

    /// Replaces the bundle by that of another machine.
    #[must_use]
    pub fn trusting(self, bundle: File) -> Self {
        Self { bundle: Bundle::Usual(bundle), ..self }
    }

    /// Has the files of names opened anew when they have changed. Without it they are read once.
    #[must_use]
    pub fn reopened_by(self, opener: FileOpener) -> Self {
        Self { opener: Some(opener), ..self }
    }

    /// Reads the certificates in the bundle as PEM, to hand them to another process. Comments and keys beside them stay here.
    ///
    /// # Errors
    /// When the bundle cannot be read.
    pub fn into_certificates(self) -> io::Result<String> {
        let (Bundle::Named(file) | Bundle::Usual(file)) = self.bundle else { return Ok(String::new()) };
        Ok(certificates_in(&read(file)?).map(|it| in_pem(&it)).collect())
    }

    /// Returns the resolver, the bundle, and what tells this machine's addresses.
    pub(crate) fn into_parts(self) -> (Answers, Bundle, LocalAddresses) {
        (Answers::system(self.resolv_conf, self.hosts, self.opener), self.bundle, self.local)
    }

    /// The descriptor that must stay open in the sidecar.
    #[must_use]
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match &self.bundle {
            Bundle::Named(file) | Bundle::Usual(file) => Some(file.as_fd()),
            Bundle::BuiltIn => None,
        }
    }
}

/// Returns what a bundle that `SSL_CERT_FILE` names holds beyond this machine's own: each certificate that counts, as PEM.
///
/// # Errors
/// When the file cannot be used.
pub fn beyond_usual(path: &str) -> Result<String, FilesError> {
    beyond(path, CA_BUNDLES.iter().find_map(|path| open_regular(path).ok()))
        .map_err(|source| FilesError::Bundle { path: path.into(), source })
}

fn beyond(path: &str, usual: Option<File>) -> io::Result<String> {
    let file = named(path)?;
    let identity = |file: &File| file.metadata().map(|about| (about.dev(), about.ino()));
    if let Some(usual) = &usual
        && identity(usual)? == identity(&file)?
    {
        return Ok(String::new());
    }
    let usual = usual.map(read).transpose()?.unwrap_or_default();
    let mut known: HashSet<_> = certificates_in(&usual).collect();
    let now = UnixTime::now();
    let counts = |it: &CertificateDer<'static>| !Trusted::among(std::iter::once(it.clone()), now).is_empty();
    let whole = read(file)?;
    let further = certificates_in(&whole).filter(|it| known.insert(it.clone())).filter(counts);
    Ok(further.map(|it| in_pem(&it)).collect())
}

fn read(file: File) -> io::Result<Vec<u8>> {
    let mut pem = Vec::new();
    file.take(LARGEST_BUNDLE).read_to_end(&mut pem)?;
    Ok(pem)
}

/// Writes a certificate as PEM, in lines of 64 characters (RFC 7468 §2): some programs read no longer ones.
fn in_pem(der: &CertificateDer<'_>) -> String {
    let text = data_encoding::BASE64.encode(der);
    let lines = text.as_bytes().chunks(64).map(|line| String::from_utf8_lossy(line) + "\n");
    format!("{BEGIN}\n{}{END}\n", lines.collect::<String>())
}

/// Opens a named bundle, and checks that it holds an authority, or a server's certificate.
fn named(path: &str) -> io::Result<File> {
    let mut file = open_regular(path)?;
    let mut pem = Vec::with_capacity(BEGINNING as usize);
    // One authority is enough, and most bundles begin with one. To parse them all would cost a start a millisecond.
    let mut has_one = |most: u64| -> io::Result<bool> {
        (&file).take(most - pem.len() as u64).read_to_end(&mut pem)?;
        let now = UnixTime::now();
        Ok(certificates_in(&pem).any(|it| !Trusted::among(std::iter::once(it), now).is_empty()))
    };
    if !has_one(BEGINNING)? && !has_one(LARGEST_BUNDLE)? {
        return Err(io::Error::other(
            "there is no certificate in it of an authority that is valid, or of a server",
        ));
    }
    file.rewind()?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_file_that_is_named_no_other_takes_the_place() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        let refusal = |path: &str| Files::open(Some(path)).unwrap_err().to_string();
        for (name, why) in
            [("missing", "No such file"), ("empty", "no certificate"), ("prose", "no certificate")]
        {
            if name != "missing" {
                std::fs::write(path(name), if name == "prose" { "authorities\n" } else { "" }).unwrap();
            }
            let told = refusal(&path(name));
            assert!(told.contains(&path(name)) && told.contains("SSL_CERT_FILE"), "{told}");
            assert!(told.contains(why), "{told}");
        }
        assert!(refusal(folder.path().to_str().unwrap()).contains("directory"));
        rustix::fs::mkfifoat(rustix::fs::CWD, path("pipe"), rustix::fs::Mode::RWXU).unwrap();
        assert!(refusal(&path("pipe")).contains("no regular file"), "nobody is waited for");

        let authority = crate::tls::RunAuthority::make().unwrap();
        std::fs::write(path("one"), format!("an authority\n{}", authority.certificate_pem())).unwrap();
        let far = format!("{}{}", "# of no use\n".repeat(5000), authority.certificate_pem());
        std::fs::write(path("far"), far).unwrap();
        assert!(Files::open(Some(&path("far"))).is_ok(), "it may begin with prose");
        let mut whole = String::new();
        let Bundle::Named(mut file) = Files::open(Some(&path("one"))).unwrap().bundle else { panic!() };
        file.read_to_string(&mut whole).unwrap();
        assert!(whole.starts_with("an authority"), "it is read from its beginning later: {whole}");
        assert!(Files::open(Some("")).is_ok() && Files::open(None).is_ok());
    }

    #[test]
    fn what_a_named_bundle_adds_is_what_counts_and_is_in_no_usual_one() {
        let [usual, further] = [(); 2].map(|()| crate::tls::RunAuthority::make().unwrap());
        let [usual, further] = [&usual, &further].map(|it| it.certificate_pem().to_owned());
        let none = rcgen::CertificateParams::default().self_signed(&rcgen::KeyPair::generate().unwrap());
        let key = "-----BEGIN PRIVATE KEY-----\na2V5\n-----END PRIVATE KEY-----\n";
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        std::fs::write(path("usual"), &usual).unwrap();
        std::fs::write(path("own"), [&usual, &further, key, &none.unwrap().pem(), &further].concat())
            .unwrap();
        std::os::unix::fs::symlink("usual", path("link")).unwrap();
        let beyond = |name: &str, usual: Option<&str>| {
            beyond(&path(name), usual.map(|name| File::open(path(name)).unwrap())).unwrap()
        };
        let ders = |pem: &str| certificates_in(pem.as_bytes()).collect::<Vec<_>>();
        let added = beyond("own", Some("usual"));
        assert_eq!(ders(&added), ders(&further), "{added}");
        assert!(!added.contains("KEY"), "{added}");
        assert_eq!(ders(&beyond("own", None)), ders(&(usual + &further)));
        assert_eq!(beyond("link", Some("usual")) + &beyond("usual", Some("own")), "");
        assert!(beyond_usual(&path("none")).unwrap_err().to_string().contains("SSL_CERT_FILE"));
    }

    #[test]
    fn another_process_is_told_the_certificates_alone() {
        let authority = || crate::tls::RunAuthority::make().unwrap().certificate_pem().as_bytes().to_vec();
        let beside = b"-----BEGIN PRIVATE KEY-----\na2V5\n-----END PRIVATE KEY-----\n# Pr\xfcfstelle\n";
        let text = [authority(), beside.to_vec(), authority()].concat();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), &text).unwrap();
        let told = Files::open(file.path().to_str()).unwrap().into_certificates().unwrap();
        assert!(certificates_in(told.as_bytes()).eq(certificates_in(&text)));
        assert_eq!(told.lines().filter(|line| [BEGIN, END].contains(line)).count(), 4, "{told}");
        assert!(told.lines().all(|line| line.len() <= 64 && !line.contains("KEY")), "{told}");
    }
}
