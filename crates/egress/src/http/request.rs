//! A request whose head has been read, and how its connection determines its target.

use policy::{Host, Plane, Port, Scheme};

use super::head::RequestHead;
use super::incoming::Incoming;
use super::stream::AgentReader;
use crate::opened::ONLY_HTTP;

/// How the target of a connection's requests is determined.
#[derive(Clone, Debug)]
pub(crate) enum Via {
    /// By an absolute target or `CONNECT`.
    Proxy,
    /// By the gateway's headers; an absolute target or `CONNECT` counts as with [`Self::Proxy`].
    Gateway,
    /// As with [`Self::Gateway`], by a line of JSON on its socket. One that names no provider is sent with no credential, or refused.
    JsonLine,
    /// By the connection, which was made to this host and port on a plane, in the clear or over TLS; `Host` must agree.
    Bound { plane: Plane, scheme: Scheme, host: Host, port: Port },
}

/// Why a connection in the clear is taken for HTTP.
const LIKE_REQUEST: &str =
    "some server would take that line for a request, so the connection is read as HTTP";

impl Via {
    pub(super) fn plane(&self) -> Plane {
        match self {
            Self::Proxy => Plane::Forward,
            Self::Gateway | Self::JsonLine => Plane::Gateway,
            Self::Bound { plane, .. } => *plane,
        }
    }

    /// Returns why a connection that may carry another protocol is read as HTTP.
    pub(super) fn taken_for_http(&self) -> Option<&'static str> {
        match self {
            Self::Bound { scheme: Scheme::Https, .. } => Some(ONLY_HTTP),
            Self::Bound { port, .. } if *port != Scheme::Http.default_port() => Some(LIKE_REQUEST),
            Self::Bound { .. } | Self::Proxy | Self::Gateway | Self::JsonLine => None,
        }
    }

    /// Returns what a request asked for whose target cannot be read or does not agree with its connection, as far as that is known: the
    /// connection tells the destination, whatever the request says. What is no path there stands apart from it.
    pub(super) fn shown(&self, target: Option<&str>) -> Option<String> {
        match self {
            Self::Proxy | Self::Gateway | Self::JsonLine => target.map(str::to_owned),
            Self::Bound { scheme, host, port, .. } => {
                let target = target.unwrap_or_default();
                let blank = if target.is_empty() || target.starts_with('/') { "" } else { " " };
                Some(format!("{scheme}://{host}:{port}{blank}{target}"))
            }
        }
    }
}

/// The target in the record of a request whose own and whose destination are unknown.
pub(super) const UNREADABLE: &str = "unreadable request";

/// A request whose head has been read.
pub(super) struct Request<'a> {
    pub(super) head: RequestHead,
    pub(super) body: Incoming<'a, AgentReader>,
}
