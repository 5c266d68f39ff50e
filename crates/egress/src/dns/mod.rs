//! The sandbox's only resolver. It asks nobody: an allowed name gets an address of our own choosing, which the
//! transparent plane maps back to the name; everything else does not exist. So no question of the agent's ever leaves
//! the machine, and the name that was asked for is the one that is dialled.

mod answer;
mod names;
mod serve;

pub use names::NameRange;
pub(crate) use names::Names;
pub(crate) use serve::{serve_tcp, serve_udp};
