//! A request whose head has been read, and how its connection determines its target.

use policy::{Host, Plane, Port, Scheme};

use super::head::RequestHead;
use super::incoming::Incoming;
use super::stream::AgentReader;

/// How the target of a connection's requests is determined.
#[derive(Clone, Debug)]
pub(crate) enum Via {
    /// By an absolute target or `CONNECT`.
    Proxy,
    /// By the gateway's headers; an absolute target or `CONNECT` counts as with [`Self::Proxy`].
    Gateway,
    /// By the connection, which was made to this host and port on a plane, in the clear or over TLS; `Host` must agree.
    Bound { plane: Plane, scheme: Scheme, host: Host, port: Port },
}

impl Via {
    pub(super) fn plane(&self) -> Plane {
        match self {
            Self::Proxy => Plane::Forward,
            Self::Gateway => Plane::Gateway,
            Self::Bound { plane, .. } => *plane,
        }
    }
}

/// A request whose head has been read.
pub(super) struct Request<'a> {
    pub(super) head: RequestHead,
    pub(super) body: Incoming<'a, AgentReader>,
}
