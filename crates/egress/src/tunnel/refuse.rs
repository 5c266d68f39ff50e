//! Refuses a connection at once: with a TLS alert, or with a reset.

use std::io;

use policy::Denial;
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

impl RefuseBy {
    /// How an agent that has sent a ClientHello is refused. It is told of a denial; what failed says nothing, as where there is no way.
    pub(super) fn after_hello(denial: &Denial) -> Self {
        if denial.guard.is_failure() { Self::Reset } else { Self::TlsAlert }
    }
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

#[cfg(test)]
mod tests {
    use policy::Guard;

    use super::*;

    #[test]
    fn a_name_that_does_not_resolve_is_not_told_as_a_denial() {
        let by = |guard| RefuseBy::after_hello(&Denial::new(guard, "why"));
        assert_eq!((by(Guard::NoAddress), by(Guard::Address)), (RefuseBy::Reset, RefuseBy::TlsAlert));
    }
}
