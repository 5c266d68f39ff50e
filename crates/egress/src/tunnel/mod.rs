//! Connections: `CONNECT`, and everything that was redirected. They are carried as they are, unless a credential is bound
//! to where they go or a rule speaks of requests; then they are opened.
//!
//! A connection to a name that carries TLS must say the same name in its ClientHello; otherwise not one octet of it
//! goes on. What is refused is refused fast: a TLS alert where TLS was spoken, else a reset.

mod carry;
mod client_hello;
mod connect;
mod copy;
mod inbound;
mod introduction;
mod open;
mod porter;
mod refuse;
mod sniff;
mod transparent;

use std::rc::Rc;

pub use client_hello::server_name_of;
pub(crate) use connect::{after_connect, open_after_connect};
pub(crate) use inbound::serve_inbound;
pub use introduction::INTRODUCER;
pub use porter::hand_on;
pub(crate) use transparent::serve_transparent;

use policy::{Denial, Guard, Host, Plane, Port, View};

use crate::exchange::{Exchange, Granted};
use crate::gate::Gate;

/// Asks the policy for a tunnel of the explicit proxy.
pub(crate) fn ask(
    gate: &Rc<Gate>,
    action: &str,
    target: String,
    host: Host,
    port: Port,
) -> Result<Exchange<Granted>, Denial> {
    let asked = policy::Asked::connection(Plane::Forward, host, port, View::Opaque);
    Exchange::begin(gate, action, target, asked).authorize(gate)
}

/// The host a ClientHello names must be the host that was granted.
pub(crate) fn agree(granted: &Host, server_name: Option<&str>) -> Result<(), Denial> {
    match (granted, server_name) {
        (Host::Name(name), Some(said)) => match policy::Hostname::parse(said) {
            Ok(said) if said == *name => Ok(()),
            _ => {
                let reason = format!(
                    "the TLS server name is `{}` and the connection goes to {name}",
                    said.escape_default()
                );
                Err(Denial::new(Guard::SniMismatch, reason))
            }
        },
        (Host::Name(name), None) => {
            Err(Denial::new(Guard::NoSni, format!("TLS to {name} without a server name cannot be checked")))
        }
        (Host::Address(_), None) => Ok(()),
        (Host::Address(address), Some(said)) => {
            let reason = format!(
                "the TLS server name is `{}` and the connection goes to {address}",
                said.escape_default()
            );
            Err(Denial::new(Guard::SniMismatch, reason))
        }
    }
}
