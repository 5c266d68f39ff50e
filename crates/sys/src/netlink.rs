//! A small netlink client: writes messages and reads their acknowledgements, so that no program has to be started for them.

use std::io;
use std::os::fd::OwnedFd;

use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with};

/// `NLM_F_REQUEST`, `NLM_F_ACK`, `NLM_F_EXCL`, `NLM_F_CREATE`, `NLM_F_APPEND`; linux/netlink.h.
pub(crate) const REQUEST: u16 = 0x1;
pub(crate) const ACK: u16 = 0x4;
pub(crate) const EXCLUSIVE: u16 = 0x200;
pub(crate) const CREATE: u16 = 0x400;
pub(crate) const APPEND: u16 = 0x800;
/// `NLA_F_NESTED`.
const NESTED: u16 = 0x8000;
/// `NLMSG_ERROR`.
const ERROR: u16 = 2;
/// Header: length, type, flags, sequence, port.
const HEADER: usize = 16;
/// Where the flags are in it.
const FLAGS: usize = 6;
/// The largest datagram that is read. An acknowledgement repeats the message it is for.
pub(crate) const LARGEST: usize = 8192;

/// One or more netlink messages in one buffer.
#[derive(Default)]
pub(crate) struct Batch {
    bytes: Vec<u8>,
    sequence: u32,
    /// Where the message begins that asks for an acknowledgement.
    acknowledged: Option<usize>,
}

