//! Every listener of the internet, and the process it runs in. Sockets are bound to the wildcard address wherever possible and tell their
//! servers apart by the dialled address, so everything that leaves the host is recorded.

use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UdpSocket};

use crate::addresses::{RESOLVER4, RESOLVER6, RESOLVERS, WEB4, WEB6, server_at};
use crate::authority::Authority;
use crate::dns::Resolver;
use crate::error::Error;
use crate::git::Repository;
use crate::host::HostSockets;
use crate::http::{Opening, Web};
use crate::models::Models;
use crate::names::Names;
use crate::namespaces::{Identity, drop_capabilities};
use crate::recorder::{Recorder, Visit};
use crate::registries::Registries;
use crate::routes::Services;
use crate::ssh;
use crate::wire::latin1;

/// The port of a TCP echo, and of a server that speaks first.
const ECHO_PORT: u16 = 7777;
const BANNER_PORT: u16 = 2525;
/// Common ports of services that answer HTTP: dashboards, container engines, orchestrators, search, proxies.
const OTHER_WEB_PORTS: [u16; 18] = [
    81, 853, 2375, 2376, 2379, 3000, 3128, 5000, 5985, 6443, 8000, 8080, 8081, 8443, 8888, 9000, 9200, 10250,
];
/// Ports whose datagrams are recorded and dropped: QUIC, NTP, SNMP, SSDP, mDNS.
const DATAGRAM_PORTS: [u16; 5] = [443, 123, 161, 1900, 5353];

/// The servers' configuration.
pub(crate) struct Plan {
    pub(crate) directory: PathBuf,
    pub(crate) ca_directory: PathBuf,
    pub(crate) tables: Option<PathBuf>,
    pub(crate) keys: Option<PathBuf>,
    pub(crate) identity: Identity,
    pub(crate) authority: Authority,
    pub(crate) recorder: Recorder,
    pub(crate) host: HostSockets,
}

/// The interval of the final checks whether everything is recorded, and their number.
const LAST_LOOK: Duration = Duration::from_millis(5);
const LAST_LOOKS: u32 = 100;

/// Runs the servers until the other end of `end` is closed. It writes to `ready` once all of them listen.
pub(crate) fn run(plan: Plan, ready: OwnedFd, end: OwnedFd) -> Result<(), Error> {
    let Plan { directory, ca_directory, tables, keys, identity, authority, recorder, host } = plan;
    let absent = |what: &str| {
        recorder.write(what, "absent", String::new(), String::new(), json!({ "why": "not installed" }));
    };
    let repository = Repository::create(&directory)?;
    if repository.is_none() {
        absent("git");
    }
    let ssh = ssh::Server::prepare(&directory, &ca_directory, repository.as_ref())?;
    if ssh.is_none() {
        absent("ssh");
    }
    drop_capabilities(identity)?;

    let services = Services { models: Models { keys }, registries: Registries::new(), repository };
    let web =
        Web { authority: Arc::new(authority), services: Arc::new(services), recorder: recorder.clone() };
    let resolver = Resolver { names: Arc::new(Mutex::new(Names::new(tables))), recorder };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|source| Error::Listen { address: "the event loop".to_owned(), source })?;
    runtime.block_on(async {
        listen(&web, &resolver)?;
        host.serve(&web)?;
        if let Some(ssh) = ssh {
            ssh.start(web.recorder.clone()).await?;
        }
        rustix::io::write(&ready, b"1").map_err(|source| Error::Fork { source: source.into() })?;
        drop(ready);
        ended(end).await?;
        // The command is gone and its connections are closing: what they still send is recorded.
        for _ in 0..LAST_LOOKS {
            tokio::time::sleep(LAST_LOOK).await;
            if web.recorder.open_connections() == 0 {
                break;
            }
        }
        Ok(())
    })
}

/// Waits until nobody holds the other end of a pipe.
async fn ended(end: OwnedFd) -> Result<(), Error> {
    let refused = |source| Error::Listen { address: "the command's end".to_owned(), source };
    let mut end = tokio::net::unix::pipe::Receiver::from_owned_fd(end).map_err(refused)?;
    let mut nothing = [0];
    end.read(&mut nothing).await.map(drop).map_err(refused)
}

fn listen(web: &Web, resolver: &Resolver) -> Result<(), Error> {
    let openings = [(80, Opening::Plain), (443, Opening::Tls)];
    let others = OTHER_WEB_PORTS.map(|port| (port, Opening::Either));
    for (port, opening) in openings.into_iter().chain(others) {
        let web = web.clone();
        spawn_tcp(port, &web.recorder.clone(), server_at, move |stream, visit| {
            let web = web.clone();
            async move { web.serve(stream, &visit, opening).await }
        })?;
    }
    spawn_tcp(53, &web.recorder, resolver_at, {
        let resolver = resolver.clone();
        move |stream, visit| {
            let resolver = resolver.clone();
            async move { resolver.serve_connection(stream, &visit).await }
        }
    })?;
    let recorder = &web.recorder;
    spawn_tcp(ECHO_PORT, recorder, |_| "echo", |stream, _| echo(stream))?;
    spawn_tcp(BANNER_PORT, recorder, |_| "banner", |stream, _| banner(stream))?;

    for address in RESOLVERS {
        let local = SocketAddr::from((address, 53));
        tokio::spawn(resolver.clone().serve_datagrams(udp(local)?, local, resolver_at(address)));
    }
    for address in [IpAddr::V4(WEB4), IpAddr::V6(WEB6)] {
        let local = SocketAddr::from((address, ECHO_PORT));
        tokio::spawn(swallow(udp(local)?, local, "echo", recorder.clone(), Datagrams::Return));
    }
    for port in DATAGRAM_PORTS.into_iter().chain([53, ECHO_PORT]) {
        let local = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
        tokio::spawn(swallow(udp(local)?, local, "anywhere", recorder.clone(), Datagrams::Drop));
    }
    Ok(())
}

