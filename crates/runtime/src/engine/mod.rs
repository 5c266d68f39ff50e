//! The sidecar of a run whose sandbox an engine makes: it lives in a container of its own, and a process of this machine stands
//! for it, which gives it what it needs and takes what it tells.
//!
//! ```text
//! parent ◄─ notices ─┐                                              ┌─ listeners of the run's network
//! parent ◄─ questions┤ carrier ◄── line, through the engine ──► host ┤
//! audit  ◄─ records ─┘ (this machine)              (the container)   └─ sidecar, as in any run
//! ```
//! What goes over the line goes nowhere else: neither the token nor the key of the audit is on a command line, in an
//! environment, or in what an engine tells of a container.

mod carrier;
mod host;
mod port_forwarder;

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use egress::CompanionChain;
use policy::{Layers, RunId};
use sandbox::RunNetwork;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

pub(crate) use carrier::{Carried, carry};
pub use host::run_engine_sidecar;
pub(crate) use port_forwarder::PortsHere;

/// How long the other end of the line may say nothing.
const PATIENCE: Duration = Duration::from_secs(20);
/// How often each end says that it is there.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// How much is moved at once.
const CHUNK: usize = 32 << 10;

/// What the container is told, once, as its first frame.
#[derive(Serialize, Deserialize)]
struct Letter {
    run: String,
    network: RunNetwork,
    /// What the policy is compiled from, by the same program that compiled it here.
    layers: Layers,
    /// The proxy of the caller's environment, without who uses it, and what goes past it.
    proxy: Option<(String, String)>,
    /// The companion whose sidecar it is, where it is not the command's.
    companion: Option<String>,
    /// The companions it may reach: each by its name, at its address on a network of its own.
    companions: Vec<(String, Ipv4Addr)>,
    /// The companions that the audit names.
    chains: Vec<CompanionChain>,
    /// By what it knows the porter of the run's declared ports, where a process of the machine takes connections to them.
    porter: Option<Zeroizing<Vec<u8>>>,
    /// Each placeholder, and the provider it stands for.
    placeholders: Vec<(String, String)>,
    /// What the command is given by value, and whose it is.
    exposed: Vec<(String, Zeroizing<Vec<u8>>)>,
    token: Option<Zeroizing<Vec<u8>>>,
    key: Zeroizing<Vec<u8>>,
    /// The certification authorities of this machine.
    bundle: String,
    /// Its addresses, which no container's kernel has.
    machine: Vec<IpAddr>,
}

fn run_id(text: &str) -> Option<RunId> {
    text.parse().ok()
}
