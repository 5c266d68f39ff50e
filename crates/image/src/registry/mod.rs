//! Pulls an image from a registry, by the OCI distribution specification.
//!
//! ```text
//! manifest (from an index: the one for this machine) ─► configuration ─► layers: downloaded, resumed, verified ─► unpacked
//! ```
//! A registry is hostile: documents and headers are bounded; a blob must have its manifest's length and match its digest before it
//! is used; redirects are few and never lead from TLS into the clear; a password goes only to the registry and the token service
//! that it names, over TLS. This module does not dial: connections come from [`Connect`].

mod auth;
mod blob;
mod client;
mod head;
mod part;
mod pulled;
mod request;
mod served;
mod url;

pub use self::pulled::pull;
pub use self::request::{Connect, Connecting, Login, PullProgress, PullRequest, Stream, Transport};
