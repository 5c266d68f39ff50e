//! The key that signs this person's audit records. It is made at first use, and readable by its owner only.

use std::io;
use std::path::PathBuf;

use credential::Secret;
use egress::SigningKey;

use crate::error::Error;
use crate::state::{StateDirectory, links_to_nothing, make_directory, make_once, read_key, state};

const PRIVATE: &str = "audit.pk8";
const PUBLIC: &str = "audit.pub";

/// Returns the signing key's PKCS #8 document, making and storing the key if there is none.
///
/// # Errors
/// When it cannot be read or stored.
pub fn audit_key(directory: &StateDirectory) -> Result<Secret, Error> {
    let path = directory.keys().join(PRIVATE);
    match read_key(&path)? {
        Some(document) if is_document(&document) => {
            let document = Secret::new(document);
            tell_public(directory, &document);
            Ok(document)
        }
        Some(_) => Err(damaged(path)),
        None => make(directory),
    }
}

/// Writes the public key if it is missing: the process that made the key was killed before it did. Several processes may do so at the
/// same time.
fn tell_public(directory: &StateDirectory, document: &Secret) {
    let path = directory.keys().join(PUBLIC);
    if !path.exists()
        && let Ok(key) = SigningKey::from_pkcs8(document)
    {
        let _ = make_once(&path, line(&key).as_bytes());
    }
}

fn line(key: &SigningKey) -> String {
    format!("{}\n", key.public())
}

/// Whether the octets look like a PKCS #8 document: a DER sequence as long as it says. The parser of the signing process checks the
/// rest.
fn is_document(octets: &[u8]) -> bool {
    matches!(octets, [0x30, length @ 0..0x80, rest @ ..] if rest.len() == usize::from(*length))
}

fn damaged(path: PathBuf) -> Error {
    let why = "it is damaged; put it back from a backup, or move it and audit.pub away: what was signed with it can be \
               verified no more then";
    Error::KeyFile { path, source: io::Error::other(why) }
}

/// Returns the key that is there.
fn audit_key_there(directory: &StateDirectory) -> Result<Secret, Error> {
    let path = directory.keys().join(PRIVATE);
    let document = read_key(&path)?;
    document.map(Secret::new).ok_or_else(|| match path.is_symlink() {
        true => links_to_nothing(&path),
        false => Error::KeyFile { path, source: io::ErrorKind::NotFound.into() },
    })
}

fn make(directory: &StateDirectory) -> Result<Secret, Error> {
    make_directory(&directory.keys())?;
    let path = directory.keys().join(PRIVATE);
    let (key, document) = SigningKey::generate().map_err(|e| state(&path, e))?;
    // A public key that is there belongs to another key. It goes first: whoever finds a private key without a public one mends that.
    let public = directory.keys().join(PUBLIC);
    match std::fs::remove_file(&public) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(state(&public, error)),
        _ => {}
    }
    if !make_once(&path, document.expose())? {
        let document = audit_key_there(directory)?;
        tell_public(directory, &document); // the one that went may have been that key's
        return Ok(document);
    }
    make_once(&public, line(&key).as_bytes())?;
    Ok(document)
}

/// Returns the public key by which audits are verified, in hexadecimal.
///
/// # Errors
/// When there is none yet, or it cannot be read.
pub fn audit_public_key(directory: &StateDirectory) -> Result<String, Error> {
    let document = audit_key_there(directory)?;
    let path = directory.keys().join(PRIVATE);
    SigningKey::from_pkcs8(&document).map(|key| key.public()).map_err(|_| damaged(path))
}
