//! Decompresses responses that are searched: piece by piece, holding no more than one decompressed piece and a window. Refuses those in
//! which nothing would be found: an unknown coding, or a charset that writes ASCII in other octets.

use std::io::{self, Write};

use brotli_decompressor::DecompressorWriter;
use flate2::Decompress;
use flate2::write::{MultiGzDecoder, ZlibDecoder};
use policy::{Denial, Guard};

use super::fields::{Fields, trim};
use super::response::unusable;

/// The decoder for a body's content coding (RFC 9110 §8.4.1).
pub(super) enum Unpack {
    Plain,
    Gzip(Box<Packed<MultiGzDecoder<Bounded>>>),
    /// With the header of RFC 1950, or without it: some servers leave it out, and every browser takes both.
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
            return Err(io::Error::other("it unpacks to too much at once"));
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

/// What the names of charsets begin with in which ASCII is written in other octets, without hyphens and a leading `x-`: labels of the
/// WHATWG Encoding Standard §4.2, names of IANA's registry, and those of Java and glibc.
const WIDE_CHARSETS: [&str; 15] = [
    "utf16",
    "utf32",
    "utf7",
    "ucs2",
    "ucs4",
    "iso10646ucs",
    "csunicode",
    "csutf16",
    "csutf32",
    "csutf7",
    "csucs4",
    "csiso10646",
    "ibmthai",
    "csibmthai",
    "bocu1",
];
/// What stands before the number of a code page.
const PAGES: [&str; 4] = ["csibm", "ibm", "cp", "ccsid"];
/// The code pages of EBCDIC, UTF-16, UTF-32 and UTF-7; others, such as 850 and 1252, hold ASCII as it is.
const WIDE_PAGES: [&str; 60] = [
    "1200", "1201", "12000", "12001", "13488", "65000", "38", "1097", "1166", "1364", "1388", "1390", "1399",
    "37", "273", "274", "275", "277", "278", "280", "281", "284", "285", "290", "297", "420", "423", "424",
    "500", "833", "836", "838", "870", "871", "875", "880", "905", "918", "924", "930", "933", "935", "937",
    "939", "1025", "1026", "1047", "1112", "1122", "1123", "1140", "1141", "1142", "1143", "1144", "1145",
    "1146", "1147", "1148", "1149",
];

/// Whether a body, or messages in it, are compressed.
pub(super) fn is_packed(fields: &Fields) -> bool {
    PACKINGS.iter().any(|name| codings(fields, name).next().is_some())
}

/// Returns the content type that names a charset in which nothing would be found, however it is quoted.
fn wide_type(fields: &Fields) -> Option<&[u8]> {
    fields.values("content-type").filter(|value| value.contains(&b'=')).find(|value| {
        let kept = value.iter().filter(|octet| octet.is_ascii_alphanumeric() || matches!(octet, b'=' | b';'));
        let bare = kept.map(|octet| char::from(octet.to_ascii_lowercase())).collect::<String>();
        bare.split("charset=").skip(1).any(is_wide)
    })
}

/// Whether a charset is such a one, by its name in small letters without hyphens.
fn is_wide(name: &str) -> bool {
    let name = name.split(';').next().unwrap_or_default().trim_start_matches('x');
    if let Some(rest) = name.strip_prefix("unicode") {
        return !rest.ends_with("utf8"); // `unicode-1-1-utf-8` is UTF-8
    }
    let page =
        PAGES.iter().find_map(|before| name.strip_prefix(before)).map(|page| page.trim_start_matches('0'));
    let is_wide_page = |page: &str| {
        WIDE_PAGES.contains(&page.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default())
    };
    WIDE_CHARSETS.iter().any(|wide| name.starts_with(wide))
        || name.contains("ebcdic")
        || page.is_some_and(is_wide_page)
}

fn codings<'a>(fields: &'a Fields, name: &'a str) -> impl Iterator<Item = Vec<u8>> + use<'a> {
    let named = fields.values(name).flat_map(|value| value.split(|b| *b == b','));
    let named = named.map(|coding| trim(coding).to_ascii_lowercase());
    named.filter(|coding| !coding.is_empty() && coding != b"identity")
}

fn unknown(what: &str, codings: &[Vec<u8>]) -> Denial {
    let named: Vec<_> = codings.iter().map(|coding| String::from_utf8_lossy(coding)).collect();
    let why = format!("{what} as `{}`, and cannot be searched", named.join(", "));
    Denial::new(Guard::Unscrubbed, why.escape_default().to_string())
}

impl Unpack {
    /// Returns the decoder for a body with these fields.
    ///
    /// # Errors
    /// A coding that is unknown here, one of several, or a charset in which nothing would be found.
    pub(super) fn of(fields: &Fields) -> Result<Self, Denial> {
        if let Some(kind) = wide_type(fields) {
            let why = format!("the answer is of type `{}`, and cannot be searched", kind.escape_ascii());
            return Err(Denial::new(Guard::Unscrubbed, why));
        }
        let [of_body, of_messages @ ..] = PACKINGS;
        let each: Vec<Vec<u8>> = of_messages.iter().flat_map(|name| codings(fields, name)).collect();
        if !each.is_empty() {
            return Err(unknown("the messages of the answer are each packed", &each));
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
            other => Err(unknown("the answer is packed", other)),
        }
    }

