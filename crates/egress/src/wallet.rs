//! Where a sidecar's credentials come from, and what stands for them inside.

use std::os::unix::net::UnixStream;

use credential::{Placeholder, Secret};
use policy::{OrganisationName, ProviderId};

/// Where a sidecar's credentials come from, and what stands for them inside.
#[derive(Debug, Default)]
pub struct Wallet {
    /// Where the platform answers, and the run's token.
    pub platform: Option<(PlatformPlace, Secret)>,
    /// Where whoever started the sidecar answers for what is this program's own, if that is not the platform: no platform elsewhere
    /// is asked for it.
    pub own: Option<(UnixStream, Secret)>,
    /// What is another number whenever a credential has changed.
    pub generation: Generation,
    /// The placeholders of this run.
    pub placeholders: Vec<(Placeholder, ProviderId)>,
    /// What the run gave its command by value.
    pub exposed: Vec<(ProviderId, Secret)>,
    /// Whose credentials they are, where they are not the person's own: for saying what to do where one is missing.
    pub organisation: Option<OrganisationName>,
    /// The one-time secret by which a sidecar that was made before its run is told whose it is.
    pub configure_once: Option<Secret>,
}

/// Where a platform is.
#[derive(Debug)]
pub enum PlatformPlace {
    /// At the other end of an inherited socket.
    Inherited(UnixStream),
    /// At `http://ADDRESS:PORT`.
    Address(String),
}

/// Tells a number that is another one whenever a credential has changed. It is asked before each use of one.
#[derive(Default)]
pub struct Generation(Option<Box<dyn Fn() -> u64 + Send>>);

impl Generation {
    /// By asking.
    pub fn told_by(ask: impl Fn() -> u64 + Send + 'static) -> Self {
        Self(Some(Box::new(ask)))
    }

    pub(crate) fn now(&self) -> u64 {
        self.0.as_ref().map_or(0, |ask| ask())
    }
}

impl std::fmt::Debug for Generation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Generation({})", self.now())
    }
}
