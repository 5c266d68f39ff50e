//! The sidecar: one for the life of the process, in a thread of its own, with the rules the targets agree on.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::{IntoRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::time::Duration;

use egress::{Answers, Files, Gate, GateOptions, Listeners, SigningKey};
use policy::{Layers, Origin, RunId};

/// The one host the sidecar lets requests go to, and its port.
pub const HOST: &str = "up.example.com";
/// Its port.
pub const PORT: u16 = 8080;
/// A name the sidecar answers.
pub const DNS_NAME: &str = "ok.example.com";
/// How long anything may take before it counts as hanging.
const PATIENCE: Duration = Duration::from_secs(20);

/// A loopback address that no other process of the fuzzer uses.
#[must_use]
pub fn upstream_address() -> Ipv4Addr {
    let pid = std::process::id();
    Ipv4Addr::new(127, 1 + (pid >> 16) as u8 % 200, (pid >> 8) as u8, pid as u8 | 1)
}

fn rules() -> String {
    format!(
        r#"
        [egress]
        allow = [
            {{ url = "http://{HOST}:{PORT}/*", addresses = ["{}"] }},
            {{ host = "{DNS_NAME}" }},
            {{ host = "**.allowed.example.com" }},
        ]
        "#,
        upstream_address()
    )
}

/// Starts the sidecar. Its proxy's address and its resolver's come back once both are served.
#[must_use]
pub fn start() -> (SocketAddr, SocketAddr) {
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || serve(&tell));
    told.recv_timeout(PATIENCE).expect("the sidecar serves")
}

fn serve(tell: &mpsc::Sender<(SocketAddr, SocketAddr)>) {
    let mut layers = Layers::default();
    layers.push(Origin::Named("fuzz".into()), toml::from_str(&rules()).expect("the rules are TOML"));
    let policy = layers.compile().expect("the rules compile").policy;
    let (key, _) = SigningKey::generate().expect("there is randomness");
    let audit = std::fs::OpenOptions::new().append(true).open("/dev/null").expect("there is a null device");
    let options = GateOptions {
        policy,
        run: RunId::from_random([0; 12]),
        files: Files::default(),
        answers: Some(Answers::Given(Vec::new())), // no name is ever asked for outside
        audit: Some((audit, key)),
        notices: None,
    };
    let gate = Gate::open(options).expect("the gate opens");
    let forward = egress::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).expect("a free port");
    let dns = egress::bind_udp(SocketAddr::from((Ipv6Addr::LOCALHOST, 0))).expect("a free port");
    // As in a sandbox, where the socket tells which address was asked.
    nix::sys::socket::setsockopt(&dns, nix::sys::socket::sockopt::Ipv6RecvPacketInfo, &true)
        .expect("a socket option");
    let (forward_at, dns_at) = (local_tcp(&forward), local_udp(&dns));
    let listeners = Listeners { forward: Some(forward), dns_udp: Some(dns), ..Listeners::default() };
    let (ours, stop) = UnixStream::pair().expect("a pair of sockets");
    let _kept_open = ours.into_raw_fd(); // closing it would stop the sidecar
    let served = egress::serve(gate, listeners, stop.into(), || {
        let _ = tell.send((forward_at, dns_at));
        Ok(())
    });
    panic!("the sidecar ended: {served:?}");
}

fn local_tcp(fd: &OwnedFd) -> SocketAddr {
    let copy = std::net::TcpListener::from(fd.try_clone().expect("a descriptor"));
    copy.local_addr().expect("it is bound")
}

fn local_udp(fd: &OwnedFd) -> SocketAddr {
    let copy = UdpSocket::from(fd.try_clone().expect("a descriptor"));
    copy.local_addr().expect("it is bound")
}

/// A socket that talks to the resolver.
#[must_use]
pub fn dns_socket(dns: SocketAddr) -> UdpSocket {
    let unspecified: IpAddr = Ipv6Addr::LOCALHOST.into();
    let socket = UdpSocket::bind((unspecified, 0)).expect("a free port");
    socket.connect(dns).expect("a datagram socket connects");
    socket.set_read_timeout(Some(PATIENCE)).expect("a read timeout");
    socket
}

/// Sends octets over a new connection to the proxy, ends, and reads what comes back to its end.
///
/// # Panics
/// When the sidecar does not end the connection: it hangs.
#[must_use]
pub fn converse(proxy: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(proxy).expect("the proxy listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a read timeout");
    stream.set_write_timeout(Some(PATIENCE)).expect("a write timeout");
    let mut answer = Vec::new();
    // A refusal may come before everything was sent, and then resets the connection.
    let sent = stream.write_all(bytes).and_then(|()| stream.shutdown(Shutdown::Write));
    match stream.read_to_end(&mut answer) {
        Err(error)
            if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) =>
        {
            panic!("the sidecar hangs ({sent:?}, {} octets came back)", answer.len())
        }
        _ => answer,
    }
}
