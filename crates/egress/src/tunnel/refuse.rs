//! Refuses a connection at once: with a TLS alert, or with a reset.

use std::io;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::exchange::{Exchange, Pinned};
use crate::http::Buffered;

/// How a connection is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RefuseBy {
    /// A TLS alert, for an agent that has sent a ClientHello.
    TlsAlert,
    /// A TCP reset.
    Reset,
}

/// A fatal TLS alert, `access_denied` (RFC 8446 §6.2).
const ACCESS_DENIED: [u8; 7] = [0x15, 3, 3, 0, 2, 2, 49];

/// Refuses a connection at once (E20). The denial is in the audit by then.
pub(super) async fn refuse(mut agent: Buffered<TcpStream>, by: RefuseBy) -> io::Result<()> {
    match by {
        RefuseBy::TlsAlert => {
            agent.reader.write_all(&ACCESS_DENIED).await?;
            agent.reader.shutdown().await
        }
        // Dropping the stream after this resets the connection.
        RefuseBy::Reset => agent.reader.set_zero_linger(),
    }
}

/// Records that the destination could not be reached, and resets the connection.
pub(super) async fn unreachable(
    mut exchange: Exchange<Pinned>,
    agent: Buffered<TcpStream>,
    error: &io::Error,
) -> io::Result<()> {
    exchange.record().upstream_failed(error);
    agent.reader.set_zero_linger()
}
