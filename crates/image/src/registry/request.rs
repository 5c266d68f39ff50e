//! The inputs of a pull: its request, the dialler, and the progress it reports.

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

/// A future connection to a registry.
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

/// A request to pull an image.
pub struct PullRequest<'a> {
    /// The image.
    pub reference: &'a Reference,
    /// The login, for a registry that demands one.
    pub login: Option<Login>,
    /// How the registry is spoken to. One on this machine is always spoken to in the clear.
    pub transport: Transport,
    /// How much each layer may hold.
    pub bounds: Bounds,
    /// Who owns its files.
    pub owners: Owners,
}

/// The progress of a pull.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PullProgress {
    /// The layers that the store lacks, with their compressed size.
    Begun {
        /// The number of layers.
        layers: usize,
        /// Their octets.
        octets: u64,
    },
    /// Another pull downloads the next layer, and is waited for.
    Waiting,
    /// This many octets have come, or were here from an earlier attempt.
    Received(u64),
    /// A layer is unpacked.
    Unpacked,
}
