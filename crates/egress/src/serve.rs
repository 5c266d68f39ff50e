//! One sidecar: its sockets, its one thread, and its end.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener as StdListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use credential::Secret;
use policy::Inbound;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::task::LocalSet;

use crate::connection_slots::{ConnectionPermit, ConnectionSlots};
use crate::gate::{Gate, GateError};
use crate::upstream::Entrance;
use crate::{audit, dns, http, idle, tunnel};

/// Sockets to serve; each is bound already.
#[derive(Debug, Default)]
pub struct Listeners {
    /// Redirected connections.
    pub transparent: Option<OwnedFd>,
    /// The explicit proxy.
    pub forward: Option<OwnedFd>,
    /// The gateway.
    pub gateway: Option<OwnedFd>,
    /// The gateway on a Unix socket.
    pub gateway_socket: Option<OwnedFd>,
    /// DNS over UDP, on a socket that tells destinations or is bound to one.
    pub dns_udp: Option<OwnedFd>,
    /// DNS over TCP.
    pub dns_tcp: Option<OwnedFd>,
    /// Ports of the command's that may be reached from outside, and the way to them.
    pub inbound: Option<InboundPorts>,
    /// Who may connect to the proxy and the gateway, where others than the run could; everybody without it.
    pub peer_filter: Option<PeerFilter>,
}

/// Declared ports of this machine that lead inside, and the way there.
#[derive(Debug)]
pub struct InboundPorts {
    /// Each with its listener.
    pub ports: Vec<(OwnedFd, Inbound)>,
    /// The way to the command.
    pub entrance: Entrance,
    /// How it is known who connects.
    pub who: WhoConnects,
}

/// How it is known who connects to a declared port.
#[derive(Clone, Debug)]
pub enum WhoConnects {
    /// By the connection.
    Seen,
    /// By the connection; this machine's own to a port on its loopback come from this address, where an engine passes them on.
    SeenBehind(IpAddr),
    /// By whoever hands it on and knows this secret: what others say is nothing.
    SidecarMessage(Secret),
}

impl InboundPorts {
    /// The same once more, for a process that is forked from this one.
    ///
    /// # Errors
    /// Whatever `fcntl(2)` gives.
    pub fn try_clone(&self) -> io::Result<Self> {
        let port = |(fd, inbound): &(OwnedFd, Inbound)| Ok((fd.try_clone()?, inbound.clone()));
        let ports = self.ports.iter().map(port).collect::<io::Result<_>>()?;
        Ok(Self { ports, entrance: self.entrance.try_clone()?, who: self.who.clone() })
    }

    /// What must stay open in that process.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.ports.iter().map(|(fd, _)| fd.as_fd()).chain(self.entrance.descriptor())
    }
}

/// Says whether a connection may come in, by its other end and its own.
pub struct PeerFilter(Arc<dyn Fn(SocketAddr, SocketAddr) -> bool + Send + Sync>);

impl PeerFilter {
    /// Lets in what `admits` says.
    pub fn new(admits: impl Fn(SocketAddr, SocketAddr) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(admits))
    }
}

impl std::fmt::Debug for PeerFilter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PeerFilter")
    }
}

/// What tells a sidecar to end.
pub struct Stop {
    /// Whose end, or what comes over it, is the word.
    line: OwnedFd,
    /// What is done first where something comes: then what is under way goes on, until the line's end at the latest.
    drain: Option<Box<dyn FnOnce()>>,
}

impl Stop {
    /// Has what comes over the line say that nothing new is to begin. `drain` is to shut the listeners.
    pub fn after_what_is_under_way(line: OwnedFd, drain: impl FnOnce() + 'static) -> Self {
        Self { line, drain: Some(Box::new(drain)) }
    }
}

impl From<OwnedFd> for Stop {
    /// At once, whatever comes.
    fn from(line: OwnedFd) -> Self {
        Self { line, drain: None }
    }
}

impl std::fmt::Debug for Stop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stop").field("line", &self.line).finish_non_exhaustive()
    }
}

/// How long a listener rests when there are no descriptors left (L10).
const EXHAUSTED: Duration = Duration::from_millis(50);

