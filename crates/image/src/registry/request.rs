//! What is to be pulled, who opens connections for it, and what is told of it.

use std::future::Future;
use std::io;
use std::pin::Pin;

use tokio::io::{AsyncRead, AsyncWrite};
use zeroize::Zeroizing;

use crate::reference::Reference;
use crate::source::Owners;
use crate::unpack::Bounds;

/// A connection to a registry.
pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// A connection in the making.
pub type Connecting<'a> = Pin<Box<dyn Future<Output = io::Result<Box<dyn Stream>>> + 'a>>;

/// How a registry is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// HTTP in the clear.
    Plain,
    /// HTTP over TLS, with the registry's certificate verified.
    Tls,
}

/// The dialler of a pull.
pub trait Connect {
    /// Connects to a host.
    fn connect<'a>(&'a self, host: &'a str, port: u16, transport: Transport) -> Connecting<'a>;
}

/// A user and a password for a registry.
pub struct Login {
    /// The user.
    pub username: String,
    /// The password or token.
    pub password: Zeroizing<String>,
}

/// What is to be pulled, and how.
pub struct PullRequest<'a> {
    /// The image.
    pub reference: &'a Reference,
    /// Who asks for it, where the registry wants to know.
    pub login: Option<Login>,
    /// How the registry is spoken to. One on this machine is always spoken to in the clear.
    pub transport: Transport,
    /// How much each layer may hold.
    pub bounds: Bounds,
    /// Whose its files are.
    pub owners: Owners,
}

/// What is told while a pull goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PullProgress {
    /// So many layers are needed, of so many octets as they are sent; those that are here already are not among them.
    Begun {
        /// How many.
        layers: usize,
        /// Their octets.
        octets: u64,
    },
    /// So many octets have come, or were here from an earlier attempt.
    Received(u64),
    /// A layer is unpacked.
    Unpacked,
}
