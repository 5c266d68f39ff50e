//! A proxy as in offices: it opens tunnels by `CONNECT` for authenticated clients, and keeps the head of every request.
//! Every name leads to this machine, at the requested port.

use std::io::{self, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread;

use data_encoding::BASE64;

use crate::message::Head;
use crate::relay::Seen;

/// A proxy that is running.
#[derive(Debug)]
pub struct ForwardProxy {
    address: SocketAddr,
    seen: Arc<Seen>,
}

impl ForwardProxy {
    /// Starts a proxy that requires this user and password.
    ///
    /// # Panics
    /// When no port is free.
    #[must_use]
    pub fn start(user: &str, password: &str) -> Self {
        let wanted = format!("Basic {}", BASE64.encode(format!("{user}:{password}").as_bytes()));
        let seen = Arc::new(Seen::default());
        let own = Arc::clone(&seen);
        let address = seen.serve(move |client| {
            let _ = tunnel(client, &own, &wanted);
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
}

impl Drop for ForwardProxy {
    fn drop(&mut self) {
        self.seen.end();
    }
}

fn tunnel(mut client: TcpStream, seen: &Seen, wanted: &str) -> io::Result<()> {
    let Some(head) = Head::read(&mut client) else { return Ok(()) };
    seen.keep(&head);
    if head.field("proxy-authorization") != Some(wanted) {
        return client.write_all(b"HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n\r\n");
    }
    let port = head.target().rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
    let server = TcpStream::connect((Ipv4Addr::LOCALHOST, port.ok_or(io::ErrorKind::InvalidInput)?))?;
    client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n")?;
    let (mut from_client, mut to_server) = (client.try_clone()?, server.try_clone()?);
    let there = thread::spawn(move || {
        let copied = io::copy(&mut from_client, &mut to_server);
        let _ = to_server.shutdown(Shutdown::Write);
        copied
    });
    let (mut server, mut client) = (server, client);
    io::copy(&mut server, &mut client)?;
    client.shutdown(Shutdown::Both)?;
    there.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into())).map(drop)
}
