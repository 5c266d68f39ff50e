//! OCI images: from a hostile archive to directories that a root file system can be laid over.
//!
//! ```text
//! source (archive, layout, directory, registry) ─► layers, verified ─► unpacked, one directory each ─► store
//! ```
//! *Layer*: one archive of changes, known by the digest of its uncompressed octets. *Image*: an ordered list of layers and
//! a configuration, known by the digest of that. *Name*: what people call an image. Nothing here runs anything, and no
//! octet of an image is trusted: every path of a layer is resolved by the kernel beneath the layer's own directory.

mod account;
mod config;
mod digest;
mod error;
mod manifest;
mod reference;
mod registry;
mod service;
mod source;
mod store;
mod unpack;

pub use account::Account;
pub use config::{Command, ImageConfig};
pub use digest::Digest;
pub use error::Error;
pub use reference::Reference;
pub use registry::{Connect, Connecting, Login, PullProgress, PullRequest, Stream, Transport, pull};
pub use service::{HealthCheck, Service, signal};
pub use source::{Overrides, Owners, import};
pub use store::{Held, ImageRecord, Listed, Removed, Store};
pub use unpack::{Bounds, Lent, LentIds, Ownership};
