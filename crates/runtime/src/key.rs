//! The key that signs this person's audit records: made at first use, kept readable by its owner only.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;

use credential::Secret;
use egress::SigningKey;

use crate::error::Error;
use crate::state::{StateDirectory, make_directory, replace, state};

const PRIVATE: &str = "audit.pk8";
const PUBLIC: &str = "audit.pub";

/// The signing key's document; made and stored if there is none.
///
/// # Errors
/// When it cannot be read or stored.
pub fn audit_key(directory: &StateDirectory) -> Result<Secret, Error> {
    let path = directory.keys().join(PRIVATE);
    match std::fs::read(&path) {
        Ok(document) => Ok(Secret::new(document)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => make(directory),
        Err(source) => Err(state(&path, source)),
    }
}

fn make(directory: &StateDirectory) -> Result<Secret, Error> {
    make_directory(&directory.keys())?;
    let path = directory.keys().join(PRIVATE);
    let (key, document) = SigningKey::generate().map_err(|e| state(&path, e))?;
    // Whole or not at all, and the first of two processes wins: written beside, then linked into place.
    let beside = directory.keys().join(format!("{PRIVATE}.{}", rustix::process::getpid().as_raw_nonzero()));
    let stored = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&beside)
        .and_then(|mut file| file.write_all(document.expose()).and_then(|()| file.sync_all()))
        .and_then(|()| std::fs::hard_link(&beside, &path));
    let _ = std::fs::remove_file(&beside);
    match stored {
        Ok(()) => {
            replace(&directory.keys().join(PUBLIC), format!("{}\n", key.public()).as_bytes())?;
            Ok(document)
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => audit_key(directory),
        Err(source) => Err(state(&path, source)),
    }
}

/// The public key, in hexadecimal, by which audits are verified.
///
/// # Errors
/// When there is none yet, or it cannot be read.
pub fn audit_public_key(directory: &StateDirectory) -> Result<String, Error> {
    let document = audit_key(directory)?;
    let path = directory.keys().join(PRIVATE);
    SigningKey::from_pkcs8(&document).map(|key| key.public()).map_err(|e| state(&path, e))
}
