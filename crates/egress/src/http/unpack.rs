//! Decompresses responses that are searched: piece by piece, holding no more than one decompressed piece and a window.

use std::io::{self, Write};

use brotli_decompressor::DecompressorWriter;
use flate2::write::{MultiGzDecoder, ZlibDecoder};
use policy::{Denial, Guard};

use super::fields::{Fields, trim};

/// The decoder for a body's content coding (RFC 9110 §8.4.1).
pub(super) enum Unpack {
    Plain,
    Gzip(Box<Packed<MultiGzDecoder<Bounded>>>),
    Deflate(Box<Packed<ZlibDecoder<Bounded>>>),
    /// As RFC 7932 has it.
    Brotli(Box<Packed<DecompressorWriter<Bounded>>>),
}

/// A decoder, and whether anything came for it: some servers say that a body is packed which then has not one octet.
pub(super) struct Packed<D> {
    decoder: D,
    has_begun: bool,
}

/// The first seven bits of a stream with a larger window than RFC 7932 §9.1 has. It may be 1 GiB, all of which would be held; no
/// browser accepts one.
const LARGE_WINDOW: u8 = 0x11;

/// The decompressed octets of one piece. A few octets may decompress to gigabytes: more than [`MOST_UNPACKED`] is an error.
#[derive(Default)]
pub(super) struct Bounded(Vec<u8>);

/// The most octets that one piece may decompress to, and the most of a compressed body that is decompressed at once.
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

/// The fields that name the coding of a body, or of each message in it.
const PACKINGS: [&str; 3] = ["content-encoding", "grpc-encoding", "connect-content-encoding"];

/// Whether a body, or messages in it, are compressed.
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
    /// Returns the decoder for a body with these fields.
    ///
    /// # Errors
    /// A coding that is unknown here, or one of several.
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
                Ok(Self::Gzip(Packed::by(MultiGzDecoder::new(Bounded::default()))))
            }
            [one] if one == b"deflate" => Ok(Self::Deflate(Packed::by(ZlibDecoder::new(Bounded::default())))),
            [one] if one == b"br" => {
                Ok(Self::Brotli(Packed::by(DecompressorWriter::new(Bounded::default(), 16 * 1024))))
            }
            other => Err(unknown(other)),
        }
    }

    /// Decompresses a piece; none if the body is not compressed.
    pub(super) fn piece(&mut self, piece: &[u8]) -> io::Result<Option<Vec<u8>>> {
        Ok(match self {
            Self::Plain => None,
            Self::Gzip(packed) => {
                let decoder = packed.given(piece);
                decoder.write_all(piece)?;
                decoder.flush()?;
                Some(std::mem::take(&mut decoder.get_mut().0))
            }
            Self::Deflate(packed) => {
                let decoder = packed.given(piece);
                decoder.write_all(piece)?;
                decoder.flush()?;
                Some(std::mem::take(&mut decoder.get_mut().0))
            }
            Self::Brotli(packed) => {
                packed.check_window(piece)?;
                let decoder = packed.given(piece);
                decoder.write_all(piece)?;
                Some(std::mem::take(&mut decoder.get_mut().0))
            }
        })
    }

    /// Ends the body, and returns what is left of it; none if the body is not compressed.
    pub(super) fn end(&mut self) -> io::Result<Option<Vec<u8>>> {
        Ok(match self {
            Self::Plain => None,
            Self::Gzip(packed) if packed.has_begun => {
                packed.decoder.try_finish()?;
                Some(std::mem::take(&mut packed.decoder.get_mut().0))
            }
            Self::Deflate(packed) if packed.has_begun => {
                packed.decoder.try_finish()?;
                Some(std::mem::take(&mut packed.decoder.get_mut().0))
            }
            Self::Brotli(packed) if packed.has_begun => {
                packed.decoder.close()?;
                Some(std::mem::take(&mut packed.decoder.get_mut().0))
            }
            Self::Gzip(_) | Self::Deflate(_) | Self::Brotli(_) => Some(Vec::new()),
        })
    }
}

impl<D> Packed<D> {
    fn by(decoder: D) -> Box<Self> {
        Box::new(Self { decoder, has_begun: false })
    }

    /// Returns the decoder, which is about to be given this piece.
    fn given(&mut self, piece: &[u8]) -> &mut D {
        self.has_begun |= !piece.is_empty();
        &mut self.decoder
    }
}

impl Packed<DecompressorWriter<Bounded>> {
    /// Checks the window size, which the first octet states.
    fn check_window(&self, piece: &[u8]) -> io::Result<()> {
        match piece.first().filter(|_| !self.has_begun) {
            Some(first) if first & 0x7f == LARGE_WINDOW => {
                Err(io::Error::other("the answer is packed by Brotli with a window beyond its standard"))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A text that was compressed with a window of this size, decompressed in pieces of `size` octets.
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

    #[test]
    fn of_nothing_that_is_packed_comes_nothing() {
        for coding in ["gzip", "x-gzip", "deflate", "br"] {
            let fields = [("content-encoding", coding.as_bytes())].into_iter().collect();
            for pieces in 0..2 {
                let mut unpack = Unpack::of(&fields).unwrap();
                for _ in 0..pieces {
                    assert_eq!(unpack.piece(&[]).unwrap(), Some(Vec::new()), "{coding}");
                }
                assert_eq!(unpack.end().unwrap(), Some(Vec::new()), "{coding}");
            }
            // The control: one that has begun must end.
            let mut unpack = Unpack::of(&fields).unwrap();
            let first = if coding.ends_with("gzip") { 0x1f } else { 0x78 };
            let _ = unpack.piece(&[first]);
            assert!(unpack.end().is_err(), "{coding}");
        }
    }
}
