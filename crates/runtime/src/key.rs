//! The key that signs this person's audit records. It is made at first use, and readable by its owner only. One that is lost is told,
//! and never replaced.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use credential::Secret;
use egress::SigningKey;

use crate::error::Error;
use crate::key_file::{links_to_nothing, read_key};
use crate::state::{StateDirectory, make_directory, make_once, replace, state_error};
use crate::without_waiting::open_regular;

pub(crate) const PRIVATE: &str = "audit.pk8";
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

/// Writes the public key if it is missing, as after a process that made the key and was killed, or if it is another's: that one is put
/// aside, for something may be verified by it alone. Several processes may do so at the same time.
fn tell_public(directory: &StateDirectory, document: &Secret) {
    let path = directory.keys().join(PUBLIC);
    let Ok(key) = SigningKey::from_pkcs8(document) else { return };
    let line = line(&key);
    let found = beginning(&path, line.len() as u64 + 1);
    if found.as_ref().is_ok_and(|found| found == line.as_bytes()) {
        return;
    }
    if let Some(digest) = found.ok().and_then(|found| egress::digest(&found).get(..8).map(str::to_owned)) {
        let _ = std::fs::rename(&path, path.with_extension(format!("pub.{digest}")));
    }
    let _ = replace(&path, line.as_bytes());
}

/// Reads the beginning of a file.
fn beginning(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut found = Vec::new();
    open_regular(path)?.take(most).read_to_end(&mut found)?;
    Ok(found)
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

/// The error for a key that is gone while its public half is there. A new one would leave all that it signed without its key.
fn lost(path: PathBuf) -> Error {
    let why = "it is missing, and audit.pub is there; put it back from a backup, or move audit.pub away to begin a new key: what was \
               signed before is verified by that audit.pub alone then";
    Error::KeyFile { path, source: io::Error::other(why) }
}

/// The error for a key that was never made.
fn none_yet(path: PathBuf) -> Error {
    let source = io::Error::new(io::ErrorKind::NotFound, "no audit was signed on this machine yet");
    Error::KeyFile { path, source }
}

/// Returns the key that is there.
fn audit_key_there(directory: &StateDirectory) -> Result<Secret, Error> {
    let path = directory.keys().join(PRIVATE);
    match read_key(&path)? {
        Some(document) => Ok(Secret::new(document)),
        None if path.is_symlink() => Err(links_to_nothing(&path)),
        // A public key is written after its private one.
        None if directory.keys().join(PUBLIC).symlink_metadata().is_ok() => Err(lost(path)),
        None => Err(none_yet(path)),
    }
}

fn make(directory: &StateDirectory) -> Result<Secret, Error> {
    make_directory(&directory.keys())?;
    let path = directory.keys().join(PRIVATE);
    let public = directory.keys().join(PUBLIC);
    // The private key is there by now if another process has just made both, or it is lost.
    if public.symlink_metadata().is_ok() {
        return audit_key_there(directory);
    }
    let (key, document) = SigningKey::generate().map_err(|e| state_error(&path, e))?;
    if !make_once(&path, document.expose())? {
        return audit_key_there(directory);
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

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn a_lost_key_is_told_and_its_public_half_stays() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateDirectory::for_test(folder.path());
        let [private, public] = [PRIVATE, PUBLIC].map(|name| state.keys().join(name));
        let first = audit_key(&state).unwrap();
        let told = std::fs::read_to_string(&public).unwrap();
        assert_eq!(told.trim(), audit_public_key(&state).unwrap());
        std::fs::rename(&private, folder.path().join("backup")).unwrap();
        let lost = audit_key(&state).unwrap_err();
        let (why, remedy) = (lost.to_string(), lost.remedy().unwrap());
        assert!(why.contains("audit.pk8") && why.contains("put it back"), "{why}");
        assert!(!remedy.contains("sealed"), "it seals nothing: {remedy}");
        assert!(!private.exists());
        assert_eq!(audit_public_key(&state).unwrap_err().to_string(), why);
        assert_eq!(std::fs::read_to_string(&public).unwrap(), told);
        std::fs::rename(folder.path().join("backup"), &private).unwrap();
        assert_eq!(audit_key(&state).unwrap().expose(), first.expose());
        // With both away a new key begins.
        std::fs::remove_file(&private).unwrap();
        std::fs::remove_file(&public).unwrap();
        audit_key(&state).unwrap();
        assert_ne!(std::fs::read_to_string(&public).unwrap(), told);
    }

    #[test]
    fn where_nothing_was_signed_yet_the_signers_key_is_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateDirectory::for_test(folder.path());
        let none = audit_public_key(&state).unwrap_err();
        assert!(none.to_string().ends_with("no audit was signed on this machine yet"), "{none}");
        assert!(none.remedy().unwrap().contains("--key"));
    }

    #[test]
    fn a_public_key_that_is_missing_or_of_another_key_is_mended() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateDirectory::for_test(folder.path());
        let public = state.keys().join(PUBLIC);
        audit_key(&state).unwrap();
        let own = std::fs::read_to_string(&public).unwrap();
        std::fs::remove_file(&public).unwrap();
        audit_key(&state).unwrap();
        assert_eq!(std::fs::read_to_string(&public).unwrap(), own);
        for other in [own.replace('\n', "0\n"), "0".repeat(64), String::new()] {
            std::fs::write(&public, &other).unwrap();
            audit_key(&state).unwrap();
            assert_eq!(std::fs::read_to_string(&public).unwrap(), own);
            let names = std::fs::read_dir(state.keys()).unwrap().map(|entry| entry.unwrap().path());
            let mut aside =
                names.filter(|path| path.file_name().unwrap().as_bytes().starts_with(b"audit.pub."));
            assert!(aside.any(|path| std::fs::read_to_string(path).unwrap() == other), "{other} is kept");
        }
    }
}
