//! The port forwarder: a process that holds a run's declared ports on this machine, where an engine would hide who connects, and
//! forwards each connection to the sidecar's container. It begins when the sidecar has told its address, and ends with the stand-in.
//!
//! ```text
//! outside ──► port forwarder (this machine) ── secret, source ──► sidecar, on the network of sidecars ──► command
//!               ▲ stand-in: the sidecar's address
//! ```

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use credential::Secret;
use policy::Inbound;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use sandbox::{Identity, KeepsOpen, Sidecar};

use crate::error::{Error, plumbing};

/// The ports of a run that this machine opens for it.
pub(crate) struct PortsHere {
    ports: Vec<(OwnedFd, Inbound)>,
    pub(super) secret: Secret,
}

impl PortsHere {
    /// Returns the ports that were opened, with a new secret; `None` where there are none.
    ///
    /// # Errors
    /// When the system gives no randomness.
    pub(crate) fn of(ports: Vec<(OwnedFd, Inbound)>) -> Result<Option<Self>, Error> {
        if ports.is_empty() {
            return Ok(None);
        }
        let mut secret = vec![0; egress::FORWARDER_SECRET_LENGTH];
        rustix::rand::getrandom(&mut secret, rustix::rand::GetRandomFlags::empty())
            .map_err(|errno| plumbing("make a secret")(errno.into()))?;
        Ok(Some(Self { ports, secret: Secret::new(secret) }))
    }

    /// Returns the descriptors that must stay open in the stand-in.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.ports.iter().map(|(fd, _)| fd.as_fd())
    }

    /// Starts the port forwarder, as a copy of this process.
    pub(super) fn start(&self, identity: Identity) -> Result<PortForwarder, Error> {
        let (line, theirs) = sandbox::message_pair().map_err(plumbing("make a socket"))?;
        let live = |Inside { line, ports }: Inside<'_>| i32::from(ports.live(&line, identity).is_err());
        let process = sandbox::start_sidecar(Inside { line: theirs, ports: self }, live)?;
        Ok(PortForwarder { line, _process: process })
    }

    /// Confines the process, waits for the sidecar's address, and forwards connections until the stand-in is gone.
    fn live(&self, line: &OwnedFd, identity: Identity) -> Result<(), Error> {
        sandbox::confine_sidecar(Some(identity)).map_err(plumbing("shut the port forwarder in"))?;
        let Some(place) = await_place(line).map_err(plumbing("hear where the sidecar is"))? else {
            return Ok(());
        };
        let ports = self.ports.iter().map(|(fd, inbound)| Ok((fd.try_clone()?, inbound.clone())));
        let ports = ports.collect::<io::Result<_>>().map_err(plumbing("open the declared ports"))?;
        let stop = line.try_clone().map_err(plumbing("watch the sidecar's stand-in"))?;
        egress::forward_ports(ports, place, self.secret.clone(), stop)?;
        Ok(())
    }
}

/// What the port forwarder takes over.
struct Inside<'a> {
    line: OwnedFd,
    ports: &'a PortsHere,
}

impl KeepsOpen for Inside<'_> {
    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        std::iter::once(self.line.as_fd()).chain(self.ports.descriptors()).collect()
    }
}

/// Waits for the sidecar's address; `None` when the stand-in is gone.
fn await_place(line: &OwnedFd) -> io::Result<Option<Ipv4Addr>> {
    let mut place = [0; 4];
    let (said, _) = rustix::net::recv(line, &mut place[..], RecvFlags::empty())?;
    if said != place.len() {
        return Ok(None);
    }
    let place = Ipv4Addr::from(place);
    match sandbox::is_beside_sidecars(place)? {
        true => Ok(Some(place)),
        false => Err(io::Error::other("this machine has no address on the network of sidecars")),
    }
}

/// A port forwarder that was started. It ends when its line is closed.
pub(super) struct PortForwarder {
    line: OwnedFd,
    _process: Sidecar,
}

impl PortForwarder {
    /// Whether the process is gone: then nobody takes connections to ports that are still open.
    pub(super) fn is_gone(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut ready = [PollFd::new(&self.line, PollFlags::IN)];
        !matches!(rustix::event::poll(&mut ready, Some(&now)), Ok(0) | Err(Errno::INTR))
    }

    /// Tells the forwarder the address that the sidecar said. Only one on the network of sidecars is taken.
    ///
    /// # Errors
    /// When the sidecar said another address, or the forwarder is gone.
    pub(super) fn begin(&self, said: &[u8]) -> io::Result<()> {
        let place: [u8; 4] = said.try_into().map_err(|_| io::ErrorKind::InvalidData)?;
        if !sandbox::is_of_sidecars(place.into()) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        rustix::net::send(&self.line, &place, SendFlags::NOSIGNAL)?;
        Ok(())
    }
}
