//! The companions of a run: each a sandbox and a sidecar of its own, healthy before the command begins and gone with it.
//!
//! ```text
//! companion's init ◄── link ──► its sidecar ─► outside, by its own rules
//!        ▲ broker: sockets of its network
//!        ├── this process: is it healthy?
//!        └── the sidecars of the command and of those after it
//! ```
//! No companion shares a network with another: it is reached through a sidecar, by name and declared port. At an engine the broker
//! leads to its shim and gives no sockets; the sidecars that reach it have a place on its network instead.

mod beginning;
mod chains;
mod ending;
mod health;
mod output;
mod prepare;
mod running;
mod start;
mod wait;

pub(crate) use self::prepare::{PreparedCompanions, RunContext, prepare};
pub(crate) use self::running::Companions;
