//! Starts the sidecar: one for the life of the process, in a thread of its own, with the rules that the targets share.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{IntoRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as LocalAddr, UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::mpsc;

use egress::{Answers, Gate, GateOptions, Listeners, SigningKey};
use policy::{Layers, Origin, RunId};

use crate::agent::{PATIENCE, survive_broken_pipes};
use crate::platform::Platform;

/// The one host that the sidecar lets requests go to.
pub(crate) const HOST: &str = "up.example.com";
/// The port of that host.
pub(crate) const PORT: u16 = 8080;
/// A name that the sidecar resolves.
pub(crate) const DNS_NAME: &str = "ok.example.com";

/// Returns a loopback address that no other process of the fuzzer uses.
#[must_use]
pub(crate) fn upstream_address() -> Ipv4Addr {
    let pid = std::process::id();
    Ipv4Addr::new(127, 1 + (pid >> 16) as u8 % 200, (pid >> 8) as u8, pid as u8)
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

/// Returns rules for the same host, with two credentials for parts of it: the agent places one of them, its provider the other.
pub(crate) fn rules_of_gateway() -> String {
    let address = upstream_address();
    format!(
        r#"
        {}
        [[provider]]
        id = "any"
        authorized_uris = ["http://{HOST}:{PORT}/any/*"]
        addresses = ["{address}"]
        placeholders = "anywhere"

        [[provider]]
        id = "model"
        authorized_uris = ["http://{HOST}:{PORT}/v1/*"]
        addresses = ["{address}"]
        llm = "openai"
        inject = {{ header = "Authorization", value = "Bearer {{{{access_token}}}}" }}
        "#,
        rules()
    )
}

/// Starts the sidecar, waits until it serves, and returns the addresses of its proxy and its resolver.
#[must_use]
pub(crate) fn start() -> (SocketAddr, SocketAddr) {
    let forward = egress::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).expect("a free port");
    let dns = egress::bind_udp(SocketAddr::from((Ipv6Addr::LOCALHOST, 0))).expect("a free port");
    // As in a sandbox, where the socket reports the address that was asked.
    nix::sys::socket::setsockopt(&dns, nix::sys::socket::sockopt::Ipv6RecvPacketInfo, &true)
        .expect("a socket option");
    let addresses = (local_tcp(&forward), local_udp(&dns));
    let listeners = Listeners { forward: Some(forward), dns_udp: Some(dns), ..Listeners::default() };
    launch(rules(), listeners, |_| {});
    addresses
}

/// Starts a sidecar with a gateway on a Unix socket, and returns that socket's abstract name.
#[must_use]
pub(crate) fn start_gateway(platform: &Platform) -> String {
    let name = format!("lockgate-fuzz-{}", std::process::id());
    let address = LocalAddr::from_abstract_name(&name).expect("a short name");
    let socket = UnixListener::bind_addr(&address).expect("the name is this process's own");
    let listeners = Listeners { gateway_socket: Some(socket.into()), ..Listeners::default() };
    let credential_config = platform.credential_config();
    launch(rules_of_gateway(), listeners, |options| options.credential_config = credential_config);
    name
}

/// Starts a sidecar with these rules and the options that `change` sets, and waits until it serves.
pub(crate) fn launch(
    rules: String,
    listeners: Listeners,
    change: impl FnOnce(&mut GateOptions) + Send + 'static,
) {
    survive_broken_pipes();
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        let mut options = options(&rules);
        change(&mut options);
        let gate = Gate::open(options).expect("the gate opens");
        let (ours, stop) = UnixStream::pair().expect("a pair of sockets");
        let _kept_open = ours.into_raw_fd(); // closing it would stop the sidecar
        let ready = || {
            let _ = tell.send(());
            Ok(())
        };
        let served = egress::serve(gate, listeners, OwnedFd::from(stop), ready, || ());
        panic!("the sidecar ended: {served:?}");
    });
    told.recv_timeout(PATIENCE).expect("the sidecar serves");
}

fn options(rules: &str) -> GateOptions {
    let mut layers = Layers::default();
    layers.push(Origin::Named("fuzz".into()), toml::from_str(rules).expect("the rules are TOML"));
    let spec = layers.compile().expect("the rules compile");
    let (key, _) = SigningKey::generate().expect("there is randomness");
    let audit = std::fs::OpenOptions::new().append(true).open("/dev/null").expect("there is a null device");
    GateOptions {
        answers: Some(Answers::Given(Vec::new())), // no name is ever asked for outside
        audit: Some((Arc::new(audit), key)),
        ..GateOptions::new(spec.policy, spec.spending, RunId::from_random([0; 12]))
    }
}

pub(crate) fn local_tcp(fd: &OwnedFd) -> SocketAddr {
    let copy = TcpListener::from(fd.try_clone().expect("a descriptor"));
    copy.local_addr().expect("it is bound")
}

fn local_udp(fd: &OwnedFd) -> SocketAddr {
    let copy = UdpSocket::from(fd.try_clone().expect("a descriptor"));
    copy.local_addr().expect("it is bound")
}