/// Binds a listener for a sidecar that has no sandbox of ours.
///
/// # Errors
/// When the address cannot be bound.
pub fn bind(address: SocketAddr) -> Result<OwnedFd, GateError> {
    let bind = |source| GateError::Bind { address: address.to_string(), source };
    let listener = StdListener::bind(address).map_err(bind)?;
    listener.set_nonblocking(true).map_err(bind)?;
    Ok(listener.into())
}

/// Binds a listener on a Unix socket for a sidecar that has no sandbox of ours. A socket that is left there from before is taken
/// away if nobody serves it.
///
/// # Errors
/// When the path cannot be bound, as where something else has it.
pub fn bind_socket(path: &std::path::Path) -> Result<OwnedFd, GateError> {
    use std::os::unix::net::{UnixListener, UnixStream};
    let bind = |source| GateError::Bind { address: path.display().to_string(), source };
    let is_left = UnixStream::connect(path).is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused);
    if is_left && is_socket(path) {
        std::fs::remove_file(path).map_err(bind)?;
    }
    UnixListener::bind(path).map(OwnedFd::from).map_err(bind)
}

fn is_socket(path: &std::path::Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    std::fs::symlink_metadata(path).is_ok_and(|it| it.file_type().is_socket())
}

/// Where a listener is bound: the port that was found for it, where none was named.
///
/// # Errors
/// When the kernel does not tell.
pub fn bound(listener: &OwnedFd) -> io::Result<SocketAddr> {
    Ok(rustix::net::getsockname(listener)?.try_into()?)
}

/// Binds a datagram socket for DNS. Its answers come from the address it is bound to.
///
/// # Errors
/// When the address cannot be bound.
pub fn bind_udp(address: SocketAddr) -> Result<OwnedFd, GateError> {
    let bind = |source| GateError::Bind { address: address.to_string(), source };
    let socket = std::net::UdpSocket::bind(address).map_err(bind)?;
    socket.set_nonblocking(true).map_err(bind)?;
    Ok(socket.into())
}

/// Serves until `stop` says otherwise or a listener fails. `ready` is told when every socket is served, and `lull` is done
/// whenever connections came or went and for a moment no more do.
///
/// # Errors
/// When the gate cannot be opened or a socket cannot be served.
pub fn serve(
    gate: Rc<Gate>,
    listeners: Listeners,
    stop: impl Into<Stop>,
    ready: impl FnOnce() -> io::Result<()>,
    lull: fn(),
) -> Result<(), GateError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build()
        .map_err(GateError::Runtime)?;
    let local = LocalSet::new();
    let served = local
        .block_on(&runtime, run(Rc::clone(&gate), listeners, stop.into(), ready, lull))
        .map_err(GateError::Socket);
    gate.ending().end();
    // Exchanges that are still going on write their records now, before the chain ends.
    drop(local);
    drop(runtime);
    gate.close();
    served
}

async fn run(
    gate: Rc<Gate>,
    listeners: Listeners,
    stop: Stop,
    ready: impl FnOnce() -> io::Result<()>,
    lull: fn(),
) -> io::Result<()> {
    let Listeners { transparent, forward, gateway, gateway_socket, dns_udp, dns_tcp, inbound, peer_filter } =
        listeners;
    let (failed, mut failures) = tokio::sync::mpsc::unbounded_channel();
    let drained = Rc::clone(&gate);
    let start = |served: std::pin::Pin<Box<dyn Future<Output = io::Result<()>>>>| {
        let failed = failed.clone();
        tokio::task::spawn_local(async move {
            let _ = failed.send(served.await);
        });
    };
    if let Some(fd) = transparent {
        start(Box::pin(tunnel::serve_transparent(Rc::clone(&gate), Acceptor::open(fd, None)?)));
    }
    if let Some(fd) = forward {
        start(Box::pin(http::serve_forward(Rc::clone(&gate), Acceptor::open(fd, peer_filter.as_ref())?)));
    }
    if let Some(fd) = gateway {
        start(Box::pin(http::serve_gateway(
            Rc::clone(&gate),
            Acceptor::of_the_gateway(fd, peer_filter.as_ref())?,
        )));
    }
    if let Some(fd) = gateway_socket {
        let listener = std::os::unix::net::UnixListener::from(fd);
        listener.set_nonblocking(true)?;
        start(Box::pin(http::serve_gateway_socket(Rc::clone(&gate), UnixListener::from_std(listener)?)));
    }
    if let Some(fd) = dns_udp {
        start(Box::pin(dns::serve_udp(Rc::clone(&gate), fd)));
    }
    if let Some(fd) = dns_tcp {
        start(Box::pin(dns::serve_tcp(Rc::clone(&gate), Acceptor::open(fd, None)?)));
    }
    if let Some(InboundPorts { ports, entrance, who }) = inbound {
        let way = Rc::new((entrance, who));
        for (fd, inbound) in ports {
            let (gate, way) = (Rc::clone(&gate), Rc::clone(&way));
            start(Box::pin(tunnel::serve_inbound(gate, Acceptor::from_outside(fd)?, inbound, way)));
        }
    }
    tokio::task::spawn_local(idle::in_each(lull));
    tokio::task::spawn_local(async move { audit::write_in_turns(gate.audit()).await });
    let Stop { line, drain } = stop;
    let line = std::os::unix::net::UnixStream::from(line);
    line.set_nonblocking(true)?;
    let line = UnixStream::from_std(line)?;
    ready()?;
    // A task of its own: this one is looked at with every turn of the others.
    let over = tokio::task::spawn_local(async move {
        tokio::select! {
            stopped = line.readable() => stopped?,
            Some(failure) = failures.recv() => return failure,
        }
        let Some(drain) = drain else { return Ok(()) };
        if next_word(&line).await? == 0 {
            return Ok(());
        }
        drain();
        // Listeners that are shut fail, which is no news.
        tokio::select! {
            () = drained.ending().drain() => Ok(()),
            again = next_word(&line) => again.map(drop),
        }
    });
    over.await.map_err(io::Error::other)?
}

