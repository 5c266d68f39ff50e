//! Copies incoming octets on their way to the reader: their number, and the first of them. It changes nothing, and ignores outgoing ones.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::wire::latin1;

/// The octets kept of a whole connection; the rest is counted.
const KEPT: usize = 64 * 1024;

/// What one connection has received so far, readable beside the stream.
#[derive(Clone, Default)]
pub(crate) struct Tap(Arc<Mutex<Received>>);

#[derive(Default)]
struct Received {
    octets: u64,
    first: Vec<u8>,
}

/// A stream with a tap on what it receives.
pub(crate) struct Tapped<S> {
    stream: S,
    tap: Tap,
}

impl Tap {
    /// Returns the stream with this tap on it.
    pub(crate) fn on<S>(&self, stream: S) -> Tapped<S> {
        Tapped { stream, tap: self.clone() }
    }

    /// Returns the number of octets received, and the first of them, one character per octet (ISO 8859-1).
    pub(crate) fn received(&self) -> (u64, String) {
        let received = self.locked();
        (received.octets, latin1(&received.first))
    }

    fn keep(&self, octets: &[u8]) {
        let mut received = self.locked();
        let room = octets.len().min(KEPT - received.first.len());
        received.first.extend_from_slice(&octets[..room]);
        received.octets += octets.len() as u64;
    }

    fn locked(&self) -> MutexGuard<'_, Received> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Tapped<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.tap.keep(&buffer.filled()[before..]);
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Tapped<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        octets: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, octets)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
