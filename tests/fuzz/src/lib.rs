//! What the fuzz targets check. `checks` has a function for each target, of the target's name: it takes one input, and panics if
//! what must hold for every input does not hold for this one. cargo-fuzz calls them from `fuzz/`; the tests of this crate replay
//! the seeds.
//!
//! The other modules are what surrounds a real sidecar, for the targets whose parsers are behind a socket: the agent, the platform,
//! and upstreams that read strictly. Everything happens on loopback addresses of this process's own. Nothing here may repair what
//! it reads: the reader judges what the sidecar sends.

#![expect(clippy::expect_used, clippy::panic, reason = "a panic is how a check says what it found")]

mod agent;
mod authority;
mod checks;
mod frames;
mod octets;
mod platform;
mod registry;
mod scratch;
mod sidecar;
mod strict;
mod terminating_sidecar;
mod upstream;
mod web_socket_sidecar;

pub use checks::*;
