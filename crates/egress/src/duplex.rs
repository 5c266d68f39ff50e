//! Implements [`AsyncRead`] and [`AsyncWrite`] for enums over stream types, by delegation to the variant. Vectored writes are passed on,
//! as the records of TLS need them.

use tokio::io::{AsyncRead, AsyncWrite};

/// A stream that is read and written.
pub(crate) trait Duplex: AsyncRead + AsyncWrite + Unpin {}
impl<T: AsyncRead + AsyncWrite + Unpin> Duplex for T {}

/// Implements both traits for a type that has `fn pinned(&mut self) -> Pin<&mut (dyn Duplex + '_)>`.
macro_rules! duplex {
    ($kind:ty) => {
        impl tokio::io::AsyncRead for $kind {
            fn poll_read(
                mut self: std::pin::Pin<&mut Self>,
                cx: &mut std::task::Context<'_>,
                buf: &mut tokio::io::ReadBuf<'_>,
            ) -> std::task::Poll<std::io::Result<()>> {
                self.pinned().poll_read(cx, buf)
            }
        }

        impl tokio::io::AsyncWrite for $kind {
            fn poll_write(
                mut self: std::pin::Pin<&mut Self>,
                cx: &mut std::task::Context<'_>,
                buf: &[u8],
            ) -> std::task::Poll<std::io::Result<usize>> {
                self.pinned().poll_write(cx, buf)
            }

            fn poll_write_vectored(
                mut self: std::pin::Pin<&mut Self>,
                cx: &mut std::task::Context<'_>,
                bufs: &[std::io::IoSlice<'_>],
            ) -> std::task::Poll<std::io::Result<usize>> {
                self.pinned().poll_write_vectored(cx, bufs)
            }

            // All variants do.
            fn is_write_vectored(&self) -> bool {
                true
            }

            fn poll_flush(
                mut self: std::pin::Pin<&mut Self>,
                cx: &mut std::task::Context<'_>,
            ) -> std::task::Poll<std::io::Result<()>> {
                self.pinned().poll_flush(cx)
            }

            fn poll_shutdown(
                mut self: std::pin::Pin<&mut Self>,
                cx: &mut std::task::Context<'_>,
            ) -> std::task::Poll<std::io::Result<()>> {
                self.pinned().poll_shutdown(cx)
            }
        }
    };
}

pub(crate) use duplex;