fn resolver_at(address: IpAddr) -> &'static str {
    match address {
        IpAddr::V4(RESOLVER4) | IpAddr::V6(RESOLVER6) => "resolver",
        _ => "other-resolver",
    }
}

/// Listens on `port` of every address.
fn spawn_tcp<Serve, Served>(
    port: u16,
    recorder: &Recorder,
    name: impl Fn(IpAddr) -> &'static str + Send + 'static,
    serve: Serve,
) -> Result<(), Error>
where
    Serve: Fn(TcpStream, Visit) -> Served + Send + 'static,
    Served: Future<Output = io::Result<()>> + Send + 'static,
{
    let address = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
    let refused = |source| Error::Listen { address: format!("TCP {address}"), source };
    let socket = TcpSocket::new_v6().map_err(refused)?;
    // The SSH server binds beside us; some machines make IPv6 sockets serve IPv6 alone.
    sockopt::set_ipv6_v6only(&socket, false).map_err(|error| refused(error.into()))?;
    socket.set_reuseaddr(true).map_err(refused)?;
    socket.bind(address).map_err(refused)?;
    let listener = socket.listen(1024).map_err(refused)?;
    tokio::spawn(serve_connections(listener, recorder.clone(), name, serve));
    Ok(())
}

/// Records each connection as it is accepted and serves it in a task of its own.
pub(crate) async fn serve_connections<Serve, Served>(
    listener: TcpListener,
    recorder: Recorder,
    name: impl Fn(IpAddr) -> &'static str,
    serve: Serve,
) where
    Serve: Fn(TcpStream, Visit) -> Served,
    Served: Future<Output = io::Result<()>> + Send + 'static,
{
    loop {
        let accepted = listener.accept().await.and_then(|(stream, peer)| {
            // Small answers are sent at once.
            stream.set_nodelay(true)?;
            Ok((stream.local_addr()?, stream, peer))
        });
        let Ok((local, stream, peer)) = accepted else {
            // Out of descriptors, or a peer that left at once: the listener itself is sound.
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        let visit =
            Visit { server: name(local.ip().to_canonical()), peer: canonical(peer), local: canonical(local) };
        recorder.visit(&visit, "connect", json!({}));
        let open = recorder.open_connection();
        let served = serve(stream, visit);
        tokio::spawn(async move {
            // A connection that fails ends alone; what it received is in the records.
            drop(served.await);
            drop(open);
        });
    }
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

async fn echo(mut stream: TcpStream) -> io::Result<()> {
    let (mut reader, mut writer) = stream.split();
    tokio::io::copy(&mut reader, &mut writer).await?;
    writer.shutdown().await
}

/// Speaks first and then answers every line, as a mail server does.
async fn banner(mut stream: TcpStream) -> io::Result<()> {
    stream.write_all(b"220 ready\r\n").await?;
    let mut buffer = [0; 1024];
    while stream.read(&mut buffer).await? > 0 {
        stream.write_all(b"250 ok\r\n").await?;
    }
    Ok(())
}

/// Binds beside other sockets on the same port: a datagram goes to the most specific one.
fn udp(local: SocketAddr) -> Result<UdpSocket, Error> {
    let refused = |source| Error::Listen { address: format!("UDP {local}"), source };
    let family = if local.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let open = || -> rustix::io::Result<OwnedFd> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(family, SocketType::DGRAM, flags, None)?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        if local.is_ipv6() {
            sockopt::set_ipv6_v6only(&socket, !local.ip().is_unspecified())?;
        }
        bind(&socket, &local)?;
        Ok(socket)
    };
    let socket = open().map_err(|error| refused(error.into()))?;
    UdpSocket::from_std(std::net::UdpSocket::from(socket)).map_err(refused)
}

/// The reaction to a datagram after it is recorded.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Datagrams {
    Return,
    Drop,
}

async fn swallow(
    socket: UdpSocket,
    local: SocketAddr,
    server: &'static str,
    recorder: Recorder,
    then: Datagrams,
) {
    let mut buffer = [0; 65535];
    loop {
        let Ok((length, peer)) = socket.recv_from(&mut buffer).await else { continue };
        let visit = Visit { server, peer: canonical(peer), local };
        let data = &buffer[..length];
        recorder.visit(
            &visit,
            "datagram",
            json!({ "length": length, "data": latin1(&data[..length.min(512)]) }),
        );
        if then == Datagrams::Return {
            // The peer may be gone by now.
            let _ = socket.send_to(data, peer).await;
        }
    }
}
