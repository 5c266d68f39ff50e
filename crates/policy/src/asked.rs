//! The question to the policy: the plane a request came in by, its destination, and how much of it is visible.

use crate::hostname::Host;
use crate::path::Path;
use crate::provider_id::ProviderId;
use crate::target::{Method, Port, Scheme, Target};

/// The plane by which a request came in.
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
    /// Every plane.
    pub const ALL: [Self; 5] = [Self::Forward, Self::Transparent, Self::Gateway, Self::Dns, Self::Inbound];

    /// Returns the plane's name in records.
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

/// How much of a request its plane sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum View {
    /// A byte stream of an unknown protocol.
    Opaque,
    /// A TLS connection that is not terminated.
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

/// One question to the policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The plane by which it came in.
    pub plane: Plane,
    /// The destination host.
    pub host: Host,
    /// The destination port.
    pub port: Port,
    /// What is visible of it.
    pub view: View,
    /// The provider that the request names, in words or by its placeholder. If it names one, only that provider's URIs are considered.
    pub provider: Option<ProviderId>,
}

impl Asked {
    /// Creates the question for an HTTP request.
    #[must_use]
    pub fn request(plane: Plane, method: Method, target: &Target) -> Self {
        let view = View::Request { scheme: target.scheme(), method, path: target.path().clone() };
        Self { plane, host: target.host().clone(), port: target.port(), view, provider: None }
    }

    /// Creates the question for a connection of which only the destination and the protocol are known.
    #[must_use]
    pub fn connection(plane: Plane, host: Host, port: Port, view: View) -> Self {
        Self { plane, host, port, view, provider: None }
    }
}
