//! Unpacking an answer that is looked into: piece by piece, with no more held of it than a piece unpacks to, and a window.

use std::io::{self, Write};

use brotli_decompressor::DecompressorWriter;
use flate2::write::{MultiGzDecoder, ZlibDecoder};
use policy::{Denial, Guard};

use super::fields::{Fields, trim};

/// How a body was packed (RFC 9110 §8.4.1).
pub(super) enum Unpack {
    Plain,
    Gzip(Box<MultiGzDecoder<Bounded>>),
    Deflate(Box<ZlibDecoder<Bounded>>),
    Brotli(Box<Brotli>),
}

/// Brotli as RFC 7932 has it.
pub(super) struct Brotli {
    decoder: DecompressorWriter<Bounded>,
    has_begun: bool,
}

/// How a stream begins whose window is beyond what RFC 7932 §9.1 has: by its seven bits it may be 1 GiB, and all of it is held. No browser
/// takes one.
const LARGE_WINDOW: u8 = 0x11;

/// What is unpacked of one piece. A few octets may unpack to gigabytes: that is an error, and not a memory full of zeros.
#[derive(Default)]
pub(super) struct Bounded(Vec<u8>);

/// The most that one piece may unpack to, and the most of a packed body that is unpacked at once.
const MOST_UNPACKED: usize = 2 * 1024 * 1024;
pub(super) const PACKED_PIECE: usize = 1024;

impl Write for Bounded {
    fn write(&mut self, octets: &[u8]) -> io::Result<usize> {
        if self.0.len() + octets.len() > MOST_UNPACKED {
            return Err(io::Error::other("the answer unpacks to too much at once"));
        }
        self.0.extend_from_slice(octets);
        Ok(octets.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The fields that say how a body, or each message in it, is packed.
const PACKINGS: [&str; 3] = ["content-encoding", "grpc-encoding", "connect-content-encoding"];

/// Whether anything of a body is packed.
pub(super) fn is_packed(fields: &Fields) -> bool {
    PACKINGS.iter().any(|name| codings(fields, name).next().is_some())
}

fn codings<'a>(fields: &'a Fields, name: &'a str) -> impl Iterator<Item = Vec<u8>> + use<'a> {
    let named = fields.values(name).flat_map(|value| value.split(|b| *b == b','));
    let named = named.map(|coding| trim(coding).to_ascii_lowercase());
    named.filter(|coding| !coding.is_empty() && coding != b"identity")
}

fn unknown(codings: &[Vec<u8>]) -> Denial {
    let named: Vec<_> = codings.iter().map(|coding| String::from_utf8_lossy(coding)).collect();
    let why = format!("the answer is packed as `{}`, and cannot be searched", named.join(", "));
    Denial::new(Guard::Unscrubbed, why.escape_default().to_string())
}

impl Unpack {
    pub(super) fn of(fields: &Fields) -> Result<Self, Denial> {
        let [of_body, of_messages @ ..] = PACKINGS;
        let each: Vec<Vec<u8>> = of_messages.iter().flat_map(|name| codings(fields, name)).collect();
        if !each.is_empty() {
            return Err(unknown(&each));
        }
        let codings: Vec<Vec<u8>> = codings(fields, of_body).collect();
        match codings.as_slice() {
            [] => Ok(Self::Plain),
            [one] if one == b"gzip" || one == b"x-gzip" => {
                Ok(Self::Gzip(Box::new(MultiGzDecoder::new(Bounded::default()))))
            }
            [one] if one == b"deflate" => Ok(Self::Deflate(Box::new(ZlibDecoder::new(Bounded::default())))),
            [one] if one == b"br" => {
                let decoder = DecompressorWriter::new(Bounded::default(), 16 * 1024);
                Ok(Self::Brotli(Box::new(Brotli { decoder, has_begun: false })))
            }
            other => Err(unknown(other)),
        }
    }

    pub(super) fn piece(&mut self, piece: &[u8]) -> io::Result<Option<Vec<u8>>> {
        Ok(match self {
            Self::Plain => None,
            Self::Gzip(decoder) => {
                decoder.write_all(piece)?;
                decoder.flush()?;
                Some(std::mem::take(&mut decoder.get_mut().0))
            }
            Self::Deflate(decoder) => {
                decoder.write_all(piece)?;
                decoder.flush()?;
                Some(std::mem::take(&mut decoder.get_mut().0))
            }
            Self::Brotli(brotli) => {
                brotli.begin(piece)?;
                brotli.decoder.write_all(piece)?;
                Some(std::mem::take(&mut brotli.decoder.get_mut().0))
            }
        })
    }

    pub(super) fn end(&mut self) -> io::Result<Option<Vec<u8>>> {
        Ok(match self {
            Self::Plain => None,
            Self::Gzip(decoder) => {
                decoder.try_finish()?;
                Some(std::mem::take(&mut decoder.get_mut().0))
            }
            Self::Deflate(decoder) => {
                decoder.try_finish()?;
                Some(std::mem::take(&mut decoder.get_mut().0))
            }
            Self::Brotli(brotli) => {
                brotli.decoder.close()?;
                Some(std::mem::take(&mut brotli.decoder.get_mut().0))
            }
        })
    }
}

impl Brotli {
    /// Looks at the first octet, which says how large the window is.
    fn begin(&mut self, piece: &[u8]) -> io::Result<()> {
        let Some(first) = piece.first().filter(|_| !self.has_begun) else { return Ok(()) };
        if first & 0x7f == LARGE_WINDOW {
            return Err(io::Error::other("the answer is packed by Brotli with a window beyond its standard"));
        }
        self.has_begun = true;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What comes of a text that was packed by an encoder with such a window, in pieces of so many octets.
    fn unpacked(text: &[u8], window: i32, size: usize) -> io::Result<Vec<u8>> {
        let mut packed = Vec::new();
        let large_window = window > 24;
        let parameters =
            brotli::enc::BrotliEncoderParams { lgwin: window, large_window, ..Default::default() };
        brotli::BrotliCompress(&mut &*text, &mut packed, &parameters)?;
        let fields = [("content-encoding", &b"br"[..])].into_iter().collect();
        let mut unpack = Unpack::of(&fields).unwrap();
        let mut all = Vec::new();
        for piece in packed.chunks(size) {
            unpack.piece(&[])?;
            all.extend(unpack.piece(piece)?.unwrap());
        }
        all.extend(unpack.end()?.unwrap());
        Ok(all)
    }

    #[test]
    fn brotli_is_taken_with_the_windows_of_its_standard_alone() {
        let text = b"a text of some length, ".repeat(1000);
        for size in [1, 1000] {
            for window in 10..=24 {
                assert_eq!(unpacked(&text, window, size).unwrap(), text, "{window}");
            }
            for window in [25, 30] {
                let error = unpacked(&text, window, size).unwrap_err();
                assert!(error.to_string().contains("beyond its standard"), "{window}: {error}");
            }
        }
    }
}
