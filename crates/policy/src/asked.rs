//! What is asked of the policy: the way it came in, where it wants to go, and how much of it can be seen.

use crate::hostname::Host;
use crate::path::Path;
use crate::provider_id::ProviderId;
use crate::target::{Method, Port, Scheme, Target};

/// The way a request came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Plane {
    /// The explicit HTTP proxy, 8081.
    Forward,
    /// A connection that was redirected.
    Transparent,
    /// The gateway, 8080: requests that name their target and their provider in headers.
    Gateway,
    /// A DNS question.
    Dns,
    /// A connection from outside, to a port that was declared.
    Inbound,
}

impl Plane {
    /// Every one of them.
    pub const ALL: [Self; 5] = [Self::Forward, Self::Transparent, Self::Gateway, Self::Dns, Self::Inbound];

    /// The name in records.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Transparent => "transparent",
            Self::Gateway => "gateway",
            Self::Dns => "dns",
            Self::Inbound => "inbound",
        }
    }
}

/// How much of a request its plane can see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum View {
    /// Octets of an unknown protocol.
    Opaque,
    /// A TLS connection that is not opened.
    Tls,
    /// An HTTP request in the clear.
    Request {
        /// The scheme of its target.
        scheme: Scheme,
        /// Its method.
        method: Method,
        /// Its path as written.
        path: Path,
    },
}

/// What is asked of the policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The way it came in.
    pub plane: Plane,
    /// Where it wants to go.
    pub host: Host,
    /// The port there.
    pub port: Port,
    /// What can be seen of it.
    pub view: View,
    /// The provider it names, if it names one: then only that provider's URIs are looked at.
    pub provider: Option<ProviderId>,
}

impl Asked {
    /// A visible HTTP request.
    #[must_use]
    pub fn request(plane: Plane, method: Method, target: &Target) -> Self {
        let view = View::Request { scheme: target.scheme(), method, path: target.path().clone() };
        Self { plane, host: target.host().clone(), port: target.port(), view, provider: None }
    }

    /// A connection of which only its destination is known, and what it carries.
    #[must_use]
    pub fn connection(plane: Plane, host: Host, port: Port, view: View) -> Self {
        Self { plane, host, port, view, provider: None }
    }
}