/// The length of the next word on a line; none at its end.
async fn next_word(line: &UnixStream) -> io::Result<usize> {
    loop {
        line.readable().await?;
        match line.try_read(&mut [0; 16]) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            word => return word,
        }
    }
}

/// A listener, and who it lets in.
pub(crate) struct Acceptor {
    listener: TcpListener,
    places: ConnectionSlots,
    keeper: Option<Arc<dyn Fn(SocketAddr, SocketAddr) -> bool + Send + Sync>>,
}

impl Acceptor {
    fn open(fd: OwnedFd, keeper: Option<&PeerFilter>) -> io::Result<Self> {
        let listener = TcpListener::from_std(StdListener::from(fd))?;
        Ok(Self {
            listener,
            places: ConnectionSlots::common(),
            keeper: keeper.map(|keeper| Arc::clone(&keeper.0)),
        })
    }

    /// One of the gateway, which is to answer also while the others are full.
    fn of_the_gateway(fd: OwnedFd, keeper: Option<&PeerFilter>) -> io::Result<Self> {
        Ok(Self { places: ConnectionSlots::of_the_gateway(), ..Self::open(fd, keeper)? })
    }

    /// One for connections from outside to one port.
    pub(crate) fn from_outside(fd: OwnedFd) -> io::Result<Self> {
        Ok(Self { places: ConnectionSlots::from_outside(), ..Self::open(fd, None)? })
    }

    /// Accepts a connection. One that failed on its way, or is not let in, is skipped; exhaustion waits instead of spinning.
    pub(crate) async fn accept(&self) -> io::Result<(TcpStream, ConnectionPermit)> {
        let permit = self.places.take().await;
        loop {
            match self.listener.accept().await {
                Ok((stream, theirs)) if self.admits(&stream, theirs) => {
                    idle::touch();
                    return Ok((stream, permit));
                }
                Ok((stream, _)) => {
                    let _ = stream.set_zero_linger();
                }
                Err(error) => survive(error).await?,
            }
        }
    }

    fn admits(&self, stream: &TcpStream, theirs: SocketAddr) -> bool {
        let Some(keeper) = &self.keeper else { return true };
        stream.local_addr().is_ok_and(|ours| keeper(theirs, ours))
    }
}

/// Accepts a connection on a Unix socket, whose permissions say who may connect.
pub(crate) async fn accept_unix(listener: &UnixListener) -> io::Result<(UnixStream, ConnectionPermit)> {
    let permit = ConnectionSlots::of_the_gateway().take().await;
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                idle::touch();
                return Ok((stream, permit));
            }
            Err(error) => survive(error).await?,
        }
    }
}

