//! Pulling an image from a registry, by the OCI distribution specification.
//!
//! ```text
//! manifest (or the one of an index for this machine) ─► configuration ─► layers: downloaded, resumed, verified ─► unpacked
//! ```
//! Everything a registry says is hostile: documents and headers are bounded, a blob is as long as its manifest says and is what
//! its digest says before it is looked at, redirects are few and never lead from TLS into the clear, and a password goes to the
//! registry and to the token service that it names, over TLS, and nowhere else. This room does not dial: a connection comes from [`Connect`].

mod auth;
mod blob;
mod client;
mod head;
mod pulled;
mod request;
mod url;

pub use self::pulled::pull;
pub use self::request::{Connect, Connecting, Login, PullProgress, PullRequest, Stream, Transport};
