//! The sandbox's only resolver, which asks no other.
//!
//! It answers an allowed name with an address of its own range, which the transparent plane maps back to the name, and any other name
//! with NXDOMAIN. Who asks for the name of an address is told what the table of names has. So no question of the agent's leaves the machine, and the sidecar dials the name that was asked for.

mod answer;
mod names;
mod reverse;
mod serve;

pub(crate) use names::Names;
pub use names::{NameRange, OwnName};
pub(crate) use serve::{serve_tcp, serve_udp};
