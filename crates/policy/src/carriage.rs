//! What is granted to a connection: one request, HTTP, TLS, or anything.

use crate::asked::View;

/// What a granted connection may carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carriage {
    /// One request.
    Request,
    /// HTTP requests that are read and decided one by one, in the clear or over TLS that the sidecar terminates.
    Terminated,
    /// Only TLS with the granted host as its server name.
    Tls,
    /// Any protocol. TLS must have the granted host as its server name; it is terminated where a credential is bound to the host.
    Any,
}

impl Carriage {
    /// Returns what may be carried if all that is asked for may be.
    pub(crate) fn all_of(view: &View) -> Self {
        match view {
            View::Request { .. } => Self::Request,
            View::Tls => Self::Tls,
            View::Opaque => Self::Any,
        }
    }

    /// Returns the same with TLS terminated.
    pub(crate) fn opened(self) -> Self {
        if self == Self::Tls { Self::Terminated } else { self }
    }
}
