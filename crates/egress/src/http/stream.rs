//! The agent's side of a connection that carries requests: in the clear, over TLS that is terminated here, on a Unix socket, or
//! in memory, for a request that the sidecar makes of something else.

use std::cell::{Cell, RefCell};
use std::io::{self, IoSlice};
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::{Buf, BytesMut};
use rustix::net::sockopt::set_socket_linger;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, DuplexStream, Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::server::TlsStream;

use super::severable::{Severable, severed};
use crate::duplex::{Duplex, duplex};

/// A connection from the agent.
pub(crate) enum AgentStream {
    Tcp(TcpStream),
    Tls(Box<TlsStream<Ahead>>),
    Unix(UnixStream),
    Memory(DuplexStream),
}

/// The halves of an [`AgentStream`]. Neither holds its borrow across an await.
pub(crate) struct AgentReader(Rc<RefCell<AgentStream>>);
pub(crate) struct AgentWriter {
    stream: Rc<RefCell<AgentStream>>,
    /// Whether some of the request's body is still to come: its answer then says that the connection ends.
    body_comes: Rc<Cell<bool>>,
    /// Whether a write was cut off, so that nothing more may be written.
    is_severed: bool,
}

/// A connection whose first octets were read before it was clear what it carries.
pub(crate) struct Ahead {
    pub(crate) ahead: BytesMut,
    pub(crate) stream: TcpStream,
}

impl AgentStream {
    pub(crate) fn split(self) -> (AgentReader, AgentWriter) {
        let shared = Rc::new(RefCell::new(self));
        let writer = AgentWriter { stream: Rc::clone(&shared), body_comes: Rc::default(), is_severed: false };
        (AgentReader(shared), writer)
    }

    /// Whether the agent has shut its end, even if octets before that are unread.
    fn has_hung_up(&self) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        let ready = match self {
            Self::Tcp(stream) => pin!(stream.ready(Interest::READABLE)).poll(&mut cx),
            Self::Tls(stream) => pin!(stream.get_ref().0.stream.ready(Interest::READABLE)).poll(&mut cx),
            Self::Unix(stream) => pin!(stream.ready(Interest::READABLE)).poll(&mut cx),
            // Its other end is read for as long as it is served.
            Self::Memory(_) => return false,
        };
        matches!(ready, Poll::Ready(Ok(ready)) if ready.is_read_closed())
    }

    /// Returns the TCP connection below it, if there is one.
    fn tcp(&self) -> Option<&TcpStream> {
        match self {
            Self::Tcp(stream) => Some(stream),
            Self::Tls(stream) => Some(&stream.get_ref().0.stream),
            Self::Unix(_) | Self::Memory(_) => None,
        }
    }

    fn pinned(&mut self) -> Pin<&mut (dyn Duplex + '_)> {
        match self {
            Self::Tcp(stream) => Pin::new(stream),
            Self::Tls(stream) => Pin::new(stream),
            Self::Unix(stream) => Pin::new(stream),
            Self::Memory(stream) => Pin::new(stream),
        }
    }
}

duplex!(AgentStream);

impl AgentReader {
    /// Joins two halves of one connection.
    pub(crate) fn unsplit(self, writer: AgentWriter) -> Option<AgentStream> {
        drop(writer);
        Rc::into_inner(self.0).map(RefCell::into_inner)
    }
}

impl AgentWriter {
    /// Whether the agent sends no more. Few clients that shut their end still wait for an answer.
    pub(crate) fn has_hung_up(&self) -> bool {
        self.stream.borrow().has_hung_up()
    }

    /// Returns the address that the connection was made to, if it came over TCP.
    pub(super) fn local_address(&self) -> Option<IpAddr> {
        self.stream.borrow().tcp()?.local_addr().ok().map(|address| address.ip())
    }

    fn refuse_severed(&self) -> io::Result<()> {
        if self.is_severed { Err(severed()) } else { Ok(()) }
    }

    /// Whether some of the request's body is still to come.
    pub(super) fn body_comes(&self) -> &Rc<Cell<bool>> {
        &self.body_comes
    }

    /// Has the connection reset if it is dropped before [`Self::end`]: for an answer that ends with its connection, which would seem
    /// whole however it broke off (RFC 9112 §8). A Unix socket knows no reset.
    pub(crate) fn reset_unless_ended(&self) -> io::Result<()> {
        self.stream.borrow().tcp().map_or(Ok(()), TcpStream::set_zero_linger)
    }

    /// Ends the connection's writing side.
    pub(crate) async fn end(&mut self) -> io::Result<()> {
        self.refuse_severed()?;
        if let Some(stream) = self.stream.borrow().tcp() {
            set_socket_linger(stream, None)?;
        }
        self.shutdown().await
    }
}

impl AsyncRead for AgentReader {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.borrow_mut()).poll_read(cx, buf)
    }
}

impl Severable for AgentWriter {
    fn sever(&mut self) {
        self.is_severed = true;
        // An agent that has gone needs no reset.
        let _ = self.reset_unless_ended();
    }
}

impl AsyncWrite for AgentWriter {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.refuse_severed()?;
        Pin::new(&mut *self.stream.borrow_mut()).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.refuse_severed()?;
        Pin::new(&mut *self.stream.borrow_mut()).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.borrow().is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.refuse_severed()?;
        Pin::new(&mut *self.stream.borrow_mut()).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.refuse_severed()?;
        Pin::new(&mut *self.stream.borrow_mut()).poll_shutdown(cx)
    }
}

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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn an_end_is_seen_behind_what_nobody_read() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let (reader, writer) = AgentStream::Unix(ours).split();
        theirs.write_all(&[b'x'; 10_000]).await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(!writer.has_hung_up());
        drop(theirs);
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(writer.has_hung_up());
        assert!(matches!(reader.unsplit(writer), Some(AgentStream::Unix(_))));
    }
}
