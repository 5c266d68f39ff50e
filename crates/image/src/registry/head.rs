//! Bounds the octets read from a connection until the head of an answer is complete: the library does not bound interim answers
//! (1xx).

use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::request::Stream;

/// How many octets may come before the end of a head, including the part of the body read with it.
const MOST: u64 = 256 << 10;

/// A connection that is bounded until the head of its answer.
pub(super) struct UntilHead {
    inner: Box<dyn Stream>,
    left: Rc<Cell<u64>>,
}

/// Lifts the bound once the head is complete.
pub(super) struct Lift(Rc<Cell<u64>>);

impl Lift {
    pub(super) fn lift(self) {
        self.0.set(u64::MAX);
    }
}

impl UntilHead {
    pub(super) fn new(inner: Box<dyn Stream>) -> (Self, Lift) {
        let left = Rc::new(Cell::new(MOST));
        (Self { inner, left: Rc::clone(&left) }, Lift(left))
    }
}

impl AsyncRead for UntilHead {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let ready = Pin::new(&mut self.inner).poll_read(context, buffer);
        let read = (buffer.filled().len() - before) as u64;
        match self.left.get().checked_sub(read) {
            Some(left) => {
                // A lifted bound stays lifted.
                self.left.set(if self.left.get() == u64::MAX { u64::MAX } else { left });
                ready
            }
            None => Poll::Ready(Err(io::Error::other("it says too much before its answer"))),
        }
    }
}

impl AsyncWrite for UntilHead {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        octets: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(context, octets)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}
