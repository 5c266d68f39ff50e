//! Makes a self-signed certificate for the benchmarks' origin, so it is also the only authority the load generator trusts. Each
//! bench makes its own; it is good for nothing else.

use std::path::Path;

use anyhow::{Context, Result};
use rcgen::CertifiedKey;

use crate::tally::Tally;

/// Writes `cert.pem` and `key.pem` (P-256) for `name` into `folder`.
pub(crate) fn write(name: &str, folder: &Path) -> Result<Option<Tally>> {
    let CertifiedKey { cert, signing_key } = rcgen::generate_simple_self_signed([name.to_owned()])?;
    let store = |file: &str, text: String| {
        let path = folder.join(file);
        std::fs::write(&path, text).with_context(|| format!("failed to write {}", path.display()))
    };
    store("cert.pem", cert.pem())?;
    store("key.pem", signing_key.serialize_pem())?;
    Ok(None)
}
