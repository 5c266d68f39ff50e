//! `hudsucker`: the library of that name as a proxy with one worker, a peer of the product in `cargo xtask bench`.
//!
//! It is an explicit proxy. It terminates TLS with an authority made at the start. Its connections to origins use TLS, are
//! verified, and stay open for later requests, as the library's own client does. Each request gets a credential. Answers are not
//! masked: the library does less than the product here, which matters when reading a ratio.

use std::convert::Infallible;
use std::fs;
use std::future::{Ready, ready};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::task::{Context as Waker, Poll};

use anyhow::{Context, Result};
use clap::Parser;
use hudsucker::certificate_authority::RcgenAuthority;
use hudsucker::hyper::header::{AUTHORIZATION, HeaderValue};
use hudsucker::hyper::{Method, Request};
use hudsucker::hyper_util::client::legacy::connect::HttpConnector;
use hudsucker::hyper_util::client::legacy::connect::dns::Name;
use hudsucker::rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use hudsucker::rustls::crypto::aws_lc_rs::default_provider;
use hudsucker::rustls::pki_types::CertificateDer;
use hudsucker::rustls::pki_types::pem::PemObject;
use hudsucker::rustls::{ClientConfig, RootCertStore};
use hudsucker::{Body, HttpContext, HttpHandler, Proxy, RequestOrResponse};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use tokio::net::{TcpListener, TcpSocket};
use tower_service::Service;

/// Connections that wait to be accepted: as many as with the other peers.
const BACKLOG: u32 = 4096;
/// How many certificates are cached.
const CERTIFICATES: u64 = 1000;

#[derive(Parser)]
#[command(name = "hudsucker", version, about = "The hudsucker library as a proxy, for benchmarks.")]
struct Options {
    /// Where it listens
    #[arg(long)]
    listen: SocketAddr,
    /// The address that every name leads to
    #[arg(long)]
    address: IpAddr,
    /// The only authority an origin's certificate may come from
    #[arg(long, value_name = "FILE")]
    authority: PathBuf,
    /// Where the certificate of its own authority is written
    #[arg(long, value_name = "FILE")]
    ca: PathBuf,
    /// The secret in the `authorization` header of each request; without it requests stay as they are
    #[arg(long, value_name = "FILE")]
    secret: Option<PathBuf>,
}

fn main() -> Result<()> {
    let options = Options::parse();
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(serve(&options))
}

async fn serve(options: &Options) -> Result<()> {
    let authority = authority(&options.ca)?;
    let (listener, connector) = (listen(options.listen)?, connector(options)?);
    let listens = Proxy::builder().with_listener(listener).with_ca(authority);
    let proxy = listens.with_http_connector(connector).with_http_handler(Injection::new(options)?).build()?;
    Ok(proxy.start().await?)
}

/// The credential that is put into each request.
#[derive(Clone)]
struct Injection(Option<HeaderValue>);

impl Injection {
    fn new(options: &Options) -> Result<Self> {
        let Some(file) = &options.secret else { return Ok(Self(None)) };
        let secret = fs::read_to_string(file).context("failed to read the secret")?;
        let value = HeaderValue::try_from(format!("Bearer {}", secret.trim_end()));
        Ok(Self(Some(value.context("failed to make a header of the secret")?)))
    }
}

impl HttpHandler for Injection {
    async fn handle_request(&mut self, _: &HttpContext, mut request: Request<Body>) -> RequestOrResponse {
        if let Some(value) = &self.0
            && request.method() != Method::CONNECT
        {
            request.headers_mut().insert(AUTHORIZATION, value.clone());
        }
        request.into()
    }
}

/// Makes an authority that lasts as long as this process, and writes its certificate.
fn authority(written: &Path) -> Result<RcgenAuthority> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.distinguished_name.push(DnType::CommonName, "hudsucker");
    let certificate = params.self_signed(&key)?;
    fs::write(written, certificate.pem()).context("failed to write the authority")?;
    Ok(RcgenAuthority::new(Issuer::new(params, key), CERTIFICATES, default_provider()))
}

/// Listens. Linux passes `TCP_NODELAY` on to accepted sockets, tcp(7); the library sets it nowhere.
fn listen(at: SocketAddr) -> Result<TcpListener> {
    let socket = if at.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_nodelay(true)?;
    socket.set_reuseaddr(true)?;
    socket.bind(at).with_context(|| format!("failed to listen at {at}"))?;
    Ok(socket.listen(BACKLOG)?)
}

/// Returns the library's own connector, but with the trusted authority, and without name lookups.
fn connector(options: &Options) -> Result<HttpsConnector<HttpConnector<Fixed>>> {
    let mut roots = RootCertStore::empty();
    let certificates = CertificateDer::pem_file_iter(&options.authority);
    for certificate in certificates.context("failed to read the authority")? {
        roots.add(certificate?)?;
    }
    let tls = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let mut tcp = HttpConnector::new_with_resolver(Fixed(options.address));
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    Ok(HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1().wrap_connector(tcp))
}

/// A resolver that answers every name with one address.
#[derive(Clone)]
struct Fixed(IpAddr);

impl Service<Name> for Fixed {
    type Response = std::option::IntoIter<SocketAddr>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Waker<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Name) -> Self::Future {
        // The connector sets the request's port.
        ready(Ok(Some(SocketAddr::new(self.0, 0)).into_iter()))
    }
}
