//! The one place that dials, and it dials pinned addresses only.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpStream;

use crate::exchange::{Exchange, PinnedAddr, Reach};

/// How long all attempts to connect may take together.
pub(super) const CONNECT: Duration = Duration::from_secs(10);
/// How long one address may take while another is left.
const ATTEMPT: Duration = Duration::from_secs(3);

/// Opens a TCP connection to the first pinned address that answers.
pub(crate) async fn dial<S: Reach>(exchange: &mut Exchange<S>) -> io::Result<TcpStream> {
    let addresses = exchange.addresses().to_vec();
    let dialled = tokio::time::timeout(CONNECT, dial_each(&addresses)).await;
    let (stream, address) = dialled.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    exchange.reach(address);
    Ok(stream)
}

/// Opens a connection to the platform, at the address that whoever configured the sidecar gave.
pub(crate) async fn dial_platform(address: SocketAddr) -> io::Result<TcpStream> {
    #[expect(clippy::disallowed_methods, reason = "the platform is no destination of the agent's")]
    let dialled = tokio::time::timeout(CONNECT, TcpStream::connect(address)).await;
    dialled.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
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
