//! Refusing a connection fast: a TLS alert where TLS was spoken, else a reset.

use std::io;

use policy::Denial;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::exchange::{Exchange, Pinned};
use crate::http::Buffered;

/// What the agent has spoken so far, which decides how it is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spoken {
    /// TLS: it understands an alert.
    Tls,
}

/// A fatal TLS alert, `access_denied` (RFC 8446 §6.2).
const ACCESS_DENIED: [u8; 7] = [0x15, 3, 3, 0, 2, 2, 49];

/// Refuses a connection at once (E20).
pub(super) async fn refuse(
    mut agent: Buffered<TcpStream>,
    _denial: &Denial,
    spoken: Option<Spoken>,
) -> io::Result<()> {
    if spoken == Some(Spoken::Tls) {
        agent.reader.write_all(&ACCESS_DENIED).await?;
        return agent.reader.shutdown().await;
    }
    agent.reader.set_zero_linger()?; // closing now resets
    Ok(())
}

pub(super) async fn unreachable(
    mut exchange: Exchange<Pinned>,
    agent: Buffered<TcpStream>,
    error: &io::Error,
) -> io::Result<()> {
    exchange.record().fail(&error.to_string());
    agent.reader.set_zero_linger()
}
