//! A server for what no real registry does: it answers each request as a script says, octet by octet if need be, in the clear or
//! over TLS, and keeps what it was asked.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustls::{ServerConnection, StreamOwned};

use crate::certificate::Certificate;
use crate::image::Image;
use crate::message::Head;
use crate::relay::Seen;

/// What "without end" means here: far beyond every bound, and a few times what sockets take unread.
const WITHOUT_END: u64 = 256 << 20;
/// How long the rest of a connection may take.
const REST: Duration = Duration::from_secs(5);

/// What is answered to one request.
#[derive(Clone, Debug)]
pub struct Reply {
    octets: Vec<u8>,
    endless: Option<Vec<u8>>,
}

/// A server that is running.
#[derive(Debug)]
pub struct Hostile {
    address: SocketAddr,
    seen: Arc<Seen>,
    told: Arc<Told>,
}

#[derive(Debug, Default)]
struct Told {
    sent: AtomicU64,
    heard: AtomicU64,
}

impl Reply {
    /// An answer with a body and its length.
    #[must_use]
    pub fn new(status: u16, fields: &[(&str, &str)], body: &[u8]) -> Self {
        let mut all = fields.to_vec();
        let length = body.len().to_string();
        all.push(("Content-Length", &length));
        let mut reply = Self::head(status, &all);
        reply.octets.extend_from_slice(body);
        reply
    }

    /// A head and nothing else: what belongs to it is added by [`Reply::then`] and [`Reply::endlessly`].
    #[must_use]
    pub fn head(status: u16, fields: &[(&str, &str)]) -> Self {
        let mut text = format!("HTTP/1.1 {status} Status\r\nConnection: close\r\n");
        for (name, value) in fields {
            text += &format!("{name}: {value}\r\n");
        }
        Self::raw((text + "\r\n").as_bytes())
    }

    /// These octets, whatever they mean.
    #[must_use]
    pub fn raw(octets: &[u8]) -> Self {
        Self { octets: octets.to_vec(), endless: None }
    }

    /// And these after it.
    #[must_use]
    pub fn then(mut self, octets: &[u8]) -> Self {
        self.octets.extend_from_slice(octets);
        self
    }

    /// And these over and over, for as long as somebody takes them.
    #[must_use]
    pub fn endlessly(mut self, octets: &[u8]) -> Self {
        let times = (64 << 10) / octets.len().max(1) + 1;
        self.endless = Some(octets.repeat(times));
        self
    }

    /// Everything is well, and this is it.
    #[must_use]
    pub fn ok(body: &[u8]) -> Self {
        Self::new(200, &[], body)
    }

    /// Go there.
    #[must_use]
    pub fn redirect(location: &str) -> Self {
        Self::new(307, &[("Location", location)], b"")
    }

    /// What an honest registry answers that has one image.
    #[must_use]
    pub fn honest(head: &Head, image: &Image) -> Self {
        if head.path().contains("/manifests/") {
            return Self::ok(&image.manifest.octets);
        }
        let found = image.blobs().find(|blob| head.path().ends_with(&blob.digest));
        found.map_or_else(|| Self::new(404, &[], b""), |blob| Self::ok(&blob.octets))
    }
}

impl Hostile {
    /// Starts one in the clear. The script is told of each request and of how many there were before it for the same path.
    ///
    /// # Panics
    /// When there is no port for it.
    pub fn start(script: impl Fn(&Head, usize) -> Reply + Send + Sync + 'static) -> Self {
        Self::begin(move |stream, seen, told| converse(stream, seen, told, &script))
    }

    /// Starts one that speaks TLS.
    ///
    /// # Panics
    /// When there is no port for it.
    pub fn start_tls(
        certificate: &Certificate,
        script: impl Fn(&Head, usize) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let config = certificate.config();
        Self::begin(move |stream, seen, told| {
            let connection = ServerConnection::new(Arc::clone(&config)).map_err(io::Error::other)?;
            converse(&mut StreamOwned::new(connection, stream), seen, told, &script)
        })
    }

    fn begin(each: impl Fn(&mut TcpStream, &Seen, &Told) -> io::Result<()> + Send + Sync + 'static) -> Self {
        let (seen, told) = (Arc::new(Seen::default()), Arc::new(Told::default()));
        let (own, telling) = (Arc::clone(&seen), Arc::clone(&told));
        let address = seen.serve(move |mut stream| {
            let _ = each(&mut stream, &own, &telling);
            // An end without unread octets is no reset, which would take with it what was sent.
            let _ = stream.shutdown(Shutdown::Write);
            let _ = stream.set_read_timeout(Some(Duration::from_millis(200)));
            let begun = Instant::now();
            let mut rest = [0; 4096];
            while begun.elapsed() < REST && !own.is_over() && !matches!(stream.read(&mut rest), Ok(0)) {}
        });
        Self { address, seen, told }
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it was asked until now.
    #[must_use]
    pub fn heads(&self) -> Vec<Head> {
        self.seen.heads()
    }

    /// How many octets of answers were taken from it, those in flight among them.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.told.sent.load(Ordering::Relaxed)
    }

    /// How many octets of requests it heard; over TLS, those after the handshake.
    #[must_use]
    pub fn heard(&self) -> u64 {
        self.told.heard.load(Ordering::Relaxed)
    }
}

impl Drop for Hostile {
    fn drop(&mut self) {
        self.seen.end();
    }
}

fn converse(
    mut stream: impl Read + Write,
    seen: &Seen,
    told: &Told,
    script: &impl Fn(&Head, usize) -> Reply,
) -> io::Result<()> {
    let head = Head::read(&mut Heard(&mut stream, told)).ok_or(io::ErrorKind::UnexpectedEof)?;
    let reply = script(&head, seen.keep(&head));
    for piece in reply.octets.chunks(64 << 10) {
        stream.write_all(piece)?;
        told.sent.fetch_add(piece.len() as u64, Ordering::Relaxed);
    }
    if let Some(piece) = reply.endless {
        while told.sent.load(Ordering::Relaxed) < WITHOUT_END && !seen.is_over() {
            stream.write_all(&piece)?;
            told.sent.fetch_add(piece.len() as u64, Ordering::Relaxed);
        }
    }
    stream.flush()
}

/// Counts what is read.
struct Heard<'a, T>(&'a mut T, &'a Told);

impl<T: Read> Read for Heard<'_, T> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.0.read(buffer)?;
        self.1.heard.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}
