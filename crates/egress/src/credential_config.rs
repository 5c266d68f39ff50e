//! Where a sidecar's credentials come from, and the placeholders that stand for them in the sandbox.

use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::str::FromStr;

use credential::{Placeholder, Secret};
use policy::{OrganisationName, ProviderId};

/// Where a sidecar's credentials come from, and the placeholders that stand for them in the sandbox.
#[derive(Debug, Default)]
pub struct CredentialConfig {
    /// The platform that is asked for credentials.
    pub platform: Option<PlatformPlace>,
    /// The socket and token by which the process that started the sidecar is asked for this program's own providers, if it is not the
    /// platform. A platform elsewhere is never asked for those.
    pub own: Option<(UnixStream, Secret)>,
    /// Changes whenever a credential has changed.
    pub generation: Generation,
    /// The placeholders of this run, each with its provider.
    pub placeholders: Vec<(Placeholder, ProviderId)>,
    /// The values that the run gave to its command.
    pub exposed: Vec<(ProviderId, Secret)>,
    /// The organisation whose credentials these are, if they are not the person's own. It is named in the advice where one is missing.
    pub organisation: Option<OrganisationName>,
    /// The one-time secret for `/configure`, by which a sidecar that was made before its run is told which run it serves.
    pub configure_once: Option<Secret>,
}

/// Where a platform answers, and the token by which it is asked.
#[derive(Debug)]
pub enum PlatformPlace {
    /// At the other end of an inherited socket.
    Inherited(UnixStream, Secret),
    /// At a network address.
    Address(PlatformAddress, RunToken),
}

/// The `http://ADDRESS:PORT` of a platform, on a network of the platform's own. It is an address and not a name, because a name would
/// have to be trusted to a resolver.
#[derive(Clone, Copy, Debug)]
pub struct PlatformAddress(SocketAddr);

impl PlatformAddress {
    pub(crate) fn socket(self) -> SocketAddr {
        self.0
    }
}

impl FromStr for PlatformAddress {
    /// What would be right, as a predicate: the caller puts the name of the setting before it.
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

/// The bearer token for a platform elsewhere. It is sent in a header, so it is printable ASCII.
#[derive(Clone, Debug)]
pub struct RunToken(Secret);

impl RunToken {
    pub(crate) fn into_secret(self) -> Secret {
        self.0
    }
}

impl TryFrom<Secret> for RunToken {
    /// What is wrong, as a predicate: the caller puts the name of the setting before it.
    type Error = &'static str;

    fn try_from(token: Secret) -> Result<Self, Self::Error> {
        let octets = token.expose();
        if octets.is_empty() || !octets.iter().all(u8::is_ascii_graphic) {
            return Err("is empty, or holds what no header may");
        }
        Ok(Self(token))
    }
}

/// A number that changes whenever a credential has changed. It is read before each use of a credential.
#[derive(Default)]
pub struct Generation(Option<Box<dyn Fn() -> Option<u64> + Send>>);

impl Generation {
    /// Reads the number by calling `ask`. While that does not know it, no credential is kept from one request to the next.
    pub fn told_by(ask: impl Fn() -> Option<u64> + Send + 'static) -> Self {
        Self(Some(Box::new(ask)))
    }

    pub(crate) fn now(&self) -> Option<u64> {
        self.0.as_ref().map_or(Some(0), |ask| ask())
    }
}

impl std::fmt::Debug for Generation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Generation({:?})", self.now())
    }
}
