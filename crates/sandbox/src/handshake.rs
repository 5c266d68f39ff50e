//! What the processes of a run say to each other, each a message of its own on a packet socket.
//!
//! ```text
//! init ─ listeners ─► sidecar          init ◄─ ready ─ sidecar
//! init ─ event ─► parent               init ◄─ signal ─ parent
//! ```
//! The command has none of these sockets: they are close-on-exec.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use sys::descriptor;

/// What init gives the sidecar: the sockets it serves, bound where the command can reach them, and what it holds.
#[derive(Debug, Default)]
pub struct ListenerSet {
    /// Redirected TCP connections.
    pub transparent: Option<OwnedFd>,
    /// The explicit proxy, where it has a port of its own.
    pub forward: Option<OwnedFd>,
    /// The gateway, where it has a port of its own.
    pub gateway: Option<OwnedFd>,
    /// The gateway on a Unix socket.
    pub gateway_socket: Option<OwnedFd>,
    /// DNS over UDP.
    pub dns_udp: Option<OwnedFd>,
    /// DNS over TCP.
    pub dns_tcp: Option<OwnedFd>,
    /// The sandbox's mounts, to be held and not served: they go with the last who has them.
    pub mounts: Option<OwnedFd>,
}

impl ListenerSet {
    /// Hands the sockets over to the sidecar.
    ///
    /// # Errors
    /// Whatever `sendmsg(2)` gives.
    pub fn send(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        let all = [
            (b't', &self.transparent),
            (b'f', &self.forward),
            (b'g', &self.gateway),
            (b's', &self.gateway_socket),
            (b'u', &self.dns_udp),
            (b'd', &self.dns_tcp),
            (b'm', &self.mounts),
        ];
        let present: Vec<_> =
            all.iter().filter_map(|(kind, fd)| fd.as_ref().map(|fd| (*kind, fd.as_fd()))).collect();
        let kinds: Vec<u8> = present.iter().map(|(kind, _)| *kind).collect();
        let fds: Vec<_> = present.into_iter().map(|(_, fd)| fd).collect();
        descriptor::send(socket, &kinds, &fds)
    }
}

/// The sidecar's side: waits for the sockets it is to serve; `None` when nobody will send any.
///
/// # Errors
/// Whatever `recvmsg(2)` gives.
pub fn receive_listeners(socket: BorrowedFd<'_>) -> io::Result<Option<ListenerSet>> {
    let mut buffer = [0; 16];
    let (kinds, fds) = descriptor::receive(socket, &mut buffer)?;
    if kinds.is_empty() {
        return Ok(None);
    }
    let mut set = ListenerSet::default();
    for (kind, fd) in kinds.iter().zip(fds) {
        let slot = match kind {
            b't' => &mut set.transparent,
            b'f' => &mut set.forward,
            b'g' => &mut set.gateway,
            b's' => &mut set.gateway_socket,
            b'u' => &mut set.dns_udp,
            b'm' => &mut set.mounts,
            _ => &mut set.dns_tcp,
        };
        *slot = Some(fd);
    }
    Ok(Some(set))
}

/// The sidecar's side: every listener is served from now on.
///
/// # Errors
/// Whatever `sendmsg(2)` gives.
pub fn report_ready(socket: BorrowedFd<'_>) -> io::Result<()> {
    descriptor::send(socket, b"r", &[])
}

/// Init's side: waits until the sidecar serves.
///
/// # Errors
/// When it ends before.
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

/// Init's side: the signal the parent asks to pass on; `None` when the parent is gone.
pub(crate) fn receive_signal(socket: BorrowedFd<'_>) -> io::Result<Option<i32>> {
    let mut buffer = [0; 16];
    let (message, _) = descriptor::receive(socket, &mut buffer)?;
    Ok(message.try_into().ok().map(i32::from_le_bytes))
}
