//! The host's files inside the world: its resolver, its certificates, its processes. Bind mounts in a separate namespace cover them;
//! nothing on the machine's disks may change.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_bind, mount_change};

use crate::addresses::{RESOLVER4, RESOLVER6};
use crate::error::Error;
use crate::tools;

/// The folder in which distributions keep trusted certificates: a bundle, and often one file each, found by hash.
const TRUST_FOLDER: &str = "/etc/ssl/certs";
const TRUST_BUNDLES: [&str; 3] =
    ["/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem"];
/// The bundle inside [`TRUST_FOLDER`], as Debian names it.
const BUNDLE: &str = "ca-certificates.crt";

/// Makes this mount namespace private and shows this PID namespace's processes under `/proc`.
pub(crate) fn settle() -> Result<(), Error> {
    let at = |what, target: &str, source: rustix::io::Errno| Error::Mount {
        what,
        target: target.into(),
        source: source.into(),
    };
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .map_err(|source| at("a private tree", "/", source))?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("proc", "/proc", "proc", flags, None).map_err(|source| at("proc", "/proc", source))
}

/// Covers `target`, or the target of that link, with `source`.
pub(crate) fn cover(what: &'static str, target: &Path, source: &Path) -> Result<(), Error> {
    let target = fs::canonicalize(target).map_err(Error::file(target))?;
    mount_bind(source, &target).map_err(|source| Error::Mount { what, target, source: source.into() })
}

/// Directs every lookup of a name to the world's resolver and nowhere else.
pub(crate) fn point_to_resolver(directory: &Path) -> Result<(), Error> {
    let resolvers = directory.join("resolv.conf");
    let text = format!("nameserver {RESOLVER4}\nnameserver {RESOLVER6}\noptions timeout:2 attempts:2\n");
    fs::write(&resolvers, text).map_err(Error::file(&resolvers))?;
    cover("the resolver's address", Path::new("/etc/resolv.conf"), &resolvers)?;

    // A switch with other sources (nss-resolve(8), nss-mdns) would query the machine's own daemons over a socket.
    let switch = Path::new("/etc/nsswitch.conf");
    let Ok(current) = fs::read_to_string(switch) else { return Ok(()) };
    let lines = current.lines().filter(|line| !line.trim_start().starts_with("hosts:"));
    let text = lines.chain(["hosts: files dns", ""]).collect::<Vec<_>>().join("\n");
    let ours = directory.join("nsswitch.conf");
    fs::write(&ours, text).map_err(Error::file(&ours))?;
    cover("the name service switch", switch, &ours)
}

/// Adds the world's authority wherever programs look for trusted certificates, and returns the bundle's path.
pub(crate) fn trust(directory: &Path, certificate: &Path, pem: &str) -> Result<PathBuf, Error> {
    let ours = directory.join("trust");
    fs::create_dir(&ours).map_err(Error::file(&ours))?;
    let system = fs::read_to_string(Path::new(TRUST_FOLDER).join(BUNDLE)).unwrap_or_default();
    let bundle = ours.join(BUNDLE);
    fs::write(&bundle, with(&system, pem)).map_err(Error::file(&bundle))?;

    let mut bundles = TRUST_BUNDLES.map(PathBuf::from).to_vec();
    if Path::new(TRUST_FOLDER).is_dir() {
        copy_folder(&ours).map_err(Error::file(TRUST_FOLDER))?;
        link_by_hash(&ours, certificate, pem)?;
        cover("the trusted certificates", Path::new(TRUST_FOLDER), &ours)?;
    }
    // A bundle that is a link to the one above is already covered.
    bundles.retain(|path| fs::read_to_string(path).is_ok_and(|text| !text.contains(pem)));
    for (number, target) in bundles.iter().enumerate() {
        let text = fs::read_to_string(target).map_err(Error::file(target))?;
        let copy = directory.join(format!("bundle-{number}.pem"));
        fs::write(&copy, with(&text, pem)).map_err(Error::file(&copy))?;
        cover("the trusted certificates", target, &copy)?;
    }
    Ok(bundle)
}

fn with(bundle: &str, pem: &str) -> String {
    format!("{}\n{pem}", bundle.trim_end())
}

/// Copies the bundle's neighbours: links as links, files as files.
fn copy_folder(to: &Path) -> io::Result<()> {
    for entry in fs::read_dir(TRUST_FOLDER)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        let kind = entry.file_type()?;
        if entry.file_name() == BUNDLE {
            continue;
        } else if kind.is_symlink() {
            symlink(fs::read_link(entry.path())?, target)?;
        } else if kind.is_file() {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

/// Adds a link by which OpenSSL finds the certificate: a hash of its subject (openssl-rehash(1)). Without the tool only bundles are used.
fn link_by_hash(folder: &Path, certificate: &Path, pem: &str) -> Result<(), Error> {
    let Some(openssl) = tools::find("openssl") else { return Ok(()) };
    let arguments = ["x509", "-noout", "-hash", "-in"].map(AsRef::<std::ffi::OsStr>::as_ref);
    let hash = tools::output("openssl", &openssl, arguments.into_iter().chain([certificate.as_os_str()]))?;
    let path = folder.join(format!("{hash}.0"));
    fs::write(&path, pem).map_err(Error::file(path))
}
