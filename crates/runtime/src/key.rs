//! The key that signs this person's audit records: made at first use, kept readable by its owner only.

use std::io;

use credential::Secret;
use egress::SigningKey;

use crate::error::Error;
use crate::state::{StateDirectory, make_directory, make_once, replace, state};

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
    if !make_once(&path, document.expose())? {
        return audit_key(directory);
    }
    replace(&directory.keys().join(PUBLIC), format!("{}\n", key.public()).as_bytes())?;
    Ok(document)
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
