//! Forwards connections to a run's declared ports on this machine to the sidecar in its container.
//!
//! It sends the source address ahead of each ([`source_header`]), and leaves every decision to the sidecar.

use std::cell::Cell;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use credential::Secret;
use policy::{Inbound, Port};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpStream, UnixStream};
use tokio::task::LocalSet;

use super::copy::{self, Counts};
use super::inbound::IDLE;
use super::source_header;
use crate::acceptor::Acceptor;
use crate::connection_slots::ConnectionSlots;
use crate::event_loop;
use crate::gate_error::GateError;
use crate::upstream::Entrance;

/// The sidecar that receives the connections, and the secret that it knows the forwarder by.
struct Sidecar {
    address: Entrance,
    secret: Secret,
}

/// Forwards connections until `stop` becomes readable or a listener fails.
///
/// # Errors
/// When a listener cannot be served, or fails.
pub fn forward_ports(
    ports: Vec<(OwnedFd, Inbound)>,
    sidecar: Ipv4Addr,
    secret: Secret,
    stop: OwnedFd,
) -> Result<(), GateError> {
    let runtime = event_loop::runtime()?;
    let sidecar = Rc::new(Sidecar { address: Entrance::at(sidecar), secret });
    LocalSet::new().block_on(&runtime, serve(ports, sidecar, stop)).map_err(GateError::Socket)
}

async fn serve(ports: Vec<(OwnedFd, Inbound)>, sidecar: Rc<Sidecar>, stop: OwnedFd) -> io::Result<()> {
    let (failed, mut failures) = tokio::sync::mpsc::unbounded_channel();
    for (fd, inbound) in ports {
        let acceptor = Acceptor::open(fd, ConnectionSlots::inbound())?;
        let (sidecar, failed) = (Rc::clone(&sidecar), failed.clone());
        tokio::task::spawn_local(async move {
            let _ = failed.send(forward_port(acceptor, sidecar, inbound.host_port).await);
        });
    }
    let stop = std::os::unix::net::UnixStream::from(stop);
    stop.set_nonblocking(true)?;
    let stop = UnixStream::from_std(stop)?;
    tokio::select! {
        stopped = stop.readable() => stopped,
        Some(failure) = failures.recv() => failure,
    }
}

/// Forwards connections to one port until its listener fails.
async fn forward_port(acceptor: Acceptor, sidecar: Rc<Sidecar>, port: Port) -> io::Result<()> {
    loop {
        let (mut outside, permit) = acceptor.accept().await?;
        let sidecar = Rc::clone(&sidecar);
        tokio::task::spawn_local(async move {
            if sidecar.forward(&mut outside, port).await.is_err() {
                // The sidecar reset its connection, so this one is reset too.
                let _ = outside.set_zero_linger();
            }
            drop((outside, permit));
        });
    }
}

impl Sidecar {
    async fn forward(&self, outside: &mut TcpStream, port: Port) -> io::Result<()> {
        let source = outside.peer_addr()?.ip().to_canonical();
        let mut inside = self.address.connect(port).await?;
        inside.write_all(&source_header::encode(&self.secret, source)).await?;
        let counts = Counts { there: &Cell::new(0), back: &Cell::new(0) };
        copy::between(outside, &mut inside, counts, IDLE).await.map(drop).map_err(|broken| broken.error)
    }
}
