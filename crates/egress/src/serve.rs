//! One sidecar: its planes on one thread, and its end.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use tokio::net::UnixStream;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::LocalSet;

use crate::acceptor::{Acceptor, UnixAcceptor};
use crate::connection_slots::{self, ConnectionSlots};
use crate::event_loop;
use crate::gate::Gate;
use crate::gate_error::GateError;
use crate::http::{PeerFilter, Via};
use crate::inbound_ports::{InboundPorts, InboundRoute};
use crate::undelivered::{Family, serve_undelivered};
use crate::{audit, dns, http, idle, tunnel};

/// The sockets to serve, each bound already.
#[derive(Debug, Default)]
pub struct Listeners {
    /// Redirected TCP connections.
    pub transparent: Option<OwnedFd>,
    /// The explicit proxy.
    pub forward: Option<OwnedFd>,
    /// The gateway.
    pub gateway: Option<OwnedFd>,
    /// The gateway on a Unix socket.
    pub gateway_socket: Option<OwnedFd>,
    /// DNS over UDP, on a socket that reports destination addresses or is bound to one.
    pub dns_udp: Option<OwnedFd>,
    /// DNS over TCP.
    pub dns_tcp: Option<OwnedFd>,
    /// Receives the ICMP errors for datagrams of IPv4 that were not delivered, which are recorded as denied.
    pub undelivered_v4: Option<OwnedFd>,
    /// The same of IPv6.
    pub undelivered_v6: Option<OwnedFd>,
    /// The declared ports that lead to the command.
    pub inbound: Option<InboundPorts>,
    /// Which peers the proxy and the gateway serve, where others than the run could connect. Without it they serve every peer.
    pub peer_filter: Option<PeerFilter>,
}

impl Listeners {
    /// Duplicates every descriptor.
    ///
    /// # Errors
    /// Whatever `fcntl(2)` returns.
    pub fn try_clone(&self) -> io::Result<Self> {
        let duplicate = |fd: &Option<OwnedFd>| fd.as_ref().map(OwnedFd::try_clone).transpose();
        Ok(Self {
            transparent: duplicate(&self.transparent)?,
            forward: duplicate(&self.forward)?,
            gateway: duplicate(&self.gateway)?,
            gateway_socket: duplicate(&self.gateway_socket)?,
            dns_udp: duplicate(&self.dns_udp)?,
            dns_tcp: duplicate(&self.dns_tcp)?,
            undelivered_v4: duplicate(&self.undelivered_v4)?,
            undelivered_v6: duplicate(&self.undelivered_v6)?,
            inbound: self.inbound.as_ref().map(InboundPorts::try_clone).transpose()?,
            peer_filter: self.peer_filter.clone(),
        })
    }
}

/// What ends a sidecar.
pub struct Stop {
    /// The sidecar ends when its peer writes to this socket or closes it.
    socket: OwnedFd,
    /// Shuts the listeners. With it, a message on the socket begins a drain; the end of the socket ends the sidecar at once.
    drain: Option<Box<dyn FnOnce()>>,
}

impl Stop {
    /// Drains on a message: calls `drain`, which is to shut the listeners, and ends once no exchange is under way. A second message
    /// or the end of the socket ends the sidecar at once.
    pub fn after_what_is_under_way(socket: OwnedFd, drain: impl FnOnce() + 'static) -> Self {
        Self { socket, drain: Some(Box::new(drain)) }
    }
}

impl From<OwnedFd> for Stop {
    /// Ends the sidecar at once, on a message as on the end of the socket.
    fn from(socket: OwnedFd) -> Self {
        Self { socket, drain: None }
    }
}

impl fmt::Debug for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stop").field("socket", &self.socket).finish_non_exhaustive()
    }
}

/// Serves until `stop` or until a listener fails. Calls `ready` once every socket is served, and `lull` whenever connections came or
/// went and then none did for a moment.
///
/// # Errors
/// When the runtime cannot be made, this process may have too few descriptors, a socket cannot be served, or records of the audit could
/// not be written.
pub fn serve(
    gate: Rc<Gate>,
    listeners: Listeners,
    stop: impl Into<Stop>,
    ready: impl FnOnce() -> io::Result<()>,
    lull: fn(),
) -> Result<(), GateError> {
    connection_slots::refuse_too_few().map_err(GateError::Runtime)?;
    let runtime = event_loop::runtime()?;
    let local = LocalSet::new();
    let served = local
        .block_on(&runtime, run(Rc::clone(&gate), listeners, stop.into(), ready, lull))
        .map_err(GateError::Socket);
    gate.ending().end();
    // Dropping the tasks writes the records of unfinished exchanges, which must precede the end of the chain.
    drop(local);
    drop(runtime);
    let closed = gate.close();
    served.and(closed)
}

