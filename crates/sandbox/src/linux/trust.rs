//! CA trust inside: adds further authorities, as the run's own, to those of the host, where programs look for them. A program may clear its
//! environment, so the system's places have it as well, and not only the files that variables name.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use policy::agreed::CA_BUNDLES;
use rustix::fs::OFlags;
use sys::mount::{self, Flags};

use super::etc::lay_over;
use super::java::{self, Store};
use super::root::Root;
use crate::environment::{AUTHORITY, BUNDLE};
use crate::further_authorities::FurtherAuthorities;
use crate::host::DIRECTORY;
use crate::plan::inside::OURS;

/// The index entry of the name that every run's authority has, as `openssl x509 -subject_hash` prints it.
const HASHED: &str = "9ae90c74.0";
/// The largest CA bundle that is read.
const LARGEST: u64 = 8 << 20;
/// The size of one read of it. Small, because touching new memory is costly for a start.
const PIECE: usize = 32 << 10;

/// The host's authorities, prepared to take further ones.
pub(super) struct Trust<'a> {
    /// The bundle of the host or the image, and our file with its content.
    bundle: Option<&'a Path>,
    ours: File,
    /// The stores of the Java runtimes inside, and the one to mount over them.
    stores: Vec<PathBuf>,
    store: Option<Store>,
}

impl<'a> Trust<'a> {
    /// Does everything that does not need the run's own, which the sidecar makes meanwhile. `java` are the runtimes that the
    /// environment leads to.
    pub(super) fn prepare(root: &Root, bundle: Option<&'a Path>, java: &[&Path]) -> io::Result<Self> {
        // In an image, the first of the usual bundles that exists.
        let of_image = || CA_BUNDLES.map(Path::new).into_iter().find(|path| root.open_file(path).is_ok());
        let bundle = bundle.or_else(|| if root.is_image() { of_image() } else { None });
        // Without a bundle, a runtime's own store is better than one made here.
        let stores = bundle.map_or_else(Vec::new, |_| java::stores(root, java));
        let theirs = bundle.map(|bundle| root.open_file(bundle)).transpose()?;
        let size =
            theirs.as_ref().map_or(0, |file| file.metadata().map_or(0, |about| about.len().min(LARGEST)));
        let store = (!stores.is_empty()).then(|| Store::of_a_text_of(size as usize));
        let mut trust = Self { bundle, ours: root.create(Path::new(BUNDLE))?, stores, store };
        if let Some(theirs) = theirs {
            let mut theirs = theirs.take(LARGEST);
            let mut piece = vec![0; PIECE];
            while let length @ 1.. = theirs.read(&mut piece)? {
                trust.add(&piece[..length])?;
            }
        }
        Ok(trust)
    }

    fn add(&mut self, piece: &[u8]) -> io::Result<()> {
        self.store.iter_mut().for_each(|store| store.read(piece));
        self.ours.write_all(piece)
    }

    /// Makes programs trust the further authorities, the run's own given as PEM if it is one of them.
    pub(super) fn lay(
        mut self,
        root: &Root,
        own: Option<&[u8]>,
        further: &FurtherAuthorities,
    ) -> io::Result<()> {
        let all = further.with(own.unwrap_or_default());
        root.file(Path::new(AUTHORITY), &all)?;
        self.add(b"\n")?;
        self.add(&all)?;
        own.map_or(Ok(()), |own| index(root, own))?;
        // After the index, whose mount would cover the stores.
        if let Some(store) = self.store {
            java::lay(root, &store.finish(), &self.stores)?;
        }
        self.bundle.map_or(Ok(()), |bundle| lay_over(root, Path::new(BUNDLE), bundle))
    }
}

/// Mounts a directory with one more entry over the host's index. If the kernel cannot, the bundle and the variables remain.
fn index(root: &Root, authority: &[u8]) -> io::Result<()> {
    if root.is_image() {
        if root.open(Path::new(DIRECTORY)).is_err() {
            return Ok(());
        }
        let entry = Path::new(DIRECTORY).join(HASHED);
        return match root.file(&entry, authority) {
            // The image has such an entry; the bundle and the variables remain.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            made => made,
        };
    }
    // On some machines it is a link.
    let Ok(theirs) = root.follow(Path::new(DIRECTORY), OFlags::PATH) else { return Ok(()) };
    let ours = Path::new(OURS).join("certs");
    root.directory(&ours, 0o755)?;
    root.file(&ours.join(HASHED), authority)?;
    let layers = format!("{}:{DIRECTORY}", ours.display());
    let layers = CString::new(layers).map_err(io::Error::other)?;
    let flags = Flags::READ_ONLY.and(Flags::NO_SUID).and(Flags::NO_DEV).and(Flags::NO_EXEC);
    match mount::make(c"overlay", &[(c"lowerdir", layers.as_c_str())], flags) {
        Ok(tree) => mount::attach(tree.as_fd(), theirs.as_fd(), c""),
        Err(_) => Ok(()),
    }
}
