//! Starts the origin and the proxies before it: nginx serves HTTPS and HTTP; the product, nginx and haproxy each splice TLS to it
//! by server name alone.
//!
//! Every proxy has one worker: the bench compares what a connection costs, not how many cores a proxy may take.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use super::sample::Role;
use super::server::{Server, free_port};
use super::{Bench, machine};
use crate::bounded::Bounded;

/// The origin's name.
pub(crate) const NAME: &str = "bench.example.com";
const STREAM_MODULE: &str = "/usr/lib/nginx/modules/ngx_stream_module.so";
/// The large body, in octets.
const BULK: u64 = 64 << 20;

/// The server behind every proxy.
pub(crate) struct Origin {
    /// Where it serves HTTPS.
    pub(crate) address: SocketAddr,
    /// Where it serves plain HTTP.
    pub(crate) plain: SocketAddr,
    pub(crate) authority: PathBuf,
    _server: Server,
}

impl Origin {
    /// Starts nginx, with a certificate of its own that the load generator writes. Its files are in `folder`.
    pub(crate) fn start(load: &Path, nginx: &Path, folder: &Path) -> Result<Self> {
        let certificate = ["certificate", "--name", NAME, "--folder", &folder.to_string_lossy()];
        Bounded::new(&load.to_string_lossy(), &certificate, Duration::from_secs(30)).run()?;
        fs::write(folder.join("1k"), [b'x'; 1024])?;
        fs::File::create(folder.join("bulk"))?.set_len(BULK)?;
        let (address, plain) = (free_port()?, free_port()?);
        let at = folder.display();
        let rest = format!(
            "http {{ access_log off; keepalive_requests 1000000000; keepalive_timeout 600; sendfile on; tcp_nopush on;\n\
             client_body_temp_path {at}/body; proxy_temp_path {at}/proxy; fastcgi_temp_path {at}/fastcgi;\n\
             uwsgi_temp_path {at}/uwsgi; scgi_temp_path {at}/scgi; open_file_cache max=10;\n\
             ssl_certificate {at}/cert.pem; ssl_certificate_key {at}/key.pem; ssl_session_cache shared:s:10m; ssl_protocols TLSv1.3;\n\
             server {{ listen {address} ssl backlog=4096; listen {plain} backlog=4096; root {at}; }} }}\n"
        );
        let server = start_nginx("origin", nginx, 2, &rest, address, folder)?;
        Ok(Self { address, plain, authority: folder.join("cert.pem"), _server: server })
    }

    /// Returns the policy under which a run may reach the origin.
    pub(crate) fn policy(&self) -> String {
        let port = self.address.port();
        format!("[[egress.allow]]\nhost = \"{NAME}\"\nports = [{port}]\naddresses = [\"127.0.0.1\"]\n")
    }
}

/// How the load generator reaches the origin.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Plane {
    /// Starts with TLS.
    Tls,
    /// Asks for a tunnel by `CONNECT`, then starts TLS.
    Tunnel,
    /// Plain HTTP, with the whole URL in each request.
    Plain,
}

/// A way to the origin.
pub(crate) struct Way {
    pub(crate) name: &'static str,
    pub(crate) role: Role,
    /// The address the load generator dials.
    pub(crate) dial: SocketAddr,
    pub(crate) plane: Plane,
    /// The authority the load generator must trust, if it is not the origin's own certificate.
    pub(crate) authority: Option<PathBuf>,
    /// The proxy, unless the way is direct.
    pub(crate) server: Option<Server>,
}

/// Starts every way that is available here: the product, its peers, and the direct one.
pub(crate) fn all(
    bench: &Bench,
    origin: &Origin,
    nginx: &Path,
    skipped: &mut Vec<String>,
) -> Result<Vec<Way>> {
    let mut ways = vec![sidecar(bench, "splice", &origin.policy(), Plane::Tunnel)?];
    if Path::new(STREAM_MODULE).exists() {
        ways.push(nginx_preread(bench, origin, nginx)?);
    } else {
        skipped.push(format!("nginx as a proxy: there is no {STREAM_MODULE}"));
    }
    match machine::find("haproxy") {
        Some(haproxy) => ways.push(haproxy_sni(bench, origin, &haproxy)?),
        None => skipped.push("haproxy is not installed".into()),
    }
    ways.push(Way {
        name: "direct",
        role: Role::Reference,
        dial: origin.address,
        plane: Plane::Tls,
        authority: None,
        server: None,
    });
    Ok(ways)
}