async fn run(
    gate: Rc<Gate>,
    listeners: Listeners,
    stop: Stop,
    ready: impl FnOnce() -> io::Result<()>,
    lull: fn(),
) -> io::Result<()> {
    let failures = start_planes(&gate, listeners)?;
    tokio::task::spawn_local(idle::run_in_lulls(lull));
    let audited = Rc::clone(&gate);
    tokio::task::spawn_local(async move { audit::write_batches(audited.audit()).await });
    let tended = Rc::clone(&gate);
    tokio::task::spawn_local(async move { tended.pool().tend().await });
    let Stop { socket, drain } = stop;
    let socket = std::os::unix::net::UnixStream::from(socket);
    socket.set_nonblocking(true)?;
    let socket = UnixStream::from_std(socket)?;
    ready()?;
    // A task of its own: the one that `block_on` runs is polled whenever any other is.
    let stopped = tokio::task::spawn_local(until_stopped(gate, socket, drain, failures));
    stopped.await.map_err(io::Error::other)?
}

/// Starts a task for each listener, and returns the channel on which they report their failures.
fn start_planes(gate: &Rc<Gate>, listeners: Listeners) -> io::Result<UnboundedReceiver<io::Result<()>>> {
    let Listeners {
        transparent,
        forward,
        gateway,
        gateway_socket,
        dns_udp,
        dns_tcp,
        undelivered_v4,
        undelivered_v6,
        inbound,
        peer_filter,
    } = listeners;
    let (report, failures) = unbounded_channel();
    let gate = || Rc::clone(gate);
    if let Some(fd) = transparent {
        let acceptor = Acceptor::open(fd, ConnectionSlots::common())?;
        gate().note_redirect();
        spawn_plane(&report, tunnel::serve_transparent(gate(), acceptor));
    }
    if let Some(fd) = forward {
        let acceptor = Acceptor::open(fd, ConnectionSlots::common())?;
        spawn_plane(&report, http::serve_http(gate(), acceptor, Via::Proxy, peer_filter.clone()));
    }
    if let Some(fd) = gateway {
        let acceptor = Acceptor::open(fd, ConnectionSlots::gateway())?;
        spawn_plane(&report, http::serve_http(gate(), acceptor, Via::Gateway, peer_filter));
    }
    if let Some(fd) = gateway_socket {
        rustix::io::ioctl_fionbio(&fd, true)?;
        spawn_plane(&report, http::serve_gateway_socket(gate(), UnixAcceptor::open(fd)?));
    }
    if let Some(fd) = dns_udp {
        spawn_plane(&report, dns::serve_udp(gate(), fd));
    }
    if let Some(fd) = dns_tcp {
        let acceptor = Acceptor::open(fd, ConnectionSlots::common())?;
        spawn_plane(&report, dns::serve_tcp(gate(), acceptor));
    }
    for (fd, family) in [(undelivered_v4, Family::V4), (undelivered_v6, Family::V6)] {
        if let Some(fd) = fd {
            spawn_plane(&report, serve_undelivered(gate(), fd, family));
        }
    }
    if let Some(InboundPorts { ports, entrance, who }) = inbound {
        let route = Rc::new(InboundRoute { entrance, who });
        for (fd, inbound) in ports {
            let acceptor = Acceptor::open(fd, ConnectionSlots::inbound())?;
            spawn_plane(&report, tunnel::serve_inbound(gate(), acceptor, inbound, Rc::clone(&route)));
        }
    }
    Ok(failures)
}

fn spawn_plane(
    report: &UnboundedSender<io::Result<()>>,
    plane: impl Future<Output = io::Result<()>> + 'static,
) {
    let report = report.clone();
    tokio::task::spawn_local(async move {
        let _ = report.send(plane.await);
    });
}

