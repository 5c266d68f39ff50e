//! The declared ports of this machine that lead to the command, and the route their connections take.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use credential::Secret;
use policy::Inbound;

use crate::upstream::Entrance;

/// The declared ports of a run with their listeners, and the route to the command.
#[derive(Debug)]
pub struct InboundPorts {
    /// Each port with its listener.
    pub ports: Vec<(OwnedFd, Inbound)>,
    /// The route to the command.
    pub entrance: Entrance,
    /// Where a connection's source address is taken from.
    pub who: WhoConnects,
}

/// Where the source address of a connection to a declared port is taken from.
#[derive(Clone, Debug)]
pub enum WhoConnects {
    /// The connection's peer address.
    Seen,
    /// The connection's peer address, except that this one, the machine's address as an engine passes it on, stands for loopback
    /// at a port that is open on loopback alone.
    SeenBehind(IpAddr),
    /// The header that the port forwarder sends ahead. Only a header with this secret counts.
    Forwarder(Secret),
}

/// The route from a declared port to the command, shared by all ports of a run.
#[derive(Debug)]
pub(crate) struct InboundRoute {
    pub(crate) entrance: Entrance,
    pub(crate) who: WhoConnects,
}

impl InboundPorts {
    /// Duplicates the descriptors, for a process that is forked from this one.
    ///
    /// # Errors
    /// Whatever `fcntl(2)` returns.
    pub fn try_clone(&self) -> io::Result<Self> {
        let port = |(fd, inbound): &(OwnedFd, Inbound)| Ok((fd.try_clone()?, inbound.clone()));
        let ports = self.ports.iter().map(port).collect::<io::Result<_>>()?;
        Ok(Self { ports, entrance: self.entrance.try_clone()?, who: self.who.clone() })
    }

    /// The descriptors that must stay open in that process.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.ports.iter().map(|(fd, _)| fd.as_fd()).chain(self.entrance.descriptor())
    }
}
