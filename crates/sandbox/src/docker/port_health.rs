//! A companion's health by its ports, where no command tells it: our own binary inside connects to each of them, at the address at
//! which sidecars reach it. What listens on loopback alone is not reached, and so is not well.

use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use super::names::BINARY;
use crate::launch::Launch;
use crate::plan::Plan;
use crate::run_network::RunNetwork;

/// The words by which our binary knows what it is.
const INSIDE_ACCEPTS: &str = "engine-accepts";
/// How long one connection may take.
const CONNECT: Duration = Duration::from_secs(1);

/// Has the health of a companion told by its ports, where the engine's run says so.
pub(super) fn ask_ports(launch: Launch, plan: &Plan, network: RunNetwork) -> Launch {
    match &plan.engine {
        Some(engine) if launch.probe.is_empty() && !engine.ports.is_empty() => {
            let own = [BINARY.into(), INSIDE_ACCEPTS.into(), network.agent().to_string()];
            let ports = engine.ports.iter().map(ToString::to_string);
            Launch { probe: own.into_iter().chain(ports).map(OsString::from).collect(), ..launch }
        }
        _ => launch,
    }
}

/// Whether every port at an address accepts a connection: the exit status of a process that is asked that.
#[must_use]
pub fn accepts(address: Ipv4Addr, ports: &[u16]) -> i32 {
    let accepts = |port: &u16| {
        let place = SocketAddr::from((address, *port));
        // Where nobody listens, a socket that was given that very port reaches itself.
        let reached = |it: &TcpStream| it.local_addr().is_ok_and(|own| own != place);
        TcpStream::connect_timeout(&place, CONNECT).is_ok_and(|stream| reached(&stream))
    };
    i32::from(!ports.iter().all(accepts))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn every_port_must_accept() {
        let listening = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let open = listening.local_addr().unwrap().port();
        let closed = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
        assert_eq!(accepts(Ipv4Addr::LOCALHOST, &[open]), 0);
        assert_eq!(accepts(Ipv4Addr::LOCALHOST, &[open, closed]), 1);
        // It is about that address, and not about whatever else is this machine's.
        assert_eq!(accepts(Ipv4Addr::new(127, 0, 0, 2), &[open]), 1);
    }
}
