//! A body on its way out, to either side and by either version of HTTP: pieces of data, framed anew.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncWrite, AsyncWriteExt};

use super::fields::Fields;
use super::version2;

/// How long whoever reads may take over one piece.
const STALLED: Duration = Duration::from_secs(120);
/// Pieces up to this size are written together with their framing and with what waits before them.
const TOGETHER: usize = 16 * 1024;

/// A body that is being written, and what waits to go out before it.
pub(crate) enum Outgoing<'a, W> {
    /// To a connection of HTTP/1.
    Version1 { writer: &'a mut W, frame: Frame, waiting: Vec<u8> },
    /// To a stream of HTTP/2.
    Version2(h2::SendStream<Bytes>),
    /// There is none to write.
    Nothing,
}

/// How the end of a body is told in HTTP/1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    /// By a length that the head gave, or by the end of the connection.
    Bare,
    /// In chunks.
    Chunked,
}

impl<W: AsyncWrite + Unpin> Outgoing<'_, W> {
    /// Sends a piece on.
    pub(crate) async fn send(&mut self, piece: Bytes) -> io::Result<()> {
        if piece.is_empty() {
            return Ok(());
        }
        match self {
            Self::Version1 { writer, frame, waiting } => {
                if *frame == Frame::Chunked {
                    waiting.extend(format!("{:x}\r\n", piece.len()).bytes());
                }
                if piece.len() > TOGETHER {
                    timely(writer.write_all(waiting)).await?;
                    waiting.clear();
                    timely(writer.write_all(&piece)).await?;
                } else {
                    waiting.extend(&piece);
                }
                if *frame == Frame::Chunked {
                    waiting.extend(b"\r\n");
                }
                self.flush().await
            }
            Self::Version2(stream) => version2::send_data(stream, piece, STALLED).await,
            Self::Nothing => Ok(()),
        }
    }

    /// Sends the last piece on, and ends the body, in one writing where that is possible.
    pub(crate) async fn finish(&mut self, piece: Bytes, trailers: Fields) -> io::Result<()> {
        match self {
            Self::Version1 { frame, waiting, .. } if piece.len() <= TOGETHER => {
                if *frame == Frame::Chunked && !piece.is_empty() {
                    waiting.extend(format!("{:x}\r\n", piece.len()).bytes());
                    waiting.extend(&piece);
                    waiting.extend(b"\r\n");
                } else {
                    waiting.extend(&piece);
                }
            }
            _ => self.send(piece).await?,
        }
        self.end(trailers).await
    }

    /// Sends out what waits.
    pub(crate) async fn flush(&mut self) -> io::Result<()> {
        if let Self::Version1 { writer, waiting, .. } = self {
            if !waiting.is_empty() {
                timely(writer.write_all(waiting)).await?;
                waiting.clear();
            }
            timely(writer.flush()).await?;
        }
        Ok(())
    }

    /// Ends the body.
    pub(crate) async fn end(&mut self, trailers: Fields) -> io::Result<()> {
        match self {
            Self::Version1 { frame, waiting, .. } => {
                if *frame == Frame::Chunked {
                    // Trailers are not passed on to a reader of HTTP/1: few look at them, and a proxy may drop them.
                    waiting.extend(b"0\r\n\r\n");
                }
                self.flush().await
            }
            Self::Version2(stream) => version2::end(stream, &trailers),
            Self::Nothing => Ok(()),
        }
    }
}

async fn timely<T>(work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::time::timeout(STALLED, work).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
}
