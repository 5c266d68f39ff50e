//! Carries connections: `CONNECT` tunnels, redirected TCP, and connections to declared ports.
//!
//! A connection is spliced as it is, unless a credential is bound to its host, at whichever port, or a rule names requests; then its TLS is
//! terminated. The ClientHello of a TLS connection to a name must carry that name, or not one octet is forwarded; so must a second one,
//! if the server asks for it. A connection is refused at once: with a TLS alert if the agent has begun TLS, else with a reset.

mod carry;
mod clear;
mod client_hello;
mod connect;
mod copy;
mod inbound;
mod port_forwarder;
mod refuse;
mod second_hello;
mod sniff;
mod source_header;
mod terminate;
mod transparent;

use std::rc::Rc;

pub use client_hello::server_name_of;
pub(crate) use connect::{after_connect, terminate_after_connect};
pub(crate) use inbound::serve_inbound;
pub use port_forwarder::forward_ports;
pub use source_header::FORWARDER_SECRET_LENGTH;
pub(crate) use transparent::{must_look_first, serve_transparent};

use policy::{Denial, Guard, Host, Plane, Port, View};

use self::client_hello::ServerName;
use crate::exchange::{Exchange, Granted};
use crate::gate::Gate;

/// Asks the policy for a tunnel through the explicit proxy.
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

/// What to do about a client that names no server.
const SAY_NAME: &str = "have the program send the server name (`redis-cli --sni HOST`, `openssl s_client -servername HOST`, \
                        ldap3's `Tls(sni=…)`), or allow the address and connect to that";

/// Checks that the host a ClientHello names is the granted one.
fn agree(granted: &Host, server_name: &ServerName) -> Result<(), Denial> {
    match (granted, server_name) {
        (Host::Name(name), ServerName::Said(said)) => match policy::Hostname::parse(said) {
            Ok(said) if said == *name => Ok(()),
            _ => {
                let reason = format!(
                    "the TLS server name is `{}` and the connection goes to {name}",
                    said.escape_default()
                );
                Err(Denial::new(Guard::SniMismatch, reason))
            }
        },
        (Host::Name(name), ServerName::None) => {
            let reason = format!("TLS to {name} without a server name cannot be checked");
            Err(Denial::new(Guard::NoSni, reason).with_hint(SAY_NAME))
        }
        (_, ServerName::Refused(lacking)) => {
            let reason = format!("this sidecar's TLS library does not take a ClientHello without {lacking}");
            Err(Denial::new(Guard::NoSni, reason))
        }
        (_, ServerName::Unread) => {
            Err(Denial::new(Guard::NoSni, "what begins like TLS and cannot be read may name any server"))
        }
        (Host::Address(_), ServerName::None) => Ok(()),
        (Host::Address(address), ServerName::Said(said)) => {
            let reason = format!(
                "the TLS server name is `{}` and the connection goes to {address}",
                said.escape_default()
            );
            Err(Denial::new(Guard::SniMismatch, reason))
        }
    }
}

/// The denial of a PROXY protocol header: it hides the protocol that follows it, which is not read.
fn preface() -> Denial {
    Denial::new(Guard::Protocol, "a preface of the PROXY protocol hides what the connection carries")
}

/// The denial of another protocol where the rule allows TLS alone.
pub(crate) fn not_tls() -> Denial {
    Denial::new(Guard::Protocol, "the rule is for TLS, and this is not")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hello_that_cannot_be_read_agrees_with_nothing() {
        let name = Host::Name(policy::Hostname::parse("a.example").unwrap());
        let address = Host::Address("192.0.2.1".parse().unwrap());
        let said = |it: &str| ServerName::Said(it.to_owned());
        let guard = |host, name| agree(host, &name).err().map(|denial| denial.guard);
        assert_eq!(guard(&name, said("a.example")), None);
        assert_eq!(guard(&name, said("b.example")), Some(Guard::SniMismatch));
        assert_eq!(guard(&name, ServerName::None), Some(Guard::NoSni));
        let hint = agree(&name, &ServerName::None).unwrap_err().hint.unwrap().to_string();
        assert!(hint.contains("--sni"), "{hint}");
        assert_eq!(guard(&name, ServerName::Unread), Some(Guard::NoSni));
        assert_eq!(guard(&address, ServerName::None), None);
        assert_eq!(guard(&address, said("a.example")), Some(Guard::SniMismatch));
        assert_eq!(guard(&address, ServerName::Unread), Some(Guard::NoSni));
        let denied = agree(&address, &ServerName::Refused("TLS 1.2 or 1.3")).unwrap_err();
        assert!(
            denied.guard == Guard::NoSni && denied.reason.contains("without TLS 1.2 or 1.3"),
            "{denied:?}"
        );
    }
}
