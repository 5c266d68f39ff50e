//! A relay before a registry: it keeps the head of every request, and spoils answers as a test wants. It serves one request per connection,
//! as the product sends them.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::message::{Head, PATIENCE};

/// The interval for checking whether something is over.
pub(crate) const TICK: Duration = Duration::from_millis(5);

/// What the relay does to the answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    /// The answer passes.
    Pass,
    /// The connection is closed after this many octets.
    Cut(usize),
    /// Nothing more comes after this many octets, for as long as the relay lives.
    Stall(usize),
    /// There is a pause after this many octets.
    Pause(usize, Duration),
}

/// A relay that is running.
#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
    seen: Arc<Seen>,
}

/// The shared state of all connections.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    heads: Mutex<Vec<Head>>,
    paths: Mutex<HashMap<String, usize>>,
    over: AtomicBool,
}

impl Relay {
    /// Starts a relay to a registry. `deed` receives each request and the number of earlier ones for the same path.
    ///
    /// # Panics
    /// When no port is free.
    pub fn start(to: SocketAddr, deed: impl Fn(&Head, usize) -> Deed + Send + Sync + 'static) -> Self {
        let seen = Arc::new(Seen::default());
        let own = Arc::clone(&seen);
        let address = seen.serve(move |client| {
            let _ = relay(client, to, &own, &deed);
        });
        Self { address, seen }
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

    /// The number of requests for a blob.
    #[must_use]
    pub fn asked_for(&self, digest: &str) -> usize {
        self.heads().iter().filter(|head| head.path().ends_with(&format!("/blobs/{digest}"))).count()
    }

    /// Waits until a request for a blob has come.
    ///
    /// # Panics
    /// When none comes.
    pub fn wait_for(&self, digest: &str) {
        let begun = Instant::now();
        while self.asked_for(digest) == 0 {
            assert!(begun.elapsed() < PATIENCE, "nobody asked for {digest}");
            thread::sleep(TICK);
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.seen.end();
    }
}

impl Seen {
    /// Listens on a port of this machine, and serves each connection in a new thread until it is over.
    pub(crate) fn serve(self: &Arc<Self>, each: impl Fn(TcpStream) + Send + Sync + 'static) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.set_nonblocking(true).expect("a listener that does not wait");
        let address = listener.local_addr().expect("its address");
        let (own, each) = (Arc::clone(self), Arc::new(each));
        thread::spawn(move || {
            while !own.is_over() {
                let Ok((stream, _)) = listener.accept() else {
                    thread::sleep(TICK);
                    continue;
                };
                let _ = stream.set_nonblocking(false);
                let _ = stream.set_read_timeout(Some(PATIENCE));
                let _ = stream.set_write_timeout(Some(PATIENCE));
                let each = Arc::clone(&each);
                thread::spawn(move || each(stream));
            }
        });
        address
    }

    /// Keeps a head, and returns the number of earlier ones for the same path.
    pub(crate) fn keep(&self, head: &Head) -> usize {
        self.heads.lock().expect("nobody panics with it").push(head.clone());
        let mut paths = self.paths.lock().expect("nobody panics with it");
        let count = paths.entry(head.path().to_owned()).or_default();
        *count += 1;
        *count - 1
    }

    pub(crate) fn heads(&self) -> Vec<Head> {
        self.heads.lock().expect("nobody panics with it").clone()
    }

    pub(crate) fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }
}

fn relay(
    mut client: TcpStream,
    to: SocketAddr,
    seen: &Seen,
    deed: &impl Fn(&Head, usize) -> Deed,
) -> std::io::Result<()> {
    let head = Head::read(&mut client).ok_or(std::io::ErrorKind::UnexpectedEof)?;
    let deed = deed(&head, seen.keep(&head));
    let mut server = TcpStream::connect(to)?;
    server.set_read_timeout(Some(PATIENCE))?;
    server.write_all(&head.closing())?;
    let most = match deed {
        Deed::Pass => usize::MAX,
        Deed::Cut(octets) | Deed::Stall(octets) | Deed::Pause(octets, _) => octets,
    };
    copy(&mut server, &mut client, most)?;
    match deed {
        Deed::Pass | Deed::Cut(_) => {}
        Deed::Stall(_) => {
            let begun = Instant::now();
            while !seen.is_over() && begun.elapsed() < PATIENCE {
                thread::sleep(TICK);
            }
        }
        Deed::Pause(_, time) => {
            thread::sleep(time.min(PATIENCE));
            copy(&mut server, &mut client, usize::MAX)?;
        }
    }
    client.shutdown(Shutdown::Both)
}

fn copy(from: &mut TcpStream, to: &mut TcpStream, most: usize) -> std::io::Result<()> {
    let mut buffer = [0; 64 << 10];
    let mut left = most;
    while left > 0 {
        let room = buffer.len().min(left);
        let read = from.read(&mut buffer[..room])?;
        if read == 0 {
            break;
        }
        to.write_all(&buffer[..read])?;
        left -= read;
    }
    Ok(())
}
