//! The messages between the processes of a run, over packet sockets.
//!
//! ```text
//! init ─ listeners ─► sidecar          init ◄─ ready ─ sidecar
//! init ─ event ─► parent               init ◄─ signal ─ parent
//! ```
//! The command has none of these sockets, because they are close-on-exec.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use sys::descriptor;

/// The descriptors that init hands to the sidecar: sockets to serve, bound where the command can reach them.
#[derive(Debug, Default)]
pub struct ListenerSet {
    /// The listener for redirected TCP connections.
    pub transparent: Option<OwnedFd>,
    /// The listener of the explicit proxy, if it has a port of its own.
    pub forward: Option<OwnedFd>,
    /// The listener of the gateway, if it has a port of its own.
    pub gateway: Option<OwnedFd>,
    /// The gateway's Unix socket.
    pub gateway_socket: Option<OwnedFd>,
    /// DNS over UDP.
    pub dns_udp: Option<OwnedFd>,
    /// DNS over TCP.
    pub dns_tcp: Option<OwnedFd>,
    /// The errors for datagrams of IPv4 that were not delivered.
    pub undelivered_v4: Option<OwnedFd>,
    /// The same of IPv6.
    pub undelivered_v6: Option<OwnedFd>,
}

/// The use of a descriptor of the set, encoded as one octet of the message that carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Kind {
    Transparent = b't',
    Forward = b'f',
    Gateway = b'g',
    GatewaySocket = b's',
    DnsUdp = b'u',
    DnsTcp = b'd',
    UndeliveredV4 = b'4',
    UndeliveredV6 = b'6',
}

impl Kind {
    const ALL: [Self; 8] = [
        Self::Transparent,
        Self::Forward,
        Self::Gateway,
        Self::GatewaySocket,
        Self::DnsUdp,
        Self::DnsTcp,
        Self::UndeliveredV4,
        Self::UndeliveredV6,
    ];
}

impl From<Kind> for u8 {
    fn from(kind: Kind) -> Self {
        kind as Self
    }
}

impl TryFrom<u8> for Kind {
    type Error = io::Error;

    fn try_from(octet: u8) -> io::Result<Self> {
        let known = Self::ALL.into_iter().find(|kind| u8::from(*kind) == octet);
        known.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "a listener is of no known kind"))
    }
}

impl ListenerSet {
    /// Sends the set to the sidecar.
    ///
    /// # Errors
    /// When `sendmsg(2)` fails.
    pub fn send(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        let present = Kind::ALL.into_iter().filter_map(|kind| Some((u8::from(kind), self.of(kind)?.as_fd())));
        let (kinds, fds): (Vec<_>, Vec<_>) = present.unzip();
        descriptor::send(socket, &kinds, &fds)
    }

    fn of(&self, kind: Kind) -> Option<&OwnedFd> {
        match kind {
            Kind::Transparent => self.transparent.as_ref(),
            Kind::Forward => self.forward.as_ref(),
            Kind::Gateway => self.gateway.as_ref(),
            Kind::GatewaySocket => self.gateway_socket.as_ref(),
            Kind::DnsUdp => self.dns_udp.as_ref(),
            Kind::DnsTcp => self.dns_tcp.as_ref(),
            Kind::UndeliveredV4 => self.undelivered_v4.as_ref(),
            Kind::UndeliveredV6 => self.undelivered_v6.as_ref(),
        }
    }

    fn slot(&mut self, kind: Kind) -> &mut Option<OwnedFd> {
        match kind {
            Kind::Transparent => &mut self.transparent,
            Kind::Forward => &mut self.forward,
            Kind::Gateway => &mut self.gateway,
            Kind::GatewaySocket => &mut self.gateway_socket,
            Kind::DnsUdp => &mut self.dns_udp,
            Kind::DnsTcp => &mut self.dns_tcp,
            Kind::UndeliveredV4 => &mut self.undelivered_v4,
            Kind::UndeliveredV6 => &mut self.undelivered_v6,
        }
    }
}

