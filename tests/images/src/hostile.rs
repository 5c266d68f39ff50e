//! A server that does what no real registry does: it answers each request as a script says, octet by octet if need be, in the clear or over
//! TLS, and keeps the requests.

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

/// The length of an endless answer: far beyond every limit, and a few times what sockets buffer unread.
const WITHOUT_END: u64 = 256 << 20;
/// How long the rest of a connection may take.
const REST: Duration = Duration::from_secs(5);

/// The answer to one request.
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
    /// Returns an answer with a body and its length.
    #[must_use]
    pub fn new(status: u16, fields: &[(&str, &str)], body: &[u8]) -> Self {
        let mut all = fields.to_vec();
        let length = body.len().to_string();
        all.push(("Content-Length", &length));
        let mut reply = Self::head(status, &all);
        reply.octets.extend_from_slice(body);
        reply
    }

    /// Returns a head alone; [`Reply::then`] and [`Reply::endlessly`] add to it.
    #[must_use]
    pub fn head(status: u16, fields: &[(&str, &str)]) -> Self {
        let mut text = format!("HTTP/1.1 {status} Status\r\nConnection: close\r\n");
        for (name, value) in fields {
            text += &format!("{name}: {value}\r\n");
        }
        Self::raw((text + "\r\n").as_bytes())
    }

    /// Returns these octets, whatever they mean.
    #[must_use]
    pub fn raw(octets: &[u8]) -> Self {
        Self { octets: octets.to_vec(), endless: None }
    }

    /// Appends these octets.
    #[must_use]
    pub fn then(mut self, octets: &[u8]) -> Self {
        self.octets.extend_from_slice(octets);
        self
    }

    /// Appends these octets over and over, as long as the client reads.
    #[must_use]
    pub fn endlessly(mut self, octets: &[u8]) -> Self {
        let times = (64 << 10) / octets.len().max(1) + 1;
        self.endless = Some(octets.repeat(times));
        self
    }

    /// Returns 200 with this body.
    #[must_use]
    pub fn ok(body: &[u8]) -> Self {
        Self::new(200, &[], body)
    }

    /// Returns a redirect to `location`.
    #[must_use]
    pub fn redirect(location: &str) -> Self {
        Self::new(307, &[("Location", location)], b"")
    }

    /// Returns the answer of an honest registry that has one image.
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
    /// Starts a server in the clear. The script receives each request and the number of earlier ones for the same path.
    ///
    /// # Panics
    /// When no port is free.
    pub fn start(script: impl Fn(&Head, usize) -> Reply + Send + Sync + 'static) -> Self {
        Self::begin(move |stream, seen, told| converse(stream, seen, told, &script))
    }

    /// Starts a server over TLS.
    ///
    /// # Panics
    /// When no port is free.
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
            // Closing with octets unread would reset the connection and lose what was sent.
            let _ = stream.shutdown(Shutdown::Write);
            let _ = stream.set_read_timeout(Some(Duration::from_millis(200)));
            let begun = Instant::now();
            let mut rest = [0; 4096];
            while begun.elapsed() < REST && !own.is_over() && !matches!(stream.read(&mut rest), Ok(0)) {}
        });
        Self { address, seen, told }
    }

    /// The address it listens on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the heads of all requests until now.
    #[must_use]
    pub fn heads(&self) -> Vec<Head> {
        self.seen.heads()
    }

    /// The number of answer octets that were accepted, those in flight included.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.told.sent.load(Ordering::Relaxed)
    }

    /// The number of request octets received; over TLS, those after the handshake.
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

/// Counts the octets that are read.
struct Heard<'a, T>(&'a mut T, &'a Told);

impl<T: Read> Read for Heard<'_, T> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.0.read(buffer)?;
        self.1.heard.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}
