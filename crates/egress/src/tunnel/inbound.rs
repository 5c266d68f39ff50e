//! Connections from outside to a port of the command's, where one was declared: nothing is read of one before its source was
//! judged, and there is one record of each.

use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use policy::{Denial, Guard, Inbound, Plane};
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::copy;
use crate::audit::Record;
use crate::gate::Gate;
use crate::serve::Door;
use crate::upstream::Entrance;

/// How long a connection may be idle.
const IDLE: Duration = Duration::from_secs(3600);

/// Serves one declared port until its listener fails.
pub(crate) async fn serve_inbound(
    gate: Rc<Gate>,
    door: Door,
    inbound: Rc<Inbound>,
    entrance: Rc<Entrance>,
) -> io::Result<()> {
    loop {
        let (stream, place) = door.accept().await?;
        let (gate, inbound, entrance) = (Rc::clone(&gate), Rc::clone(&inbound), Rc::clone(&entrance));
        tokio::task::spawn_local(async move {
            let _ = serve_one(&gate, stream, &inbound, &entrance).await;
            drop(place);
        });
    }
}

async fn serve_one(
    gate: &Rc<Gate>,
    outside: TcpStream,
    inbound: &Inbound,
    entrance: &Entrance,
) -> io::Result<()> {
    let source = outside.peer_addr()?;
    let source = SocketAddr::new(source.ip().to_canonical(), source.port());
    let target = format!("port {} from {source}", inbound.container_port);
    let mut record = Record::begin(gate, Plane::Inbound, "TCP", target);
    record.rule(&inbound.to_string());
    if gate.audit().borrow().is_broken() {
        record.deny(Denial::new(Guard::Audit, "the audit cannot be written"));
        return outside.set_zero_linger();
    }
    if !inbound.admits(source.ip()) {
        let reason =
            format!("{} is not among the allowed sources of port {}", source.ip(), inbound.host_port);
        record.deny(Denial::new(Guard::Source, reason).with_rule(inbound.to_string()));
        return outside.set_zero_linger();
    }
    let inside = match entrance.connect(inbound.container_port).await {
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
    let outcome = copy::between(&outside, &inside, (&received, &sent), &moved, IDLE).await;
    record.count(sent.get(), received.get());
    outcome
}
