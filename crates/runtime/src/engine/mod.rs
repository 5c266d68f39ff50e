//! The sidecar of a run whose sandbox an engine makes. It lives in a container of its own; on this machine a stand-in process takes its
//! place, gives it what it needs, and passes on what it tells.
//!
//! ```text
//! parent ◄─ notices ─┐                                               ┌─ listeners of the run's network
//! parent ◄─ questions┤ stand-in ◄── line, through the engine ──► host ┤
//! audit  ◄─ records ─┘ (this machine)              (the container)    └─ sidecar, as in any run
//! ```
//! What goes over the line goes nowhere else: neither the token nor the key of the audit is on a command line, in an
//! environment, or in what an engine shows of a container.

mod bootstrap;
mod host;
mod port_forwarder;
mod stand_in;

use std::time::Duration;

pub use host::run_engine_sidecar;
pub(crate) use port_forwarder::PortsHere;
pub(crate) use stand_in::{StandInConfig, start_stand_in};

/// How long the other end of the line may be silent.
const PATIENCE: Duration = Duration::from_secs(20);
/// How often each end sends a sign of life.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// How much is read at once.
const CHUNK: usize = 32 << 10;
