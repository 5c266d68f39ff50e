//! Connections to the outside. The one place that dials, and it dials pinned addresses only.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use policy::{Host, Scheme};
use rustls::pki_types::{CertificateDer, ServerName, pem::PemObject};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::exchange::{Exchange, Pinned, PinnedAddr};

/// How long all attempts to connect may take together.
const CONNECT: Duration = Duration::from_secs(10);
/// How long one address may take while another is left.
const ATTEMPT: Duration = Duration::from_secs(3);
/// How many idle connections are kept, and for how long.
const MOST_IDLE: usize = 64;
const IDLE: Duration = Duration::from_secs(30);
/// The largest bundle of authorities that is read.
const LARGEST_BUNDLE: u64 = 8 << 20;

/// Opens a TCP connection to the first pinned address that answers.
pub(crate) async fn dial(exchange: &mut Exchange<Pinned>) -> io::Result<TcpStream> {
    let addresses = exchange.addresses().to_vec();
    let dialled = tokio::time::timeout(CONNECT, dial_each(&addresses)).await;
    let (stream, address) = dialled.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    exchange.reach(address);
    Ok(stream)
}

async fn dial_each(addresses: &[PinnedAddr]) -> io::Result<(TcpStream, PinnedAddr)> {
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for (index, address) in addresses.iter().enumerate() {
        let wait = if index + 1 == addresses.len() { CONNECT } else { ATTEMPT };
        #[expect(
            clippy::disallowed_methods,
            reason = "this is the one place that dials, and it dials pinned addresses"
        )]
        match tokio::time::timeout(wait, TcpStream::connect(address.socket_address())).await {
            Ok(Ok(stream)) => {
                stream.set_nodelay(true)?;
                return Ok((stream, *address));
            }
            Ok(Err(error)) => last = error,
            Err(_) => last = io::ErrorKind::TimedOut.into(),
        }
    }
    Err(last)
}

/// Which authorities vouch for an upstream: read at the first need, from a file that was opened before the sidecar was
/// shut in.
#[derive(Debug)]
pub(crate) struct Trust {
    bundle: RefCell<Option<File>>,
    config: OnceLock<Result<Arc<rustls::ClientConfig>, String>>,
}

impl Trust {
    pub(crate) fn from_bundle(bundle: Option<File>) -> Self {
        Self { bundle: RefCell::new(bundle), config: OnceLock::new() }
    }

    fn config(&self) -> io::Result<Arc<rustls::ClientConfig>> {
        self.config.get_or_init(|| self.build()).clone().map_err(io::Error::other)
    }

    fn build(&self) -> Result<Arc<rustls::ClientConfig>, String> {
        let mut roots = rustls::RootCertStore::empty();
        if let Some(bundle) = self.bundle.borrow_mut().take() {
            let mut pem = Vec::new();
            bundle
                .take(LARGEST_BUNDLE)
                .read_to_end(&mut pem)
                .map_err(|e| format!("read the authorities: {e}"))?;
            roots.add_parsable_certificates(CertificateDer::pem_slice_iter(&pem).flatten());
        }
        if roots.is_empty() {
            roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|e| e.to_string())?
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}

/// A connection that carries HTTP to an upstream.
pub(crate) enum Upstream {
    /// In the clear.
    Plain(TcpStream),
    /// Over TLS, the certificate verified for the granted name.
    Tls(Box<TlsStream<TcpStream>>),
}

impl Upstream {
    /// Opens a connection for requests. With `https` not one octet of a request is sent before the upstream's
    /// certificate was verified for the granted host.
    pub(crate) async fn open(
        exchange: &mut Exchange<Pinned>,
        scheme: Scheme,
        trust: &Trust,
    ) -> io::Result<Self> {
        let stream = dial(exchange).await?;
        if scheme == Scheme::Http {
            return Ok(Self::Plain(stream));
        }
        let name = match exchange.grant().host() {
            Host::Name(name) => ServerName::try_from(name.as_str().to_owned()).map_err(io::Error::other)?,
            Host::Address(address) => ServerName::from(*address),
        };
        let connector = TlsConnector::from(trust.config()?);
        let tls = tokio::time::timeout(CONNECT, connector.connect(name, stream)).await;
        Ok(Self::Tls(Box::new(tls.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??)))
    }

    fn pinned(&mut self) -> Pin<&mut (dyn Duplex + '_)> {
        match self {
            Self::Plain(stream) => Pin::new(stream),
            Self::Tls(stream) => Pin::new(stream),
        }
    }
}

/// What is read and written.
trait Duplex: AsyncRead + AsyncWrite + Unpin {}
impl<T: AsyncRead + AsyncWrite + Unpin> Duplex for T {}

impl AsyncRead for Upstream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.pinned().poll_read(cx, buf)
    }
}

impl AsyncWrite for Upstream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.pinned().poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.pinned().poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.pinned().poll_shutdown(cx)
    }
}

/// What an idle connection may be used for again: the same pinned address, scheme and name (C21).
type Key = (PinnedAddr, Scheme, Host);

/// Connections that wait for another request. They belong to one sidecar, and so to one run.
#[derive(Default)]
pub(crate) struct Idle(RefCell<HashMap<Key, Vec<(Instant, Upstream)>>>);

impl Idle {
    /// The most recently used connection for an exchange, if one is still fresh.
    pub(crate) fn take(&self, exchange: &mut Exchange<Pinned>, scheme: Scheme) -> Option<Upstream> {
        let mut kept = self.0.borrow_mut();
        for address in exchange.addresses().to_vec() {
            let key = (address, scheme, exchange.grant().host().clone());
            let Some(list) = kept.get_mut(&key) else { continue };
            while let Some((since, upstream)) = list.pop() {
                if since.elapsed() < IDLE {
                    exchange.reach(address);
                    return Some(upstream);
                }
            }
        }
        None
    }

    /// Keeps a connection whose last response was read to its end.
    pub(crate) fn keep(
        &self,
        exchange: &Exchange<Pinned>,
        scheme: Scheme,
        upstream: Upstream,
        reached: PinnedAddr,
    ) {
        let mut kept = self.0.borrow_mut();
        let count: usize = kept.values().map(Vec::len).sum();
        if count >= MOST_IDLE {
            kept.clear();
        }
        let key = (reached, scheme, exchange.grant().host().clone());
        kept.entry(key).or_default().push((Instant::now(), upstream));
    }
}

impl std::fmt::Debug for Idle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Idle({})", self.0.borrow().values().map(Vec::len).sum::<usize>())
    }
}
