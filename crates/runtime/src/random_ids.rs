//! The random identifiers of a run: its name, and the placeholders of its credentials.

use std::sync::Arc;

use credential::Placeholder;
use policy::{Policy, Provider, RunId};

use crate::error::Error;

/// Makes a new identifier.
///
/// # Errors
/// When the system gives no randomness.
pub fn new_run_id() -> Result<RunId, Error> {
    let mut bytes = [0; 12];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|errno| Error::Plumbing { what: "name the run", source: errno.into() })?;
    Ok(RunId::from_random(bytes))
}

/// Makes a placeholder for each provider: new for each run, so that none is worth keeping.
pub(crate) fn placeholders(policy: &Policy) -> Result<Vec<(Placeholder, Arc<Provider>)>, Error> {
    let mint = |provider: &Arc<Provider>| {
        let mut random = [0; 27];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
            .map_err(|errno| Error::Plumbing { what: "make a placeholder", source: errno.into() })?;
        Ok((Placeholder::mint(random), Arc::clone(provider)))
    };
    policy.providers().map(mint).collect()
}
