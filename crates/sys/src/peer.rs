//! Who holds the other end of a TCP connection within this machine, asked of the kernel: sock_diag(7).

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with};

use crate::netlink::REQUEST;

/// `SOCK_DIAG_BY_FAMILY`, linux/sock_diag.h.
const BY_FAMILY: u16 = 20;
/// `IPPROTO_TCP`.
const TCP: u8 = 6;
/// A netlink header, and `struct inet_diag_req_v2` behind it.
const HEADER: usize = 16;
const QUESTION: usize = 56;
/// Where `idiag_uid` and `idiag_inode` are in `struct inet_diag_msg`.
const USER: usize = 64;
const INODE: usize = 68;

/// A socket on which the kernel is asked. It can be opened before a process is shut in, and used after.
#[derive(Debug)]
pub struct Peers(OwnedFd);

impl Peers {
    /// Opens it, and finds out whether this kernel answers.
    ///
    /// # Errors
    /// Whatever `socket(2)` gives; `ENOENT` where the kernel has no such answers.
    pub fn open() -> io::Result<Self> {
        let kind = (AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC);
        let peers = Self(socket_with(kind.0, kind.1, kind.2, Some(netlink::SOCK_DIAG))?);
        let listener = std::net::TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0))?;
        let ours = listener.local_addr()?;
        let theirs = rustix::net::socket_with(
            AddressFamily::INET,
            SocketType::STREAM,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )?;
        // To oneself on loopback: it is connected at once or soon, and either way has its owner.
        let _ = rustix::net::connect(&theirs, &ours);
        let theirs = SocketAddr::try_from(rustix::net::getsockname(&theirs)?).map_err(io::Error::other)?;
        match peers.owner(theirs, ours)? {
            Some(_) => Ok(peers),
            None => Err(rustix::io::Errno::NOENT.into()),
        }
    }

    /// Another descriptor of the same socket.
    ///
    /// # Errors
    /// Whatever `fcntl(2)` gives.
    pub fn try_clone(&self) -> io::Result<Self> {
        self.0.try_clone().map(Self)
    }

    /// The user whose socket is at `theirs`, connected to `ours`; nothing where there is none any more.
    ///
    /// # Errors
    /// Whatever the socket gives.
    pub fn owner(&self, theirs: SocketAddr, ours: SocketAddr) -> io::Result<Option<u32>> {
        sendto(&self.0, &question(theirs, ours), SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
        let mut buffer = [0; 1024];
        let (length, _) = recv(&self.0, &mut buffer[..], RecvFlags::empty())?;
        Ok(answer(&buffer[..length]))
    }
}

impl AsFd for Peers {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn question(theirs: SocketAddr, ours: SocketAddr) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER + QUESTION);
    bytes.extend(((HEADER + QUESTION) as u32).to_ne_bytes());
    bytes.extend(BY_FAMILY.to_ne_bytes());
    bytes.extend(REQUEST.to_ne_bytes());
    bytes.extend([0; 8]); // sequence and port
    let family = if theirs.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    bytes.extend([family.as_raw() as u8, TCP, 0, 0]);
    bytes.extend(u32::MAX.to_ne_bytes()); // in any state
    bytes.extend(theirs.port().to_be_bytes());
    bytes.extend(ours.port().to_be_bytes());
    for address in [theirs.ip(), ours.ip()] {
        match address {
            IpAddr::V4(v4) => bytes.extend([&v4.octets()[..], &[0; 12]].concat()),
            IpAddr::V6(v6) => bytes.extend(v6.octets()),
        }
    }
    bytes.extend(0u32.to_ne_bytes()); // on any interface
    bytes.extend([0xff; 8]); // `INET_DIAG_NOCOOKIE`
    bytes
}

/// The user in an answer; an error has none.
fn answer(message: &[u8]) -> Option<u32> {
    let kind = u16::from_ne_bytes(message.get(4..6)?.try_into().ok()?);
    let number =
        |at: usize| message.get(HEADER + at..HEADER + at + 4)?.try_into().ok().map(u32::from_ne_bytes);
    // A socket that was closed has no inode, and its owner is told as root, whoever it was.
    (kind == BY_FAMILY && number(INODE)? != 0).then(|| number(USER))?
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[expect(clippy::disallowed_methods, reason = "to itself")]
    #[test]
    fn the_owner_of_a_connection_is_known_and_of_none_is_not() {
        let peers = Peers::open().unwrap();
        let own = rustix::process::getuid().as_raw();
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else { continue }; // no IPv6 here
            let ours = listener.local_addr().unwrap();
            let client = TcpStream::connect(ours).unwrap();
            let theirs = client.local_addr().unwrap();
            assert_eq!(peers.owner(theirs, ours).unwrap(), Some(own));
            let nobody = SocketAddr::new(theirs.ip(), theirs.port() ^ 1);
            assert_eq!(peers.owner(nobody, ours).unwrap(), None);
        }
    }

    #[test]
    fn a_short_answer_is_none() {
        for length in 0..HEADER + INODE + 4 {
            assert_eq!(answer(&vec![20; length]), None);
        }
    }
}
