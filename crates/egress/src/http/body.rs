//! Bodies: copied as they come, by a length that is beyond doubt. Chunks are read as strictly as heads, so that what
//! goes on means the same to every reader.

use std::cell::Cell;
use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};

use super::head::{BodyLength, Buffered};

/// How long a body may stand still.
const STALLED: Duration = Duration::from_secs(120);
/// The longest line that gives a chunk's size, extensions included.
const LONGEST_SIZE_LINE: usize = 256;
/// The largest trailer section.
const LARGEST_TRAILER: usize = 8 * 1024;

/// Whether what a strict reader would refuse is let through: only from an upstream, never from the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum From {
    /// Sizes and data; extensions are dropped.
    Agent,
    /// White space after a size, and trailers, as well.
    Upstream,
}

/// Copies a body; `count` grows with what has gone on, also when the rest does not.
pub(crate) async fn copy<R, W>(
    reader: &mut Buffered<R>,
    writer: &mut W,
    length: BodyLength,
    from: From,
    count: &Cell<u64>,
) -> io::Result<()>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    match length {
        BodyLength::None => Ok(()),
        BodyLength::Sized(size) => copy_sized(reader, writer, size, count).await,
        BodyLength::Chunked => copy_chunked(reader, writer, from, count).await,
    }
}

async fn copy_sized<R, W>(
    reader: &mut Buffered<R>,
    writer: &mut W,
    size: u64,
    count: &Cell<u64>,
) -> io::Result<()>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let mut left = size;
    while left > 0 {
        if reader.ahead.is_empty() && reader.fill(STALLED).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let take = usize::try_from(left).unwrap_or(usize::MAX).min(reader.ahead.len());
        writer.write_all(&reader.ahead[..take]).await?;
        reader.ahead.drain(..take);
        left -= take as u64;
        count.set(count.get() + take as u64);
    }
    Ok(())
}

async fn copy_chunked<R, W>(
    reader: &mut Buffered<R>,
    writer: &mut W,
    from: From,
    count: &Cell<u64>,
) -> io::Result<()>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let mut scanner = ChunkScanner::new(from);
    let mut clean = Vec::new();
    loop {
        if reader.ahead.is_empty() && reader.fill(STALLED).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        clean.clear();
        let used = scanner.scan(&reader.ahead, &mut clean).map_err(io::Error::other)?;
        writer.write_all(&clean).await?;
        reader.ahead.drain(..used);
        count.set(count.get() + clean.len() as u64);
        if scanner.is_done() {
            return Ok(());
        }
    }
}

/// Copies until the other side ends: a response without a length.
pub(crate) async fn copy_to_end<R, W>(
    reader: &mut Buffered<R>,
    writer: &mut W,
    count: &Cell<u64>,
) -> io::Result<()>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    loop {
        if reader.ahead.is_empty() && reader.fill(STALLED).await? == 0 {
            return Ok(());
        }
        writer.write_all(&reader.ahead).await?;
        count.set(count.get() + reader.ahead.len() as u64);
        reader.ahead.clear();
    }
}

/// Finds the end of a chunked body (RFC 9112 §7.1), octet by octet, whatever pieces it comes in.
#[derive(Debug)]
pub(crate) struct ChunkScanner {
    from: From,
    state: State,
    line: usize,
    size: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Size { digits: u8 },
    Extension,
    SizeLf,
    Data { left: u64 },
    DataCr,
    DataLf,
    TrailerStart,
    Trailer,
    TrailerLf,
    EndLf,
    Done,
}

impl ChunkScanner {
    pub(crate) fn new(from: From) -> Self {
        Self { from, state: State::Size { digits: 0 }, line: 0, size: 0 }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Scans a piece; how much of it belongs to the body. What goes on is added to `clean`: all but chunk extensions,
    /// which mean nothing beyond one connection and have been read in two ways (RFC 9112 §7.1.1).
    pub(crate) fn scan(&mut self, piece: &[u8], clean: &mut Vec<u8>) -> Result<usize, &'static str> {
        let mut at = 0;
        while at < piece.len() && self.state != State::Done {
            if let State::Data { left } = self.state {
                let step = usize::try_from(left).unwrap_or(usize::MAX).min(piece.len() - at);
                clean.extend_from_slice(&piece[at..at + step]);
                at += step;
                let left = left - step as u64;
                self.state = if left == 0 { State::DataCr } else { State::Data { left } };
                continue;
            }
            self.state = self.step(piece[at])?;
            if self.state != State::Extension {
                clean.push(piece[at]);
            }
            at += 1;
        }
        Ok(at)
    }

