//! The agent's side of a connection that carries requests: in the clear, over TLS that we terminate, or on a Unix socket.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, ReadHalf, WriteHalf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::server::TlsStream;

use crate::duplex::{Duplex, duplex};

/// A connection of the agent's.
pub(crate) enum AgentStream {
    Tcp(TcpStream),
    Tls(Box<TlsStream<Ahead>>),
    Unix(UnixStream),
}

/// Its halves.
pub(crate) type AgentReader = ReadHalf<AgentStream>;
pub(crate) type AgentWriter = WriteHalf<AgentStream>;

/// A connection whose first octets were read before it was clear what it carries.
pub(crate) struct Ahead {
    pub(crate) ahead: BytesMut,
    pub(crate) stream: TcpStream,
}

impl AgentStream {
    fn pinned(&mut self) -> Pin<&mut (dyn Duplex + '_)> {
        match self {
            Self::Tcp(stream) => Pin::new(stream),
            Self::Tls(stream) => Pin::new(stream),
            Self::Unix(stream) => Pin::new(stream),
        }
    }
}

duplex!(AgentStream);

impl AsyncRead for Ahead {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.ahead.is_empty() {
            return Pin::new(&mut self.stream).poll_read(cx, buf);
        }
        let take = self.ahead.len().min(buf.remaining());
        buf.put_slice(&self.ahead[..take]);
        self.ahead.advance(take);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Ahead {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
