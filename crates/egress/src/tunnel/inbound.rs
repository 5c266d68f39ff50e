//! Connections from outside to a port of the command's, where one was declared: nothing is read of one before its source was
//! judged. There is one record of each that is let in, and of as many that are refused as are worth it.

use std::cell::Cell;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;
use std::time::Duration;

use policy::{Denial, Guard, Inbound, Plane};
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::copy;
use super::introduction::introduced;
use crate::acceptor::Acceptor;
use crate::audit::Record;
use crate::gate::Gate;
use crate::inbound_ports::{InboundRoute, WhoConnects};

/// How long a connection may be idle.
pub(super) const IDLE: Duration = Duration::from_secs(3600);

/// How many connections that are refused are recorded: whoever can reach the port makes them, and nobody asked for them.
const MOST_REFUSED: u32 = 1000;

/// One declared port, and how often it was refused.
struct Port {
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
    let port = Rc::new(Port { inbound, route, refused: Cell::new(0) });
    loop {
        let (stream, permit) = acceptor.accept().await?;
        let (gate, port) = (Rc::clone(&gate), Rc::clone(&port));
        tokio::task::spawn_local(async move {
            let _ = port.serve(&gate, stream).await;
            drop(permit);
        });
    }
}

impl Port {
    /// Who connects; nobody where it is for somebody else to say, who does not. Where the port is open on this machine's loopback
    /// alone, nobody else comes from the machine's address; where it is open to others, an engine may pass on theirs from there as
    /// well.
    async fn source(&self, outside: &mut TcpStream, seen: IpAddr) -> Option<IpAddr> {
        match &self.route.who {
            WhoConnects::Forwarder(secret) => introduced(outside, secret).await,
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
        if !admitted && self.refused.replace(self.refused.get().saturating_add(1)) > MOST_REFUSED {
            return outside.set_zero_linger();
        }
        // Without the source's port: each source is told of once.
        let target = format!("port {} from {source}", inbound.container_port);
        let mut record = Record::begin(gate, Plane::Inbound, "TCP", target);
        record.rule(&inbound.to_string());
        if gate.audit().borrow_mut().is_broken() {
            record.deny(Denial::new(Guard::Audit, "the audit cannot be written"));
            return outside.set_zero_linger();
        }
        if !admitted {
            let more = if self.refused.get() > MOST_REFUSED { "; more of them are not recorded" } else { "" };
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
        outside.set_nodelay(true)?;
        let (received, sent) = (Cell::new(0), Cell::new(0));
        let moved = Cell::new(Instant::now());
        let outcome = copy::between(&mut outside, &mut inside, (&received, &sent), &moved, IDLE).await;
        record.count(sent.get(), received.get());
        outcome
    }
}
