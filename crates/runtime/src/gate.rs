//! Opens the gate of a sidecar: of one beside a sandbox, and of one that serves alone.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use credential::Secret;
use egress::{Files, Gate, GateError, GateOptions, SigningKey};
use policy::{Policy, RunId, Spending};

use crate::error::{Error, plumbing};

/// Returns the options that every sidecar sets. Without more, nothing is recorded, no TLS is opened, and no credential, companion
/// or other machine is known.
pub(crate) fn base_options(
    policy: &Policy,
    spending: &Spending,
    run: &RunId,
    files: Files,
    notices: OwnedFd,
) -> GateOptions {
    let options = GateOptions::new(policy.clone(), spending.clone(), run.clone());
    GateOptions { files, notices: Some(notices), ..options }
}

/// Returns the audit's file for the gate, with the key that signs the records.
///
/// # Errors
/// When the key is none.
pub(crate) fn signed_audit(file: &Arc<File>, key: &Secret) -> Result<(Arc<File>, SigningKey), Error> {
    let key = SigningKey::from_pkcs8(key).map_err(plumbing("read the audit's key"))?;
    Ok((Arc::clone(file), key))
}

/// Opens the gate. `name_audit` says which file the audit is, where it cannot be begun.
///
/// # Errors
/// When the gate cannot be opened.
pub(crate) fn open_gate(
    options: GateOptions,
    name_audit: impl FnOnce(io::Error) -> Error,
) -> Result<Rc<Gate>, Error> {
    Gate::open(options).map_err(|error| match error {
        GateError::Audit(source) => name_audit(source),
        error => error.into(),
    })
}
