//! Serves the declared ports: admits connections from outside by their source, and carries them to the command.
//!
//! Nothing of a connection is read before its source has been judged, but the header of our own port forwarder. Each admitted
//! connection leaves one record, and so do the first refused ones.

use std::cell::Cell;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;
use std::time::Duration;

use policy::{Denial, Guard, Inbound, Plane};
use tokio::net::TcpStream;

use super::copy::{self, Counts};
use super::source_header;
use crate::acceptor::Acceptor;
use crate::audit::Record;
use crate::exchange::Flow;
use crate::gate::Gate;
use crate::inbound_ports::{InboundRoute, WhoConnects};

/// How long a connection may be idle.
pub(super) const IDLE: Duration = Duration::from_secs(3600);

/// How many refused connections are recorded for each port. Anybody who can reach the port makes them.
const MOST_REFUSED: u32 = 1000;

/// One declared port, and how many connections it has refused.
struct DeclaredPort {
    inbound: Inbound,
    route: Rc<InboundRoute>,
    refused: Cell<u32>,
}

/// Serves one declared port until its listener fails.
pub(crate) async fn serve_inbound(
    gate: Rc<Gate>,
    acceptor: Acceptor,
    inbound: Inbound,
    route: Rc<InboundRoute>,
) -> io::Result<()> {
    let port = Rc::new(DeclaredPort { inbound, route, refused: Cell::new(0) });
    loop {
        let (stream, permit) = acceptor.accept().await?;
        let (gate, port) = (Rc::clone(&gate), Rc::clone(&port));
        tokio::task::spawn_local(async move {
            let _ = port.serve(&gate, stream).await;
            drop(permit);
        });
    }
}

impl DeclaredPort {
    /// Returns the source address, or none if the forwarder's header is missing.
    ///
    /// Behind an engine, connections from this machine arrive from the machine's address. That stands for loopback only where the
    /// port is open on loopback alone: at a port that is open to others, the engine may pass on their connections from there too.
    async fn source(&self, outside: &mut TcpStream, seen: IpAddr) -> Option<IpAddr> {
        match &self.route.who {
            WhoConnects::Forwarder(secret) => source_header::read(outside, secret).await,
            WhoConnects::SeenBehind(machine) if *machine == seen && self.inbound.is_local() => {
                Some(Ipv4Addr::LOCALHOST.into())
            }
            WhoConnects::Seen | WhoConnects::SeenBehind(_) => Some(seen),
        }
    }

    async fn serve(&self, gate: &Rc<Gate>, mut outside: TcpStream) -> io::Result<()> {
        let inbound = &self.inbound;
        let seen = outside.peer_addr()?.ip().to_canonical();
        let source = self.source(&mut outside, seen).await;
        let admitted = source.is_some_and(|source| inbound.admits(source));
        let source = source.unwrap_or(seen);
        if !admitted && self.refused.replace(self.refused.get().saturating_add(1)) >= MOST_REFUSED {
            return outside.set_zero_linger();
        }
        // The target omits the source's port, so that each source is told once.
        let target = format!("port {} from {source}", inbound.container_port);
        let mut record = Record::begin(gate, Plane::Inbound, "TCP", target);
        record.rule(&inbound.to_string());
        if gate.audit().borrow_mut().is_broken() {
            record.deny(Denial::new(Guard::Audit, "the audit cannot be written"));
            return outside.set_zero_linger();
        }
        if !admitted {
            let more =
                if self.refused.get() >= MOST_REFUSED { "; more of them are not recorded" } else { "" };
            let reason =
                format!("{source} is not among the allowed sources of port {}{more}", inbound.host_port);
            record.deny(Denial::new(Guard::Source, reason).with_rule(inbound.to_string()));
            return outside.set_zero_linger();
        }
        let mut inside = match self.route.entrance.connect(inbound.container_port).await {
            Ok(inside) => inside,
            Err(error) => {
                record.fail(&error.to_string());
                return outside.set_zero_linger();
            }
        };
        record.reached_inside(inbound.container_port);
        let flow = Flow::of(&mut record, 0);
        let counts = Counts { there: &flow.received, back: &flow.sent };
        let outcome = copy::between(&mut outside, &mut inside, counts, IDLE).await;
        drop(flow);
        outcome.map(drop).map_err(|broken| {
            copy::note_break(&mut record, &broken, ["the one outside", "the program inside"]);
            broken.error
        })
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::fixture::{gate_for, records_in};
    use crate::upstream::Entrance;

    #[tokio::test]
    async fn what_moved_is_recorded_though_the_sidecar_ended_first() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let number = listener.local_addr().unwrap().port();
        let mut layers = policy::Layers::default();
        let config = toml::from_str(&format!("[[inbound]]\ncontainer_port = {number}\n")).unwrap();
        layers.push(policy::Origin::Named("test".into()), config);
        let inbound = layers.compile().unwrap().inbound.remove(0);
        let route = InboundRoute { entrance: Entrance::at(Ipv4Addr::LOCALHOST), who: WhoConnects::Seen };
        // Both ends of the connection from outside, by way of the same listener.
        let mut asker = route.entrance.connect(inbound.container_port).await.unwrap();
        let outside = listener.accept().await.unwrap().0;
        let port = DeclaredPort { inbound, route: Rc::new(route), refused: Cell::new(0) };
        let mut audit = tempfile::tempfile().unwrap();
        let gate = gate_for("", Vec::new(), Some(audit.try_clone().unwrap()));
        let spoken = async {
            let mut inside = listener.accept().await.unwrap().0;
            asker.write_all(b"question").await.unwrap();
            inside.read_exact(&mut [0; 8]).await.unwrap();
            inside.write_all(b"answer").await.unwrap();
            asker.read_exact(&mut [0; 6]).await.unwrap();
        };
        tokio::select! {
            served = port.serve(&gate, outside) => panic!("{served:?}"),
            () = spoken => {}
        }
        gate.close().unwrap();
        let records = records_in(&mut audit);
        let record = records.lines().find(|line| line.contains("\"TCP\"")).unwrap();
        assert!(record.contains("\"sent\":6,\"received\":8,"), "{record}");
    }
}
