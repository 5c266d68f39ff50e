//! The health of a companion without a probe command: our own binary in its container connects to each of its ports, at the address
//! at which sidecars reach it. A port that listens on loopback only counts as unhealthy.

use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use super::names::binary_at;
use crate::launch::Launch;
use crate::plan::Plan;
use crate::run_network::RunNetwork;

/// The argument by which our binary knows this role.
pub const INSIDE_ACCEPTS: &str = "engine-accepts";
/// How long one connection may take.
const CONNECT: Duration = Duration::from_secs(1);

/// Sets the probe of a companion that has ports and no probe command. `place` is where its container has our own binary.
pub(super) fn ask_ports(launch: Launch, plan: &Plan, place: &str, network: RunNetwork) -> Launch {
    match &plan.engine {
        Some(engine) if launch.probe.is_empty() && !engine.ports.is_empty() => {
            let own = [binary_at(place), INSIDE_ACCEPTS.into(), network.agent().to_string()];
            let ports = engine.ports.iter().map(ToString::to_string);
            Launch { probe: own.into_iter().chain(ports).map(OsString::from).collect(), ..launch }
        }
        _ => launch,
    }
}

/// Returns the exit status 0 if every port at an address accepts a connection, otherwise 1.
#[must_use]
pub fn probe_ports(address: Ipv4Addr, ports: &[u16]) -> i32 {
    let accepts = |port: &u16| {
        let place = SocketAddr::from((address, *port));
        // If nobody listens, a socket that got that very port as its own connects to itself.
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
        assert_eq!(probe_ports(Ipv4Addr::LOCALHOST, &[open]), 0);
        assert_eq!(probe_ports(Ipv4Addr::LOCALHOST, &[open, closed]), 1);
        // It is about that address, and not about whatever else is this machine's.
        assert_eq!(probe_ports(Ipv4Addr::new(127, 0, 0, 2), &[open]), 1);
    }
}
