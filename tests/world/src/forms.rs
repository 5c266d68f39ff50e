//! Forms of a value that an upstream may return and no library writes: everything escaped, and really compressed, so that the value cannot
//! be found in transit without decoding.

use std::fmt::Write as _;
use std::io::Write as _;

use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};

/// Encodes every octet as `%XX` (RFC 3986 §2.1).
pub(crate) fn percent(octets: &[u8]) -> String {
    octets.iter().map(|octet| format!("%{octet:02X}")).collect()
}

/// Encodes a JSON string with every character escaped (RFC 8259 §7).
pub(crate) fn json_string(text: &str) -> String {
    let escaped = text.encode_utf16().fold(String::new(), |mut escaped, unit| {
        // Writing to a string cannot fail.
        let _ = write!(escaped, "\\u{unit:04x}");
        escaped
    });
    format!("\"{escaped}\"")
}

/// Returns a text that compresses well. An encoder would store the letters of the value alone as they are.
pub(crate) fn lines_of(value: &[u8]) -> Vec<u8> {
    [value, b"\n"].concat().repeat(8)
}

/// RFC 1952.
pub(crate) fn gzip(content: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    // Only the writer could fail, and a vector does not.
    encoder.write_all(content).and_then(|()| encoder.finish()).unwrap_or_default()
}

/// What HTTP calls "deflate": the zlib format (RFC 9110 §8.4.1.2, RFC 1950).
pub(crate) fn deflate(content: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(content).and_then(|()| encoder.finish()).unwrap_or_default()
}

/// RFC 7932.
pub(crate) fn brotli(content: &[u8]) -> Vec<u8> {
    let mut compressed = Vec::new();
    let parameters = brotli::enc::BrotliEncoderParams::default();
    brotli::BrotliCompress(&mut &*content, &mut compressed, &parameters).unwrap_or_default();
    compressed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_read_back_as_the_value() {
        let value = "Bearer a\"\u{e9}\u{1f600}";
        assert_eq!(serde_json::from_str::<String>(&json_string(value)).unwrap(), value);
        assert_eq!(percent(b"a/"), "%61%2F");
    }

    #[test]
    fn no_compressed_form_shows_the_value() {
        let value = b"Bearer sk-canary-t4WnC8zXk2VqJ6mLr9SgD3yPb7HfA1eGu5oEi0Kx";
        for form in [gzip, deflate, brotli] {
            let compressed = form(&lines_of(value));
            assert!(!compressed.is_empty());
            assert!(!compressed.windows(8).any(|window| value.windows(8).any(|part| part == window)));
        }
    }
}
