//! The agent: sends octets, ends, and reads what comes back. Also checks what every answer must satisfy.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv6Addr, Shutdown, SocketAddr, TcpStream, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as LocalAddr, UnixStream};
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};

/// How long anything may take before it counts as hanging.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Sends octets over a new connection to the proxy, ends it, and reads the answer to its end.
///
/// # Panics
/// When the sidecar hangs, and does not end the connection.
#[must_use]
pub(crate) fn converse(proxy: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut stream = connect(proxy);
    // A refusal may come before everything was sent, and then resets the connection.
    let sent = stream.write_all(bytes).and_then(|()| stream.shutdown(Shutdown::Write));
    to_end(&mut stream, &format!("{sent:?}"))
}

/// Does the same over a Unix socket with an abstract name.
///
/// # Panics
/// When the sidecar hangs, and does not end the connection.
#[must_use]
pub(crate) fn converse_locally(name: &str, bytes: &[u8]) -> Vec<u8> {
    let address = LocalAddr::from_abstract_name(name).expect("a short name");
    let mut stream = UnixStream::connect_addr(&address).expect("the gateway listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a read timeout");
    stream.set_write_timeout(Some(PATIENCE)).expect("a write timeout");
    let sent = stream.write_all(bytes).and_then(|()| stream.shutdown(Shutdown::Write));
    to_end(&mut stream, &format!("{sent:?}"))
}

/// Blocks SIGPIPE in this thread and those it starts, so that a write without a reader returns an error. Rust's own start ignores
/// the signal, but a fuzzer's does not, and would die of it.
pub(crate) fn survive_broken_pipes() {
    let signals = SigSet::from(Signal::SIGPIPE);
    signals.thread_block().expect("a thread may block a signal");
}

/// Connects, with a time limit for reads and writes.
pub(crate) fn connect(proxy: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(proxy).expect("the proxy listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a read timeout");
    stream.set_write_timeout(Some(PATIENCE)).expect("a write timeout");
    stream
}

/// Reads until the connection ends, however it ends.
pub(crate) fn to_end(stream: &mut impl Read, sent: &str) -> Vec<u8> {
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
            panic!("the sidecar hangs ({sent}, {} octets came back)", answer.len())
        }
        _ => answer,
    }
}

/// Opens a socket that talks to the resolver.
#[must_use]
pub(crate) fn dns_socket(dns: SocketAddr) -> UdpSocket {
    let unspecified: IpAddr = Ipv6Addr::LOCALHOST.into();
    let socket = UdpSocket::bind((unspecified, 0)).expect("a free port");
    socket.connect(dns).expect("a datagram socket connects");
    socket.set_read_timeout(Some(PATIENCE)).expect("a read timeout");
    socket
}

/// Checks the first answer: its head ends, its lines end in CRLF, and at most one field gives the length of its body.
///
/// # Panics
/// When one of these does not hold.
pub(crate) fn assert_clean(answer: &[u8]) {
    assert!(answer.starts_with(b"HTTP/1.1 "), "{:?}", String::from_utf8_lossy(answer));
    let Some(end) = answer.windows(4).position(|four| four == b"\r\n\r\n") else {
        panic!("a head was begun and not ended: {:?}", String::from_utf8_lossy(answer));
    };
    let head = &answer[..end];
    let lone = |at: usize| match head[at] {
        b'\r' => head.get(at + 1) != Some(&b'\n'),
        b'\n' => at == 0 || head[at - 1] != b'\r',
        octet => octet == 0,
    };
    assert!(!(0..head.len()).any(lone), "{:?}", String::from_utf8_lossy(head));
    let fields: Vec<Vec<u8>> = head.split(|b| *b == b'\n').skip(1).map(<[u8]>::to_ascii_lowercase).collect();
    let has = |name: &[u8]| fields.iter().any(|field| field.starts_with(name));
    assert!(!(has(b"content-length:") && has(b"transfer-encoding:")), "{:?}", String::from_utf8_lossy(head));
}
