//! Writes that go out whole or end their connection. A write that fails, or is given up when part of it may have gone out, severs its
//! writer: whatever came behind the part would be read as the rest of it.

use std::io;
use std::time::Duration;

use tokio::io::AsyncWrite;
use tokio::net::TcpStream;

use crate::patience::within;

/// The writing side of a connection.
pub(crate) trait Severable: AsyncWrite + Unpin {
    /// Lets nothing more be written. Where that is possible, the connection is reset when it is dropped.
    fn sever(&mut self);
}

impl Severable for TcpStream {
    fn sever(&mut self) {
        // A peer that has gone needs no reset. Whoever owns the whole connection drops it when a write fails.
        let _ = self.set_zero_linger();
    }
}

/// Runs a write that may take so long, and severs the writer unless it succeeds.
pub(super) async fn write_whole<W: Severable>(
    writer: &mut W,
    limit: Duration,
    write: impl AsyncFnOnce(&mut W) -> io::Result<()>,
) -> io::Result<()> {
    let mut begun = Begun { writer, is_done: false };
    within(limit, write(&mut *begun.writer)).await?;
    begun.is_done = true;
    Ok(())
}

/// A write that has begun.
struct Begun<'a, W: Severable> {
    writer: &'a mut W,
    is_done: bool,
}

impl<W: Severable> Drop for Begun<'_, W> {
    fn drop(&mut self) {
        if !self.is_done {
            self.writer.sever();
        }
    }
}

/// The error of a writer that was severed.
pub(crate) fn severed() -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, "an earlier write was cut off")
}
