//! OCI images: turns hostile archives into directories that can be the layers of a root file system.
//!
//! ```text
//! source (archive, layout, directory, registry) ─► layers, verified ─► unpacked, one directory each ─► store
//! ```
//! *Layer*: an archive of changes, identified by the digest of its uncompressed octets. *Image*: an ordered list of layers and a
//! configuration, identified by the configuration's digest. *Name*: what people call an image. This crate runs nothing, and trusts no
//! octet of an image: the kernel resolves every path of a layer beneath the layer's own directory.

mod account;
mod config;
mod digest;
mod error;
mod manifest;
mod platform;
mod reference;
mod registry;
mod search;
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
pub use store::{Held, ImageRecord, Listed, Removed, Store, Undeleted};
pub use unpack::{Bounds, Lent, LentIds, Ownership};