    fn step(&mut self, byte: u8) -> Result<State, &'static str> {
        self.line += 1;
        let lenient = self.from == From::Upstream;
        match (self.state, byte) {
            (State::Size { digits }, b) if b.is_ascii_hexdigit() && digits < 15 => {
                self.size = self.size * 16 + u64::from((b as char).to_digit(16).unwrap_or(0));
                Ok(State::Size { digits: digits + 1 })
            }
            (State::Size { digits: 1.. }, b'\r') => Ok(State::SizeLf),
            (State::Size { digits: 1.. }, b';') => Ok(State::Extension),
            (State::Size { digits: 1.. }, b' ' | b'\t') if lenient => Ok(State::Extension),
            (State::Extension, b'\r') => Ok(State::SizeLf),
            (State::Extension, b)
                if self.line <= LONGEST_SIZE_LINE && (b == b'\t' || (b >= b' ' && b != 0x7f)) =>
            {
                Ok(State::Extension)
            }
            (State::SizeLf, b'\n') => {
                let size = std::mem::take(&mut self.size);
                self.line = 0;
                Ok(if size == 0 { State::TrailerStart } else { State::Data { left: size } })
            }
            (State::DataCr, b'\r') => Ok(State::DataLf),
            (State::DataLf, b'\n') => {
                self.line = 0;
                Ok(State::Size { digits: 0 })
            }
            (State::TrailerStart, b'\r') => Ok(State::EndLf),
            (State::EndLf, b'\n') => Ok(State::Done),
            (State::TrailerStart | State::Trailer, b)
                if lenient && b != b'\n' && b != b'\r' && self.line <= LARGEST_TRAILER =>
            {
                Ok(State::Trailer)
            }
            (State::Trailer, b'\r') => Ok(State::TrailerLf),
            (State::TrailerLf, b'\n') => Ok(State::TrailerStart),
            _ => Err("the chunked body is malformed"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end_of(body: &[u8], from: From, piece: usize) -> Result<Option<usize>, &'static str> {
        let mut scanner = ChunkScanner::new(from);
        let mut total = 0;
        for part in body.chunks(piece) {
            total += scanner.scan(part, &mut Vec::new())?;
            if scanner.is_done() {
                return Ok(Some(total));
            }
        }
        Ok(None)
    }

    proptest::proptest! {
        #[test]
        fn the_end_does_not_depend_on_the_pieces(sizes in proptest::collection::vec(1usize..40, 0..6), piece in 1usize..50) {
            let mut body = Vec::new();
            for size in sizes {
                body.extend(format!("{size:x}\r\n").bytes());
                body.extend(std::iter::repeat_n(b'\n', size));
                body.extend(b"\r\n");
            }
            body.extend(b"0\r\n\r\n");
            let end = body.len();
            body.extend(b"GET / HTTP/1.1\r\n");
            proptest::prop_assert_eq!(end_of(&body, From::Agent, piece), Ok(Some(end)));
        }

        #[test]
        fn any_octets_are_survived(body: Vec<u8>, piece in 1usize..9) {
            let _ = end_of(&body, From::Upstream, piece);
        }
    }

    #[test]
    fn an_agent_gets_no_leeway() {
        for body in [
            "0\r\nX: y\r\n\r\n",
            "5\nhello\r\n",
            "+5\r\nhello",
            "5 \r\nhello\r\n",
            "\r\n",
            "0x5\r\n",
            "fffffffffffffffff\r\n",
            "5\r\nhelloX",
        ] {
            assert!(end_of(body.as_bytes(), From::Agent, 3).is_err(), "{body:?}");
        }
        assert!(end_of(b"5;x=y\r\nhello\r\n0\r\nX: y\r\n\r\n", From::Upstream, 3).unwrap().is_some());
    }
}