/// Whether accepting goes on after an error.
pub(crate) async fn survive(error: io::Error) -> io::Result<()> {
    use rustix::io::Errno;
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::CONNABORTED | Errno::INTR) => Ok(()),
        Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS) => {
            tokio::time::sleep(EXHAUSTED).await;
            Ok(())
        }
        _ => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;
    use std::thread::JoinHandle;

    use rustix::net::Shutdown;
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    use super::*;
    use crate::local_addresses::tests::gate_for;

    /// A sidecar with a proxy and a gateway, the way to it, and what tells it to end.
    struct Served {
        proxy: SocketAddr,
        gateway: SocketAddr,
        stop: UnixStream,
        thread: JoinHandle<()>,
        audit: std::fs::File,
    }

    /// Serves what goes to one port of this machine.
    fn served(port: u16) -> Served {
        let at = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let (forward, gateway) = (bind(at).unwrap(), bind(at).unwrap());
        let [proxy_at, gateway_at] = [&forward, &gateway].map(|listener| bound(listener).unwrap());
        let (stop, line) = UnixStream::pair().unwrap();
        let (ready, is_ready) = std::sync::mpsc::channel();
        let audit = tempfile::tempfile().unwrap();
        let records = audit.try_clone().unwrap();
        let thread = std::thread::spawn(move || {
            let shut = forward.try_clone().unwrap();
            let drain = move || rustix::net::shutdown(&shut, Shutdown::Both).unwrap();
            let listeners =
                Listeners { forward: Some(forward), gateway: Some(gateway), ..Listeners::default() };
            let rule = format!("[egress]\nallow = [{{ url = \"http://127.0.0.1:{port}/*\" }}]\n");
            let gate = gate_for(&rule, Vec::new(), Some(records));
            let ready = move || ready.send(()).map_err(io::Error::other);
            serve(gate, listeners, Stop::after_what_is_under_way(line.into(), drain), ready, || {}).unwrap();
        });
        is_ready.recv().unwrap();
        Served { proxy: proxy_at, gateway: gateway_at, stop, thread, audit }
    }

    impl Served {
        #[expect(clippy::disallowed_methods, reason = "the agent's side, at a door of the sidecar's")]
        fn connect(at: SocketAddr) -> io::Result<TcpStream> {
            let asks = TcpStream::connect(at)?;
            asks.set_read_timeout(Some(Duration::from_secs(5)))?;
            Ok(asks)
        }

        /// The records of its requests, once it has ended.
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

    /// What is asked of an upstream, at the proxy.
    fn question(upstream: &TcpListener) -> String {
        let at = upstream.local_addr().unwrap();
        format!("GET http://{at}/slow HTTP/1.1\r\nHost: {at}\r\n\r\n")
    }

    #[test]
    fn the_gateway_answers_while_the_proxy_is_full() {
        let limit = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: Some(64), ..limit }).unwrap();
        let served = served(1);
        setrlimit(Resource::Nofile, limit).unwrap();
        let silent: Vec<TcpStream> = (0..40).map(|_| Served::connect(served.proxy).unwrap()).collect();
        std::thread::sleep(Duration::from_millis(100));
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
    fn what_is_under_way_comes_to_its_end() {
        let upstream = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut served = served(upstream.local_addr().unwrap().port());
        let _idle = Served::connect(served.proxy).unwrap();
        let mut asks = Served::connect(served.proxy).unwrap();
        asks.write_all(question(&upstream).as_bytes()).unwrap();
        let (mut at_upstream, _) = upstream.accept().unwrap();
        served.stop.write_all(b"drain").unwrap();
        std::thread::sleep(Duration::from_millis(200));
        assert!(Served::connect(served.proxy).is_err(), "it takes no more connections");
        assert!(!served.thread.is_finished());
        at_upstream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nlate").unwrap();
        let mut answer = String::new();
        asks.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("late"), "{answer}");
        // Its line is open: it has ended by itself, and with it who had nothing under way.
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
            // It has gone out.
            assert!(at_upstream.read(&mut [0; 512]).unwrap() > 0);
            if drains {
                served.stop.write_all(b"drain").unwrap();
                std::thread::sleep(Duration::from_millis(100));
                assert!(!served.thread.is_finished());
            }
            served.stop.shutdown(std::net::Shutdown::Both).unwrap();
            let records = served.records();
            assert_eq!(records.len(), 1, "{records:?}");
            assert_eq!(records[0]["outcome"], "failed");
            assert_eq!(records[0]["reason"], "the sidecar ended while it was under way");
        }
    }
}