/// Starts `lockgate sidecar` as an explicit proxy, with the audit on.
pub(crate) fn sidecar(bench: &Bench, what: &str, policy: &str, plane: Plane) -> Result<Way> {
    let folder = &bench.folder;
    let (file, audit) = (folder.join(format!("{what}.toml")), folder.join(format!("{what}-audit.jsonl")));
    fs::write(&file, policy)?;
    let dial = free_port()?;
    let (file, audit) = (file.to_string_lossy(), audit.to_string_lossy());
    let args = ["sidecar", "--policy", &file, "--forward", &dial.to_string(), "--audit", &audit];
    let server =
        Server::start(&format!("{what}-sidecar"), &bench.lockgate, &args.map(str::to_owned), folder)?
            .await_port(dial, folder)?;
    Ok(Way { name: "lockgate", role: Role::Ours, dial, plane, authority: None, server: Some(server) })
}

fn nginx_preread(bench: &Bench, origin: &Origin, nginx: &Path) -> Result<Way> {
    let dial = free_port()?;
    let rest = format!(
        "stream {{ map $ssl_preread_server_name $to {{ {NAME} origin; default nowhere; }}\n\
         upstream origin {{ server {}; }} upstream nowhere {{ server 127.0.0.1:1; }}\n\
         server {{ listen {dial} backlog=4096; ssl_preread on; proxy_pass $to; tcp_nodelay on; }} }}\n",
        origin.address
    );
    let server = start_nginx("preread", nginx, 1, &rest, dial, &bench.folder)?;
    Ok(Way {
        name: "nginx",
        role: Role::Peer,
        dial,
        plane: Plane::Tls,
        authority: None,
        server: Some(server),
    })
}

fn haproxy_sni(bench: &Bench, origin: &Origin, haproxy: &Path) -> Result<Way> {
    let dial = free_port()?;
    let config = format!(
        "global\n  nbthread 1\n  maxconn 4096\ndefaults\n  mode tcp\n  timeout connect 5s\n  timeout client 60s\n  timeout server 60s\n\
         frontend in\n  bind {dial} backlog 4096\n  tcp-request inspect-delay 5s\n  tcp-request content accept if {{ req.ssl_hello_type 1 }}\n\
         \x20 use_backend origin if {{ req.ssl_sni -i {NAME} }}\nbackend origin\n  server one {}\n",
        origin.address
    );
    let path = bench.folder.join("haproxy.cfg");
    fs::write(&path, config)?;
    let args = ["-db".to_owned(), "-f".into(), path.to_string_lossy().into_owned()];
    let server = Server::start("haproxy", haproxy, &args, &bench.folder)?.await_port(dial, &bench.folder)?;
    Ok(Way {
        name: "haproxy",
        role: Role::Peer,
        dial,
        plane: Plane::Tls,
        authority: None,
        server: Some(server),
    })
}

pub(super) fn start_nginx(
    name: &str,
    nginx: &Path,
    workers: u32,
    rest: &str,
    address: SocketAddr,
    folder: &Path,
) -> Result<Server> {
    let module = if Path::new(STREAM_MODULE).exists() {
        format!("load_module {STREAM_MODULE};\n")
    } else {
        String::new()
    };
    // Started by root, nginx would run its worker as an account this machine may lack; without root it ignores the line.
    let config = format!(
        "{module}user root;\ndaemon off;\nworker_processes {workers};\npid {at}/{name}.pid;\nerror_log stderr error;\n\
         events {{ worker_connections 4096; }}\n{rest}",
        at = folder.display()
    );
    let path = folder.join(format!("{name}.conf"));
    fs::write(&path, config).with_context(|| format!("failed to write {}", path.display()))?;
    let args = ["-e".to_owned(), "stderr".into(), "-c".into(), path.to_string_lossy().into_owned()];
    Server::start(name, nginx, &args, folder)?.await_port(address, folder)
}
