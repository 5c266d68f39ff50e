//! A connection to an upstream that carries requests.

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::client::TlsStream;

use super::dial::Dialled;
use crate::duplex::{Duplex, duplex};
use crate::http::{Severable, severed};

/// A connection that carries HTTP to an upstream.
pub(crate) enum Upstream {
    /// In the clear.
    Plain(Dialled),
    /// Over TLS, the certificate verified for the granted name.
    Tls(Box<TlsStream<Dialled>>),
}

impl Upstream {
    /// Whether the upstream chose HTTP/2.
    pub(crate) fn chose_version_2(&self) -> bool {
        match self {
            Self::Plain(_) => false,
            Self::Tls(stream) => stream.get_ref().1.alpn_protocol() == Some(b"h2"),
        }
    }

    /// Lets the kernel give the connection up when the peer takes nothing for so long.
    pub(crate) fn give_up_after(&self, stalled: Duration) -> io::Result<()> {
        match self {
            Self::Plain(stream) => stream.give_up_after(stalled),
            Self::Tls(stream) => stream.get_ref().0.give_up_after(stalled),
        }
    }

    /// Splits it into the halves of a connection of HTTP/1.
    pub(crate) fn split(self) -> (UpstreamReader, UpstreamWriter) {
        let shared = Rc::new(RefCell::new(self));
        (UpstreamReader(Rc::clone(&shared)), UpstreamWriter { shared, is_severed: false })
    }

    fn pinned(&mut self) -> Pin<&mut (dyn Duplex + '_)> {
        match self {
            Self::Plain(stream) => Pin::new(stream),
            Self::Tls(stream) => Pin::new(stream),
        }
    }
}

duplex!(Upstream);

/// The halves of an HTTP/1 connection.
pub(crate) struct UpstreamReader(Rc<RefCell<Upstream>>);
pub(crate) struct UpstreamWriter {
    shared: Rc<RefCell<Upstream>>,
    /// Whether a write was cut off, so that nothing more may be written.
    is_severed: bool,
}

impl UpstreamWriter {
    /// As [`Upstream::give_up_after`].
    pub(crate) fn give_up_after(&self, stalled: Duration) -> io::Result<()> {
        self.shared.borrow().give_up_after(stalled)
    }

    fn write<T>(&self, write: impl FnOnce(Pin<&mut Upstream>) -> Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        match self.is_severed {
            true => Poll::Ready(Err(severed())),
            false => write(Pin::new(&mut *self.shared.borrow_mut())),
        }
    }
}

impl AsyncRead for UpstreamReader {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.borrow_mut()).poll_read(cx, buf)
    }
}

impl Severable for UpstreamWriter {
    fn sever(&mut self) {
        self.is_severed = true;
    }
}

impl AsyncWrite for UpstreamWriter {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.write(|upstream| upstream.poll_write(cx, buf))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.write(|upstream| upstream.poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        self.shared.borrow().is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.write(|upstream| upstream.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.write(|upstream| upstream.poll_shutdown(cx))
    }
}