    /// Decompresses a piece; none if the body is not compressed.
    pub(super) fn piece(&mut self, piece: &[u8]) -> io::Result<Option<Vec<u8>>> {
        self.decompress(piece).map_err(|error| not_unpacked(&error))
    }

    fn decompress(&mut self, piece: &[u8]) -> io::Result<Option<Vec<u8>>> {
        Ok(match self {
            Self::Plain => None,
            Self::Gzip(packed) => {
                let decoder = packed.given(piece);
                decoder.write_all(piece)?;
                decoder.flush()?;
                Some(std::mem::take(&mut decoder.get_mut().0))
            }
            Self::Deflate(packed) => {
                packed.choose_form(piece);
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
        self.finish().map_err(|error| not_unpacked(&error))
    }

    fn finish(&mut self) -> io::Result<Option<Vec<u8>>> {
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

/// Says of a decoder's error what it is about. By its kind it may be an end, and the upstream has not hung up.
fn not_unpacked(error: &io::Error) -> io::Error {
    unusable(format!("the answer cannot be unpacked: {error}"))
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

/// The method in the low half of the first octet of a header of RFC 1950 §2.2. Data without a header would begin with a block that is
/// stored, and with padding that is not zero (RFC 1951 §3.2.4), as no encoder writes it.
const HEADER_METHOD: u8 = 8;

impl Packed<ZlibDecoder<Bounded>> {
    /// Replaces the decoder if the first octet is not of a header.
    fn choose_form(&mut self, piece: &[u8]) {
        if !self.has_begun && piece.first().is_some_and(|first| first & 0x0f != HEADER_METHOD) {
            self.decoder = ZlibDecoder::new_with_decompress(Bounded::default(), Decompress::new(false));
        }
    }
}

impl Packed<DecompressorWriter<Bounded>> {
    /// Checks the window size, which the first octet states.
    fn check_window(&self, piece: &[u8]) -> io::Result<()> {
        match piece.first().filter(|_| !self.has_begun) {
            Some(first) if first & 0x7f == LARGE_WINDOW => {
                Err(io::Error::other("it is packed by Brotli with a window beyond its standard"))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::hung_up::HungUp;

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
    fn deflate_is_taken_with_and_without_its_header() {
        use flate2::Compression;
        use flate2::write::{DeflateEncoder, ZlibEncoder};
        let text = b"a text of some length, ".repeat(1000);
        for level in [0, 1, 6, 9].map(Compression::new) {
            let mut zlib = ZlibEncoder::new(Vec::new(), level);
            let mut raw = DeflateEncoder::new(Vec::new(), level);
            zlib.write_all(&text).unwrap();
            raw.write_all(&text).unwrap();
            for packed in [zlib.finish().unwrap(), raw.finish().unwrap()] {
                for size in [1, 1000] {
                    let fields = [("content-encoding", &b"deflate"[..])].into_iter().collect();
                    let mut unpack = Unpack::of(&fields).unwrap();
                    let mut all = Vec::new();
                    for piece in packed.chunks(size) {
                        unpack.piece(&[]).unwrap();
                        all.extend(unpack.piece(piece).unwrap().unwrap());
                    }
                    all.extend(unpack.end().unwrap().unwrap());
                    assert_eq!(all, text, "{level:?} in pieces of {size}");
                }
                // One that breaks off is none.
                let fields = [("content-encoding", &b"deflate"[..])].into_iter().collect();
                let mut unpack = Unpack::of(&fields).unwrap();
                let whole = unpack.piece(&packed[..packed.len() / 2]).and_then(|_| unpack.end());
                // The upstream has not hung up.
                let error = HungUp::told_in_answer(whole.unwrap_err());
                assert!(
                    error.to_string().starts_with("the answer cannot be unpacked: "),
                    "{level:?}: {error}"
                );
            }
        }
        // What a few octets unpack to at once is bounded in either form.
        let mut raw = DeflateEncoder::new(Vec::new(), Compression::best());
        raw.write_all(&vec![0; 4 * MOST_UNPACKED]).unwrap();
        let fields = [("content-encoding", &b"deflate"[..])].into_iter().collect();
        assert!(Unpack::of(&fields).unwrap().piece(&raw.finish().unwrap()).is_err());
    }

    #[test]
    fn a_charset_in_which_nothing_would_be_found_is_refused() {
        for (kind, is_refused) in [
            ("text/plain; charset=utf-16", true),
            ("text/html;Charset=\"UTF-16LE\"", true),
            ("application/json; a=b; charset = 'utf_32'", true),
            ("text/plain; charset=utf-8; charset=UCS-2", true),
            ("text/plain; charset=UTF-7", true),
            ("text/plain; charset=ISO-10646-UCS-2", true),
            ("text/plain; charset=unicode", true),
            ("text/plain; charset=unicodeFFFE", true),
            ("text/plain; charset=unicodefeff", true),
            ("text/plain; charset=csUnicode", true),
            ("text/plain; charset=csUTF16LE", true),
            ("text/plain; charset=csUTF32", true),
            ("text/plain; charset=unicode-1-1-utf-7", true),
            ("text/plain; charset=X-UTF-16LE-BOM", true),
            ("text/plain; charset=ebcdic-cp-us", true),
            ("text/plain; charset=OSD_EBCDIC_DF04_15", true),
            ("text/plain; charset=csIBMEBCDICATDE", true),
            ("text/plain; charset=x-IBM1364", true),
            ("text/plain; charset=cp1200", true),
            ("text/plain; charset=EBCDIC-US", true),
            ("text/plain; charset=x-EBCDIC-KoreanExtended", true),
            ("text/plain; charset=IBM037", true),
            ("text/plain; charset=\"ibm-1047\"; 2=3", true),
            ("text/plain; charset=cp037;2=3", true),
            ("text/plain; charset=IBM01140", true),
            ("text/plain; charset=CP500", true),
            ("text/plain; charset=utf-8", false),
            ("text/plain; charset=csUTF8", false),
            ("text/plain; charset=unicode-1-1-utf-8", false),
            ("text/plain; charset=x-unicode20utf8", false),
            ("text/plain; charset=ibm850; x=037", false),
            ("text/plain; charset=ibm866", false),
            ("text/plain; charset=cp1252", false),
            ("text/plain; charset=windows-1252", false),
            ("text/plain; charset=iso-8859-1", false),
            ("text/utf-16", false),
        ] {
            let fields = [("content-type", kind.as_bytes())].into_iter().collect();
            assert_eq!(Unpack::of(&fields).is_err(), is_refused, "{kind}");
            assert!(!is_packed(&fields), "{kind}");
        }
    }

    #[test]
    fn messages_that_are_packed_one_by_one_are_told_from_an_answer_that_is_packed() {
        let told = |name| {
            let refused = Unpack::of(&Fields::from_iter([(name, &b"snappy"[..])])).err().unwrap();
            refused.reason.clone()
        };
        assert_eq!(told("content-encoding"), "the answer is packed as `snappy`, and cannot be searched");
        let each = "the messages of the answer are each packed as `snappy`, and cannot be searched";
        assert_eq!([told("grpc-encoding"), told("connect-content-encoding")], [each, each]);
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