impl Batch {
    /// Adds a message: its fixed part, then the attributes that `body` writes. Of several that ask for an acknowledgement only the last one
    /// gets it: the kernel works them off in order, and reports an error of any of them unasked.
    pub(crate) fn message(
        &mut self,
        kind: u16,
        flags: u16,
        fixed: &[u8],
        body: impl FnOnce(&mut Attributes<'_>),
    ) {
        let start = self.bytes.len();
        self.sequence += 1;
        if flags & ACK != 0
            && let Some(earlier) = self.acknowledged.replace(start)
        {
            let at = earlier + FLAGS;
            let asked = u16::from_ne_bytes([self.bytes[at], self.bytes[at + 1]]);
            self.bytes[at..at + 2].copy_from_slice(&(asked & !ACK).to_ne_bytes());
        }
        self.bytes.extend(0u32.to_ne_bytes());
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend((flags | REQUEST).to_ne_bytes());
        self.bytes.extend(self.sequence.to_ne_bytes());
        self.bytes.extend(0u32.to_ne_bytes());
        self.bytes.extend(fixed);
        pad(&mut self.bytes);
        body(&mut Attributes(&mut self.bytes));
        let length = (self.bytes.len() - start) as u32;
        self.bytes[start..start + 4].copy_from_slice(&length.to_ne_bytes());
    }

    /// Sends a request and returns the message that answers it, without its header.
    pub(crate) fn ask(self, protocol: Protocol) -> io::Result<Vec<u8>> {
        let socket = open(protocol)?;
        sendto(&socket, &self.bytes, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
        let mut buffer = [0u8; LARGEST];
        let (length, _) = recv(&socket, &mut buffer[..], RecvFlags::empty())?;
        has_acknowledgement(&buffer[..length])?;
        Ok(buffer[..length].get(HEADER..).unwrap_or_default().to_vec())
    }

    /// The octets that would be sent.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Sends the batch and waits until the kernel has carried it out.
    pub(crate) fn send(self, protocol: Protocol) -> io::Result<()> {
        self.to(protocol).send()
    }

    /// Returns the batch, ready to be sent.
    pub(crate) fn to(self, protocol: Protocol) -> Messages {
        let is_acknowledged = self.acknowledged.is_some();
        Messages { protocol, bytes: self.bytes, is_acknowledged, needless: &[] }
    }
}

/// Written messages. Sending them allocates nothing, so a process that must not touch the heap can do it.
pub struct Messages {
    protocol: Protocol,
    bytes: Vec<u8>,
    is_acknowledged: bool,
    /// The errors of the kernel that say that there is nothing to do.
    needless: &'static [libc::c_int],
}

impl Messages {
    /// Takes errors of the kernel for the answer that there is nothing to do.
    pub(crate) fn unless(self, needless: &'static [libc::c_int]) -> Self {
        Self { needless, ..self }
    }

    /// Sends the messages as one datagram and waits until the kernel has carried them out, if one asks for an acknowledgement.
    ///
    /// # Errors
    /// The kernel's error for the first message that failed, unless it says that there is nothing to do.
    pub fn send(&self) -> io::Result<()> {
        match self.send_and_keep() {
            Err(error) if error.raw_os_error().is_some_and(|errno| self.needless.contains(&errno)) => Ok(()),
            sent => sent.map(drop),
        }
    }

    /// Sends the messages and returns the socket, which owns what it made if a message says so.
    pub(crate) fn send_and_keep(&self) -> io::Result<OwnedFd> {
        let socket = open(self.protocol)?;
        sendto(&socket, &self.bytes, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
        let mut buffer = [0u8; LARGEST];
        let mut is_done = !self.is_acknowledged;
        while !is_done {
            let (length, _) = recv(&socket, &mut buffer[..], RecvFlags::empty())?;
            is_done = has_acknowledgement(&buffer[..length])?;
        }
        Ok(socket)
    }
}

/// A netlink family.
#[derive(Clone, Copy)]
pub(crate) enum Protocol {
    /// Links and routes.
    Route,
    /// nftables.
    Netfilter,
}

fn open(protocol: Protocol) -> io::Result<OwnedFd> {
    let protocol = match protocol {
        Protocol::Route => None, // NETLINK_ROUTE is number 0
        Protocol::Netfilter => Some(netlink::NETFILTER),
    };
    Ok(socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)?)
}

/// Whether a datagram acknowledges a message. Returns the first error in it.
fn has_acknowledgement(mut rest: &[u8]) -> io::Result<bool> {
    let mut found = false;
    while rest.len() >= HEADER + 4 {
        let word = |at: usize| [rest[at], rest[at + 1], rest[at + 2], rest[at + 3]];
        let length = (u32::from_ne_bytes(word(0)) as usize).clamp(HEADER, rest.len());
        if u16::from_ne_bytes([rest[4], rest[5]]) == ERROR {
            match i32::from_ne_bytes(word(HEADER)) {
                0 => found = true,
                errno => return Err(io::Error::from_raw_os_error(-errno)),
            }
        }
        rest = &rest[length.next_multiple_of(4).min(rest.len())..];
    }
    Ok(found)
}

fn pad(bytes: &mut Vec<u8>) {
    bytes.resize(bytes.len().next_multiple_of(4), 0);
}

/// Writes attributes after a message's fixed part.
pub(crate) struct Attributes<'a>(&'a mut Vec<u8>);

impl Attributes<'_> {
    pub(crate) fn bytes(&mut self, kind: u16, value: &[u8]) {
        self.0.extend((value.len() as u16 + 4).to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        pad(self.0);
    }

    /// Writes a text with its NUL.
    pub(crate) fn text(&mut self, kind: u16, value: &str) {
        self.bytes(kind, &[value.as_bytes(), b"\0"].concat());
    }

    /// Writes a number in network order, as nftables expects it.
    pub(crate) fn be32(&mut self, kind: u16, value: u32) {
        self.bytes(kind, &value.to_be_bytes());
    }

    /// Writes the fixed part of a message that is itself an attribute.
    pub(crate) fn fixed(&mut self, bytes: &[u8]) {
        self.0.extend(bytes);
        pad(self.0);
    }

    /// Writes an attribute that consists of attributes.
    pub(crate) fn nest(&mut self, kind: u16, body: impl FnOnce(&mut Attributes<'_>)) {
        let start = self.0.len();
        self.0.extend(0u16.to_ne_bytes());
        self.0.extend((kind | NESTED).to_ne_bytes());
        body(&mut Attributes(self.0));
        let length = (self.0.len() - start) as u16;
        self.0[start..start + 2].copy_from_slice(&length.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_message_that_asks_is_acknowledged() {
        let mut batch = Batch::default();
        for flags in [0, ACK | CREATE, ACK, 0] {
            batch.message(1, flags, &[0; 4], |_| {});
        }
        let length = HEADER + 4;
        let flags = batch.bytes().chunks(length).map(|message| u16::from_ne_bytes([message[6], message[7]]));
        assert_eq!(flags.collect::<Vec<_>>(), [REQUEST, REQUEST | CREATE, REQUEST | ACK, REQUEST]);
        assert!(batch.to(Protocol::Route).is_acknowledged);
    }

    #[test]
    fn an_error_that_says_that_there_is_nothing_to_do_is_no_failure() {
        const RTM_GETROUTE: u16 = 26;
        let ask = |needless| {
            let mut batch = Batch::default();
            // A family of which no kernel has routes. It may be asked for without a right.
            batch.message(
                RTM_GETROUTE,
                ACK,
                &[libc::AF_NETLINK as u8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
                |_| {},
            );
            batch.to(Protocol::Route).unless(needless).send()
        };
        assert_eq!(ask(&[]).unwrap_err().raw_os_error(), Some(libc::EOPNOTSUPP));
        assert!(ask(&[libc::EACCES]).is_err());
        ask(&[libc::EACCES, libc::EOPNOTSUPP]).unwrap();
    }
}
