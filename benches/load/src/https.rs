//! Loads a server with HTTPS, or with plain HTTP through a proxy, for a fixed time: requests on kept connections, a new connection
//! for each request, one large body after another, or idle connections. It is one thread, so it never takes more than one processor
//! from what is measured.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use rustls::client::Resumption;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, HandshakeKind, RootCertStore};
use tokio::net::TcpStream;
use tokio::task::LocalSet;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::request::{self, CHUNK};
use crate::tally::Tally;

/// How long a request in progress may go on after the time is over.
const GRACE: Duration = Duration::from_secs(5);
/// How many failures end a worker.
const MOST_FAILURES: u64 = 20;
/// How many sessions are kept for resumption.
const SESSIONS: usize = 256;

/// What is loaded, and how.
#[derive(Args, Clone)]
pub(crate) struct Load {
    /// Where connections go: the origin, or a proxy. Without it the name is looked up, as any program would
    #[arg(long)]
    dial: Option<SocketAddr>,
    /// The origin's name and port
    #[arg(long)]
    origin: String,
    /// Asks the proxy at `--dial` for a tunnel first
    #[arg(long)]
    tunnel: bool,
    /// The only authority that is trusted
    #[arg(long, required_unless_present = "plain")]
    authority: Option<PathBuf>,
    /// Speaks HTTP without TLS, and names the whole URL as a proxy is asked, RFC 9112 §3.2.2
    #[arg(long, conflicts_with_all = ["authority", "tunnel", "resume"], requires = "dial")]
    plain: bool,
    /// What is asked for
    #[arg(long, default_value = "/1k")]
    path: String,
    /// When connections are made
    #[arg(long)]
    connections: Connections,
    /// Resumes TLS sessions
    #[arg(long)]
    resume: bool,
    /// Requests at one time
    #[arg(long, default_value_t = 8)]
    workers: usize,
    /// How long
    #[arg(long, default_value_t = 1.0)]
    pub(crate) seconds: f64,
    /// How long to stay after the last word, in seconds
    #[arg(long, default_value_t = 0.0)]
    pub(crate) linger: f64,
}

/// When connections are made.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Connections {
    /// One for each worker, used to the end
    Kept,
    /// One for each request
    New,
    /// One for each worker, used once and then held to the end
    Idle,
}

/// Loads the server for the given time.
pub(crate) fn run(load: &Load) -> Result<Option<Tally>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let client = Rc::new(Client::new(load)?);
    let local = LocalSet::new();
    let began = Instant::now();
    let until = began + Duration::from_secs_f64(load.seconds);
    let workers = async {
        let workers: Vec<_> =
            (0..load.workers).map(|_| tokio::task::spawn_local(work(Rc::clone(&client), until))).collect();
        let mut all = Tally::default();
        for worker in workers {
            all.add(worker.await?);
        }
        Ok::<_, anyhow::Error>(all)
    };
    let limit = Duration::from_secs_f64(load.seconds) + GRACE;
    let all = local.block_on(&runtime, async { tokio::time::timeout(limit, workers).await });
    let all = all.context("a request did not end in time")??;
    Ok(Some(all.close(began.elapsed())))
}

/// What all workers share.
struct Client {
    load: Load,
    dial: SocketAddr,
    /// The `Host` of each request, and its target: a path, or the whole URL.
    host: String,
    target: String,
    name: ServerName<'static>,
    tls: TlsConnector,
}

impl Client {
    fn new(load: &Load) -> Result<Self> {
        let (host, port) = load.origin.rsplit_once(':').context("--origin is NAME:PORT")?;
        let dial = match load.dial {
            Some(dial) => dial,
            None => crate::dns::look_up(host, port.parse().context("--origin is NAME:PORT")?)?,
        };
        let mut roots = RootCertStore::empty();
        if let Some(authority) = &load.authority {
            let certificates = CertificateDer::pem_file_iter(authority);
            for certificate in certificates.context("failed to read the authority")? {
                roots.add(certificate?)?;
            }
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.resumption =
            if load.resume { Resumption::in_memory_sessions(SESSIONS) } else { Resumption::disabled() };
        let name = ServerName::try_from(host.to_owned())?;
        let (host, target) = match load.plain {
            true => (load.origin.clone(), format!("http://{}{}", load.origin, load.path)),
            false => (host.to_owned(), load.path.clone()),
        };
        Ok(Self { load: load.clone(), dial, host, target, name, tls: TlsConnector::from(Arc::new(config)) })
    }

    async fn open(&self, tally: &mut Tally) -> Result<Opened> {
        let mut stream = TcpStream::connect(self.dial).await.context("failed to connect")?;
        stream.set_nodelay(true)?;
        if self.load.plain {
            return Ok(Opened::Plain(stream));
        }
        if self.load.tunnel {
            request::connect(&mut stream, &self.load.origin).await?;
        }
        let stream = self.tls.connect(self.name.clone(), stream).await.context("the TLS handshake failed")?;
        if stream.get_ref().1.handshake_kind() == Some(HandshakeKind::Resumed) {
            tally.resumed += 1;
        }
        Ok(Opened::Tls(Box::new(stream)))
    }
}

/// A connection on which requests can be sent.
enum Opened {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Opened {
    async fn ask(&mut self, client: &Client, buffer: &mut [u8]) -> Result<u64> {
        let (host, target) = (&client.host, &client.target);
        match self {
            Self::Plain(stream) => request::ask(stream, host, target, buffer).await,
            Self::Tls(stream) => request::ask(stream, host, target, buffer).await,
        }
    }
}

async fn work(client: Rc<Client>, until: Instant) -> Tally {
    let mut tally = Tally::default();
    let mut kept = None;
    let mut buffer = vec![0; CHUNK];
    while Instant::now() < until && tally.failed < MOST_FAILURES {
        let began = Instant::now();
        match one(&client, kept.take(), &mut buffer, &mut tally).await {
            Ok((octets, stream)) => {
                tally.succeed(octets, began);
                match client.load.connections {
                    Connections::Kept => kept = Some(stream),
                    Connections::New => {}
                    Connections::Idle => {
                        tokio::time::sleep_until(until.into()).await;
                        drop(stream);
                    }
                }
            }
            Err(error) => tally.fail(&error),
        }
    }
    tally
}

async fn one(
    client: &Client,
    kept: Option<Opened>,
    buffer: &mut [u8],
    tally: &mut Tally,
) -> Result<(u64, Opened)> {
    let mut stream = match kept {
        Some(stream) => stream,
        None => client.open(tally).await?,
    };
    let octets = stream.ask(client, buffer).await?;
    if octets == 0 {
        bail!("the answer is empty");
    }
    Ok((octets, stream))
}