/// The sidecar's side: waits for the set. Returns `None` if the sender is gone.
///
/// # Errors
/// When `recvmsg(2)` fails, or the message does not state the use of each descriptor.
pub fn receive_listeners(socket: BorrowedFd<'_>) -> io::Result<Option<ListenerSet>> {
    let mut buffer = [0; 16];
    let (kinds, fds) = descriptor::receive(socket, &mut buffer)?;
    if kinds.is_empty() && fds.is_empty() {
        return Ok(None);
    }
    if kinds.len() != fds.len() {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "there are not as many listeners as kinds"));
    }
    let mut set = ListenerSet::default();
    for (kind, fd) in kinds.iter().zip(fds) {
        if set.slot(Kind::try_from(*kind)?).replace(fd).is_some() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a listener was handed over twice"));
        }
    }
    Ok(Some(set))
}

/// The sidecar's side: reports that every listener is served. Ignores an init that is gone: otherwise this failure would be reported
/// instead of init's own, and the socket's end is seen anyway.
///
/// # Errors
/// When `sendmsg(2)` fails for another reason.
pub fn report_ready(socket: BorrowedFd<'_>) -> io::Result<()> {
    use io::ErrorKind::{BrokenPipe, ConnectionReset};
    match descriptor::send(socket, b"r", &[]) {
        Err(error) if matches!(error.kind(), BrokenPipe | ConnectionReset) => Ok(()),
        told => told,
    }
}

/// Init's side: waits until the sidecar serves.
///
/// # Errors
/// When the sidecar ends before that.
pub fn await_ready(socket: BorrowedFd<'_>) -> io::Result<()> {
    let mut buffer = [0; 16];
    match descriptor::receive(socket, &mut buffer)?.0 {
        b"r" => Ok(()),
        _ => Err(io::Error::other("the sidecar ended before it served")),
    }
}

/// The parent's side: asks init to pass a signal to the command.
pub(crate) fn send_signal(socket: BorrowedFd<'_>, signal: i32) -> io::Result<()> {
    descriptor::send(socket, &signal.to_le_bytes(), &[])
}

/// Init's side: receives a signal to pass on. Returns `None` if the parent is gone.
pub(crate) fn receive_signal(socket: BorrowedFd<'_>) -> io::Result<Option<i32>> {
    let mut buffer = [0; 16];
    let (message, _) = descriptor::receive(socket, &mut buffer)?;
    Ok(message.try_into().ok().map(i32::from_le_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_listener_arrives_as_what_it_was_sent() {
        let (ours, theirs) = descriptor::message_pair().unwrap();
        let pipe = || Some(rustix::pipe::pipe().unwrap().0);
        let inode = |fd: Option<&OwnedFd>| fd.map(|fd| rustix::fs::fstat(fd).unwrap().st_ino);
        let mut sent = ListenerSet::default();
        for kind in [Kind::UndeliveredV6, Kind::DnsTcp, Kind::Gateway] {
            *sent.slot(kind) = pipe();
        }
        sent.send(ours.as_fd()).unwrap();
        let come = receive_listeners(theirs.as_fd()).unwrap().unwrap();
        for kind in Kind::ALL {
            assert_eq!(inode(come.of(kind)), inode(sent.of(kind)), "{kind:?}");
        }
    }

    #[test]
    fn an_init_that_is_gone_is_no_failure_of_the_sidecars() {
        let (init, sidecar) = descriptor::message_pair().unwrap();
        report_ready(sidecar.as_fd()).unwrap();
        await_ready(init.as_fd()).unwrap();
        report_ready(sidecar.as_fd()).unwrap();
        drop(init); // with messages unread
        report_ready(sidecar.as_fd()).unwrap();
        report_ready(sidecar.as_fd()).unwrap();
        assert_eq!(descriptor::receive(&sidecar, &mut [0; 16]).unwrap().0, b"");
    }

    #[test]
    fn what_is_not_said_or_said_wrongly_is_taken_for_nothing() {
        for (kinds, count, why) in
            [("x", 1, "no known kind"), ("tf", 1, "not as many"), ("t", 2, "not as many"), ("tt", 2, "twice")]
        {
            let (ours, theirs) = descriptor::message_pair().unwrap();
            descriptor::send(&ours, kinds.as_bytes(), &vec![ours.as_fd(); count]).unwrap();
            let refused = receive_listeners(theirs.as_fd()).unwrap_err();
            assert!(refused.to_string().contains(why), "{kinds}: {refused}");
        }
    }
}
