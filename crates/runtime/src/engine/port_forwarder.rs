//! The porter's process: it holds a run's declared ports on this machine, where an engine would hide who connects, and hands each
//! connection on to the sidecar's container. It begins when that has told where it is, and ends with the carrier.
//!
//! ```text
//! outside ──► porter (this machine) ── secret, source ──► sidecar, on the network of sidecars ──► command
//!               ▲ carrier: where that is
//! ```

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use credential::Secret;
use policy::Inbound;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{RecvFlags, SendFlags};
use sandbox::{Identity, Sidecar};

use crate::error::{Error, plumbing};

/// The ports of a run that this machine opens for it.
pub(crate) struct PortsHere {
    ports: Vec<(OwnedFd, Inbound)>,
    pub(super) secret: Secret,
}

impl PortsHere {
    /// Those that were opened, if there are any, under a secret of their own.
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

    /// What must stay open in the carrier.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.ports.iter().map(|(fd, _)| fd.as_fd())
    }

    /// Starts the porter, as a copy of this process.
    pub(super) fn start(&self, identity: Identity) -> Result<Porter, Error> {
        let (line, theirs) = sandbox::message_pair().map_err(plumbing("make a socket"))?;
        let mut keep = vec![theirs.as_fd()];
        keep.extend(self.descriptors());
        let process = sandbox::start_sidecar(&keep, || i32::from(self.live(&theirs, identity).is_err()))?;
        Ok(Porter { line, _process: process })
    }

    /// The life of a porter: shut itself in, hear where the sidecar is, hand on until the carrier is gone.
    fn live(&self, line: &OwnedFd, identity: Identity) -> Result<(), Error> {
        sandbox::confine_sidecar(Some(identity)).map_err(plumbing("shut the porter in"))?;
        let Some(place) = await_place(line).map_err(plumbing("hear where the sidecar is"))? else {
            return Ok(());
        };
        let ports = self.ports.iter().map(|(fd, inbound)| Ok((fd.try_clone()?, inbound.clone())));
        let ports = ports.collect::<io::Result<_>>().map_err(plumbing("open the declared ports"))?;
        let stop = line.try_clone().map_err(plumbing("watch the carrier"))?;
        egress::hand_on(ports, place, self.secret.clone(), stop)?;
        Ok(())
    }
}

/// Waits to be told where the sidecar is; nowhere where the carrier is gone.
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

/// One that was started: with its line it ends.
pub(super) struct Porter {
    line: OwnedFd,
    _process: Sidecar,
}

impl Porter {
    /// Whether it is: then nobody takes connections to ports that are open still.
    pub(super) fn is_gone(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut ready = [PollFd::new(&self.line, PollFlags::IN)];
        !matches!(rustix::event::poll(&mut ready, Some(&now)), Ok(0))
    }

    /// Tells it where the sidecar is, as that says: it is nowhere but on the network of sidecars.
    ///
    /// # Errors
    /// When it says that it is elsewhere, and when the porter is gone.
    pub(super) fn begin(&self, said: &[u8]) -> io::Result<()> {
        let place: [u8; 4] = said.try_into().map_err(|_| io::ErrorKind::InvalidData)?;
        if !sandbox::is_of_sidecars(place.into()) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        rustix::net::send(&self.line, &place, SendFlags::NOSIGNAL)?;
        Ok(())
    }
}
