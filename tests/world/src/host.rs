//! The host's own servers, which must be out of reach from inside a sandbox: a web server on loopback, one on every address of the host,
//! and two Unix sockets. The sockets are made in the host's network and served from the internet's.

use std::fs;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixListener};
use std::path::{Path, PathBuf};

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Duration, timeout};

use crate::error::Error;
use crate::http::{Opening, Web};
use crate::recorder::Recorder;
use crate::servers::serve_connections;
use crate::wire::latin1;

/// The name of the abstract socket (unix(7)), without its leading NUL.
const ABSTRACT: &str = "world-abstract";
/// The port of the web server on loopback, and of the one on all the host's addresses.
const LOOPBACK_PORT: u16 = 8000;
const ALL_PORT: u16 = 8001;

/// Sockets bound in the host's network.
pub(crate) struct HostSockets {
    tcp: Vec<(&'static str, TcpListener)>,
    unix: Vec<(&'static str, String, UnixListener)>,
}

/// Returns the path of the host's pathname socket.
pub(crate) fn socket_path(directory: &Path) -> PathBuf {
    directory.join("world.sock")
}

impl HostSockets {
    /// Binds the sockets; the caller is in the host's network.
    pub(crate) fn bind(directory: &Path) -> Result<Self, Error> {
        let addresses = [
            ("host-loopback", SocketAddr::from((Ipv4Addr::LOCALHOST, LOOPBACK_PORT))),
            ("host-loopback", SocketAddr::from((Ipv6Addr::LOCALHOST, LOOPBACK_PORT))),
            ("host-any", SocketAddr::from((Ipv6Addr::UNSPECIFIED, ALL_PORT))),
        ];
        let mut tcp = Vec::new();
        for (server, address) in addresses {
            let refused = |source| Error::Listen { address: address.to_string(), source };
            let listener = TcpListener::bind(address).map_err(refused)?;
            listener.set_nonblocking(true).map_err(refused)?;
            tcp.push((server, listener));
        }
        let path = socket_path(directory);
        let named = [
            ("host-abstract", format!("@{ABSTRACT}"), UnixAddress::from_abstract_name(ABSTRACT)),
            ("host-unix", path.display().to_string(), UnixAddress::from_pathname(&path)),
        ];
        let mut unix = Vec::new();
        for (server, name, address) in named {
            let refused = |source| Error::Listen { address: name.clone(), source };
            let listener = UnixListener::bind_addr(&address.map_err(refused)?).map_err(refused)?;
            listener.set_nonblocking(true).map_err(refused)?;
            unix.push((server, name, listener));
        }
        // A sandbox must stop a client from connecting, and not the mode of the file.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).map_err(Error::file(&path))?;
        Ok(Self { tcp, unix })
    }

    /// Serves the sockets from now on.
    pub(crate) fn serve(self, web: &Web) -> Result<(), Error> {
        for (server, listener) in self.tcp {
            let refused = |source| Error::Listen { address: server.to_owned(), source };
            let listener = tokio::net::TcpListener::from_std(listener).map_err(refused)?;
            let web = web.clone();
            tokio::spawn(serve_connections(
                listener,
                web.recorder.clone(),
                move |_| server,
                move |stream, visit| {
                    let web = web.clone();
                    async move { web.serve(stream, &visit, Opening::Either).await }
                },
            ));
        }
        for (server, name, listener) in self.unix {
            let refused = |source| Error::Listen { address: name.clone(), source };
            let listener = tokio::net::UnixListener::from_std(listener).map_err(refused)?;
            tokio::spawn(serve_unix(listener, server, name.clone(), web.recorder.clone()));
        }
        Ok(())
    }
}

async fn serve_unix(
    listener: tokio::net::UnixListener,
    server: &'static str,
    name: String,
    recorder: Recorder,
) {
    loop {
        let Ok((mut stream, _)) = listener.accept().await else { continue };
        recorder.write(server, "connect", String::new(), name.clone(), json!({}));
        let (name, recorder, open) = (name.clone(), recorder.clone(), recorder.open_connection());
        tokio::spawn(async move {
            let _open = open;
            // The peer may leave at any time; what it sent before counts.
            let _ = stream.write_all(b"hello from the host\n").await;
            let mut buffer = [0; 1024];
            if let Ok(Ok(length)) = timeout(Duration::from_secs(30), stream.read(&mut buffer)).await {
                recorder.write(
                    server,
                    "data",
                    String::new(),
                    name,
                    json!({ "data": latin1(&buffer[..length]) }),
                );
            }
        });
    }
}
