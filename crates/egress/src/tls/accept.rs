//! Accepts one TLS handshake of the agent's.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

use crate::http::{AgentStream, Ahead, Buffered};

/// How long a handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// A connection whose TLS is terminated, by the HTTP version that ALPN agreed on.
pub(crate) enum Accepted {
    Version1(AgentStream),
    Version2(AgentStream),
}

/// Terminates the agent's TLS. `agent` holds its ClientHello, which has been read and judged already.
pub(crate) async fn accept(config: Arc<ServerConfig>, agent: Buffered<TcpStream>) -> io::Result<Accepted> {
    let stream = Ahead { ahead: agent.ahead, stream: agent.reader };
    let handshake = TlsAcceptor::from(config).accept(stream);
    let stream = tokio::time::timeout(HANDSHAKE, handshake).await;
    let stream = stream??;
    let version_2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    let stream = AgentStream::Tls(Box::new(stream));
    Ok(if version_2 { Accepted::Version2(stream) } else { Accepted::Version1(stream) })
}