/// Waits for the stop socket or the first failure of a plane, then for the drain if there is to be one.
async fn until_stopped(
    gate: Rc<Gate>,
    socket: UnixStream,
    drain: Option<Box<dyn FnOnce()>>,
    mut failures: UnboundedReceiver<io::Result<()>>,
) -> io::Result<()> {
    tokio::select! {
        stopped = socket.readable() => stopped?,
        Some(failure) = failures.recv() => return failure,
    }
    let Some(drain) = drain else { return Ok(()) };
    if read_message(&socket).await? == 0 {
        return Ok(());
    }
    drain();
    // The listeners fail now that they are shut, so their failures are no longer looked at.
    tokio::select! {
        () = gate.ending().drain() => Ok(()),
        again = read_message(&socket) => again.map(drop),
    }
}

/// Reads from the stop socket; 0 is its end.
async fn read_message(socket: &UnixStream) -> io::Result<usize> {
    loop {
        socket.readable().await?;
        match socket.try_read(&mut [0; 16]) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            read => return read,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener, UnixStream};
    use std::sync::mpsc::{Receiver, channel};
    use std::thread::JoinHandle;
    use std::time::Duration;

    use rustix::net::Shutdown;
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    use super::*;
    use crate::fixture::gate_for;
    use crate::listen::{bind, bound};

    /// How long a test waits for something that must come.
    const PATIENCE: Duration = Duration::from_secs(5);

    /// A sidecar with a proxy and a gateway, on a thread of its own.
    struct Served {
        proxy: SocketAddr,
        gateway: SocketAddr,
        /// The other end of the socket that stops it.
        stop: UnixStream,
        /// Receives a message for each connection that the proxy accepts.
        accepted: Receiver<()>,
        /// Receives a message when the listener of the proxy has been shut.
        drained: Receiver<()>,
        thread: JoinHandle<()>,
        audit: std::fs::File,
    }

    /// Starts a sidecar that allows requests to one port of this machine.
    fn served(port: u16) -> Served {
        let at = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let (forward, gateway) = (bind(at).unwrap(), bind(at).unwrap());
        let [proxy_at, gateway_at] = [&forward, &gateway].map(|listener| bound(listener).unwrap());
        let name = UnixAddr::from_abstract_name(format!("lockgate-serve-{gateway_at}")).unwrap();
        let socket = UnixListener::bind_addr(&name).unwrap();
        let (stop, stopped) = UnixStream::pair().unwrap();
        let (ready, is_ready) = channel();
        let (accepts, accepted) = channel();
        let (drains, drained) = channel();
        let audit = tempfile::tempfile().unwrap();
        let records = audit.try_clone().unwrap();
        let thread = std::thread::spawn(move || {
            let (shut, shut_socket) = (forward.try_clone().unwrap(), socket.try_clone().unwrap());
            let drain = move || {
                rustix::net::shutdown(&shut, Shutdown::Both).unwrap();
                rustix::net::shutdown(&shut_socket, Shutdown::Both).unwrap();
                let _ = drains.send(());
            };
            let peer_filter = PeerFilter::new(move |_, local| {
                let _ = if local == proxy_at { accepts.send(()) } else { Ok(()) };
                Ok(())
            });
            let listeners = Listeners {
                forward: Some(forward),
                gateway: Some(gateway),
                gateway_socket: Some(socket.into()),
                peer_filter: Some(peer_filter),
                ..Listeners::default()
            };
            let rule = format!("[egress]\nallow = [{{ url = \"http://127.0.0.1:{port}/*\" }}]\n");
            let gate = gate_for(&rule, Vec::new(), Some(records));
            let ready = move || ready.send(()).map_err(io::Error::other);
            serve(gate, listeners, Stop::after_what_is_under_way(stopped.into(), drain), ready, || {})
                .unwrap();
        });
        is_ready.recv().unwrap();
        Served { proxy: proxy_at, gateway: gateway_at, stop, accepted, drained, thread, audit }
    }

    impl Served {
        #[expect(clippy::disallowed_methods, reason = "the agent's side, to a listener of the sidecar's")]
        fn connect(at: SocketAddr) -> io::Result<TcpStream> {
            let asks = TcpStream::connect(at)?;
            asks.set_read_timeout(Some(PATIENCE))?;
            Ok(asks)
        }

        /// Asks it to drain, and waits until its listener is shut.
        fn drain(&mut self) {
            self.stop.write_all(b"drain").unwrap();
            self.drained.recv_timeout(PATIENCE).unwrap();
            assert!(!self.thread.is_finished());
        }

        /// Waits until it has ended, and returns the records of its requests.
        fn records(mut self) -> Vec<serde_json::Value> {
            use std::io::Seek;
            self.thread.join().unwrap();
            let mut text = String::new();
            self.audit.rewind().unwrap();
            self.audit.read_to_string(&mut text).unwrap();
            let records = text.lines().map(|line| serde_json::from_str(line).unwrap());
            records.filter(|record: &serde_json::Value| record["plane"] != "gate").collect()
        }
    }

    /// A request to an upstream, as it is sent to the proxy.
    fn question(upstream: &TcpListener) -> String {
        let at = upstream.local_addr().unwrap();
        format!("GET http://{at}/slow HTTP/1.1\r\nHost: {at}\r\n\r\n")
    }

    #[test]
    fn the_gateway_answers_while_the_proxy_is_full() {
        // With 96 descriptors all listeners share 13 slots. One that is idle holds none of them.
        const FULL: usize = 13;
        let limit = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: Some(96), ..limit }).unwrap();
        let served = served(1);
        setrlimit(Resource::Nofile, limit).unwrap();
        let silent: Vec<TcpStream> = (0..40).map(|_| Served::connect(served.proxy).unwrap()).collect();
        (0..FULL).for_each(|_| served.accepted.recv_timeout(PATIENCE).unwrap());
        for _ in 0..3 {
            let mut asks = Served::connect(served.gateway).unwrap();
            asks.write_all(b"GET /health HTTP/1.1\r\nHost: gate\r\nConnection: close\r\n\r\n").unwrap();
            let mut answer = String::new();
            asks.read_to_string(&mut answer).unwrap();
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        }
        drop((silent, served.stop));
        served.thread.join().unwrap();
    }

    #[test]
    fn with_too_few_descriptors_it_does_not_seem_to_serve() {
        let limit = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: Some(36), ..limit }).unwrap();
        let (_ours, stop) = UnixStream::pair().unwrap();
        let gate = gate_for("", Vec::new(), None);
        let served = serve(gate, Listeners::default(), OwnedFd::from(stop), || panic!("it is ready"), || {});
        setrlimit(Resource::Nofile, limit).unwrap();
        let told = served.unwrap_err().to_string();
        assert!(told.contains("ulimit -n"), "{told}");
    }

    #[test]
    fn what_is_under_way_comes_to_its_end() {
        let upstream = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut served = served(upstream.local_addr().unwrap().port());
        let _idle = Served::connect(served.proxy).unwrap();
        let mut asks = Served::connect(served.proxy).unwrap();
        asks.write_all(question(&upstream).as_bytes()).unwrap();
        let (mut at_upstream, _) = upstream.accept().unwrap();
        served.drain();
        assert!(Served::connect(served.proxy).is_err(), "it takes no more connections");
        at_upstream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nlate").unwrap();
        let mut answer = String::new();
        asks.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("late"), "{answer}");
        // The stop socket is still open: the sidecar has ended by itself, though an idle connection was left.
        let records = served.records();
        assert_eq!(records.len(), 1, "{records:?}");
        assert_eq!((&records[0]["outcome"], &records[0]["status"]), (&"allowed".into(), &200.into()));
    }

    #[test]
    fn what_is_cut_has_failed() {
        for drains in [false, true] {
            let upstream = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let mut served = served(upstream.local_addr().unwrap().port());
            let mut asks = Served::connect(served.proxy).unwrap();
            asks.write_all(question(&upstream).as_bytes()).unwrap();
            let mut at_upstream = upstream.accept().unwrap().0;
            // The request has gone out.
            assert!(at_upstream.read(&mut [0; 512]).unwrap() > 0);
            if drains {
                served.drain();
            }
            served.stop.shutdown(std::net::Shutdown::Both).unwrap();
            let records = served.records();
            assert_eq!(records.len(), 1, "{records:?}");
            assert_eq!(records[0]["outcome"], "failed");
            assert_eq!(records[0]["reason"], "the sidecar ended while it was under way");
        }
    }
}
