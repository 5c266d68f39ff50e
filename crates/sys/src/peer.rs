//! Finds the user at the other end of a local TCP connection, by sock_diag(7).

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
/// The offsets of `idiag_uid` and `idiag_inode` in `struct inet_diag_msg`.
const USER: usize = 64;
const INODE: usize = 68;
/// The offsets of `idiag_sport` and `idiag_src`. Those of the other end follow them.
const PORT: usize = 4;
const ADDRESS: usize = 8;

/// A sock_diag socket. A process can open it before it confines itself, and use it afterwards.
#[derive(Debug)]
pub struct Peers(OwnedFd);

impl Peers {
    /// Opens the socket, and checks on a connection of its own that this kernel answers.
    ///
    /// # Errors
    /// When a socket call fails; `ENOENT` if the kernel does not answer such questions.
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
        // To itself on loopback: connected at once or soon, and with an owner either way.
        let _ = rustix::net::connect(&theirs, &ours);
        let theirs = SocketAddr::try_from(rustix::net::getsockname(&theirs)?).map_err(io::Error::other)?;
        match peers.owner(theirs, ours)? {
            Some(_) => Ok(peers),
            None => Err(rustix::io::Errno::NOENT.into()),
        }
    }

    /// Duplicates the descriptor.
    ///
    /// # Errors
    /// When `fcntl(2)` fails.
    pub fn try_clone(&self) -> io::Result<Self> {
        self.0.try_clone().map(Self)
    }

    /// Returns the user whose socket is at `theirs`, connected to `ours`, if it still exists.
    ///
    /// # Errors
    /// When the socket fails.
    pub fn owner(&self, theirs: SocketAddr, ours: SocketAddr) -> io::Result<Option<u32>> {
        sendto(&self.0, &question(theirs, ours), SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
        let mut buffer = [0; 1024];
        // The kernel answers before `sendto` returns.
        let (length, _) = recv(&self.0, &mut buffer[..], RecvFlags::DONTWAIT)?;
        Ok(answer(&buffer[..length], theirs, ours))
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

/// Returns the user in an answer about this connection. There is none in an error, in the answer of a listener (which the kernel gives
/// if the connection is gone), and for a closed socket, whose owner the kernel reports as root whoever it was.
fn answer(message: &[u8], theirs: SocketAddr, ours: SocketAddr) -> Option<u32> {
    let octets = |at: usize, length: usize| message.get(at..at + length);
    let number = |at: usize| octets(HEADER + at, 4)?.try_into().ok().map(u32::from_ne_bytes);
    let kind = u16::from_ne_bytes(octets(4, 2)?.try_into().ok()?);
    let end = |port: usize, address: usize| {
        let port = u16::from_be_bytes(octets(HEADER + port, 2)?.try_into().ok()?);
        let ip: IpAddr = match u16::from(message[HEADER]) {
            family if family == AddressFamily::INET.as_raw() => {
                <[u8; 4]>::try_from(octets(HEADER + address, 4)?).ok()?.into()
            }
            _ => <[u8; 16]>::try_from(octets(HEADER + address, 16)?).ok()?.into(),
        };
        Some(SocketAddr::new(ip.to_canonical(), port))
    };
    let plain = |it: SocketAddr| SocketAddr::new(it.ip().to_canonical(), it.port());
    let is_it = kind == BY_FAMILY
        && end(PORT, ADDRESS)? == plain(theirs)
        && end(PORT + 2, ADDRESS + 16)? == plain(ours)
        && number(INODE)? != 0;
    is_it.then(|| number(USER))?
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
            // A listener at the address of a closed connection is not its peer.
            let free = TcpListener::bind((theirs.ip(), 0)).unwrap();
            assert_eq!(peers.owner(free.local_addr().unwrap(), ours).unwrap(), None);
        }
    }

    #[test]
    fn a_short_answer_is_none() {
        let somebody = SocketAddr::from(([20, 20, 20, 20], 0x1414));
        for length in 0..HEADER + INODE + 4 {
            assert_eq!(answer(&vec![20; length], somebody, somebody), None);
        }
    }
}
