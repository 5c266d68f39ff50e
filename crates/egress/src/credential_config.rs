//! Where a sidecar's credentials come from, and what stands for them inside.

use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::str::FromStr;

use credential::{Placeholder, Secret};
use policy::{OrganisationName, ProviderId};

/// Where a sidecar's credentials come from, and what stands for them inside.
#[derive(Debug, Default)]
pub struct CredentialConfig {
    /// Where the platform answers, and by what right it is asked.
    pub platform: Option<PlatformPlace>,
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
    Inherited(UnixStream, Secret),
    /// At an address.
    Address(PlatformAddress, RunToken),
}

/// `http://ADDRESS:PORT`, as whoever configures a sidecar gives it. It is on a network of the platform's own; its name would have to be
/// trusted to a resolver, so it is an address.
#[derive(Clone, Copy, Debug)]
pub struct PlatformAddress(SocketAddr);

impl PlatformAddress {
    pub(crate) fn socket(self) -> SocketAddr {
        self.0
    }
}

impl FromStr for PlatformAddress {
    /// What is right, after the name that it has where it was written.
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let rest = text.strip_prefix("http://").ok_or("begins with http://")?;
        let address: SocketAddr =
            rest.trim_end_matches('/').parse().map_err(|_| "names an address and a port")?;
        match address.port() {
            0 => Err("names a port that is none"),
            _ => Ok(Self(address)),
        }
    }
}

/// What gives a right to ask a platform elsewhere. It stands in a header of each question.
#[derive(Clone, Debug)]
pub struct RunToken(Secret);

impl RunToken {
    pub(crate) fn into_secret(self) -> Secret {
        self.0
    }
}

impl TryFrom<Secret> for RunToken {
    /// What is wrong, after the name that it has where it was written.
    type Error = &'static str;

    fn try_from(token: Secret) -> Result<Self, Self::Error> {
        let octets = token.expose();
        if octets.is_empty() || !octets.iter().all(u8::is_ascii_graphic) {
            return Err("is empty, or holds what no header may");
        }
        Ok(Self(token))
    }
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
