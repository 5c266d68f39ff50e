//! Decompresses a layer, recognised by its first octets: uncompressed, gzip, or Zstandard.

use std::io::{self, BufRead, BufReader, Read};

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::StreamingDecoder;

const GZIP: &[u8] = &[0x1f, 0x8b];
/// The magic of a Zstandard frame, RFC 8878 section 3.1.1, and of a skippable frame, 3.1.2, whose first octet is 0x50 to 0x5f.
const ZSTANDARD: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];
const SKIPPABLE: &[u8] = &[0x2a, 0x4d, 0x18];
/// How many octets are read at once.
const BUFFER: usize = 128 << 10;
/// The largest window of a frame: the maximum of `zstd --ultra` without further options.
const LARGEST_WINDOW: u64 = 128 << 20;

/// Returns a reader of the uncompressed octets.
pub(crate) fn decompress<'a>(reader: impl Read + 'a) -> io::Result<Box<dyn Read + 'a>> {
    let mut reader = BufReader::with_capacity(BUFFER, reader);
    let begin = reader.fill_buf()?;
    if begin.starts_with(GZIP) {
        return Ok(Box::new(MultiGzDecoder::new(reader)));
    }
    let skippable = begin.first().is_some_and(|b| b & 0xf0 == 0x50) && begin[1..].starts_with(SKIPPABLE);
    if begin.starts_with(ZSTANDARD) || skippable {
        return Ok(Box::new(Frames { state: State::Between(reader) }));
    }
    for (magic, name) in [(&b"BZh"[..], "bzip2"), (b"\xfd7zXZ", "xz")] {
        if begin.starts_with(magic) {
            return Err(io::Error::other(format!("it is compressed with {name}, which images are not")));
        }
    }
    Ok(Box::new(reader))
}

/// A reader of consecutive frames, as parallel compressors write them.
struct Frames<R: BufRead> {
    state: State<R>,
}

enum State<R: BufRead> {
    Between(R),
    Within(Box<StreamingDecoder<R, ruzstd::decoding::FrameDecoder>>),
    Over,
}

impl<R: BufRead> Read for Frames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match std::mem::replace(&mut self.state, State::Over) {
                State::Over => return Ok(0),
                State::Between(reader) => self.state = begin(reader)?,
                State::Within(mut decoder) => {
                    let read = decoder.read(buffer)?;
                    if read > 0 || buffer.is_empty() {
                        self.state = State::Within(decoder);
                        return Ok(read);
                    }
                    self.state = State::Between(decoder.into_inner());
                }
            }
        }
    }
}

/// Begins the next frame, or skips a skippable one.
fn begin<R: BufRead>(mut reader: R) -> io::Result<State<R>> {
    let next = reader.fill_buf()?;
    if next.is_empty() {
        return Ok(State::Over);
    }
    if next[0] & 0xf0 == 0x50 {
        let mut head = [0; 8];
        reader.read_exact(&mut head)?;
        let length = u32::from_le_bytes([head[4], head[5], head[6], head[7]]);
        let passed = io::copy(&mut (&mut reader).take(length.into()), &mut io::sink())?;
        let whole = head[1..4] == *SKIPPABLE && passed == u64::from(length);
        return if whole {
            Ok(State::Between(reader))
        } else {
            Err(broken("a frame to be skipped is broken"))
        };
    }
    let decoder = StreamingDecoder::new_with_max_window_size(reader, LARGEST_WINDOW);
    decoder.map(|decoder| State::Within(Box::new(decoder))).map_err(broken)
}

fn broken(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// `hello` as zstd 1.5 writes it, without a checksum: one raw block.
    const HELLO: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd, 0x20, 0x05, 0x29, 0, 0, b'h', b'e', b'l', b'l', b'o'];

    fn read(octets: &[u8]) -> io::Result<Vec<u8>> {
        let mut all = Vec::new();
        decompress(octets)?.read_to_end(&mut all).map(|_| all)
    }

    #[test]
    fn each_kind_is_told_by_its_first_octets() {
        assert_eq!(read(b"plain").unwrap(), b"plain");
        assert_eq!(read(b"").unwrap(), b"");
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(b"hello").unwrap();
        let gzip = gzip.finish().unwrap();
        assert_eq!(read(&[gzip.clone(), gzip].concat()).unwrap(), b"hellohello");
        let skipped = [0x50, 0x2a, 0x4d, 0x18, 2, 0, 0, 0, 9, 9];
        assert_eq!(read(&[HELLO, &skipped, HELLO].concat()).unwrap(), b"hellohello");
        assert_eq!(read(&[&skipped, HELLO].concat()).unwrap(), b"hello");
    }

    #[test]
    fn what_is_broken_or_unknown_is_an_error() {
        let skipped = [0x50, 0x2a, 0x4d, 0x18, 255, 0, 0, 0, 9];
        for octets in [b"BZh9".as_slice(), b"\xfd7zXZ\0", &HELLO[..8], &[HELLO, b"x"].concat(), &skipped] {
            assert!(read(octets).is_err(), "{octets:?}");
        }
        // A window of a terabyte is asked for.
        assert!(read(&[0x28, 0xb5, 0x2f, 0xfd, 0, 0xf0, 0, 0, 0]).is_err());
    }
}
