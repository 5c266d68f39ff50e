//! The server's side of one handshake.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

use crate::http::{AgentStream, Ahead, Buffered};

/// How long a handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// A connection that was opened, and the version of HTTP that was agreed on.
pub(crate) enum Accepted {
    Version1(AgentStream),
    Version2(AgentStream),
}

/// Ends the agent's TLS here. `agent` holds its ClientHello, which has been read and judged already.
pub(crate) async fn accept(config: Arc<ServerConfig>, agent: Buffered<TcpStream>) -> io::Result<Accepted> {
    let stream = Ahead { ahead: agent.ahead, stream: agent.reader };
    let handshake = TlsAcceptor::from(config).accept(stream);
    let stream = tokio::time::timeout(HANDSHAKE, handshake).await;
    let stream = stream.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    let version_2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    let stream = AgentStream::Tls(Box::new(stream));
    Ok(if version_2 { Accepted::Version2(stream) } else { Accepted::Version1(stream) })
}
