//! Positions in a request, and the encoding that keeps a value one value there.

use std::fmt;

use zeroize::Zeroizing;

use crate::escape::{HexCase, is_unreserved, json, percent};
use crate::secret::Secret;

/// A position in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Position {
    /// The value of a header: unchanged, in ASCII, without control characters (RFC 9110 §5.5). Servers read other octets in different
    /// ways, so that an answer could hold the value in a form which no search finds.
    Header,
    /// The inside of a basic login, which is sent in base64: unchanged, without control characters (RFC 7617 §2). Passwords have other
    /// characters than those of ASCII; the search knows what servers make of them that take UTF-8 for Latin-1.
    Login,
    /// A segment of the path: percent-encoded. A value that could change the path is refused.
    Path,
    /// A part of the query: percent-encoded.
    Query,
    /// The inside of a JSON string: escaped (RFC 8259 §7).
    Json,
    /// A field of a form: percent-encoded, with a space as `%20`, which every form parser accepts.
    Form,
    /// Any other body: unchanged.
    Text,
}

/// The reason why a value cannot stand in a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// A carriage return.
    #[error("it holds a carriage return (CR)")]
    CarriageReturn,
    /// A line feed.
    #[error("it holds a line feed (LF)")]
    LineFeed,
    /// A NUL.
    #[error("it holds a NUL")]
    Nul,
    /// Another control character.
    #[error("it holds a control character")]
    Control,
    /// A character that is not ASCII.
    #[error(
        "it holds a character that is not ASCII, which servers read in different ways there; give the service a value in ASCII, \
         or send it in a basic login"
    )]
    NotAscii,
    /// One of `/ \ ? # %`.
    #[error("it holds `{0}`, which would change the path")]
    Delimiter(char),
    /// `.` alone, or `..`.
    #[error("it is or holds a segment of dots, which would change the path")]
    Dots,
    /// Not UTF-8.
    #[error("it is not UTF-8")]
    NotText,
}

impl Position {
    /// Encodes a value for this position.
    ///
    /// A path is stricter than its encoding needs: too many servers behind a proxy decode `%2F` and `%2E%2E` again.
    pub(crate) fn write(self, value: &Secret) -> Result<Zeroizing<Vec<u8>>, Unfit> {
        let octets = value.expose();
        match self {
            Self::Header | Self::Login => {
                no_controls(octets)?;
                if self == Self::Header && !octets.is_ascii() {
                    return Err(Unfit::NotAscii);
                }
                Ok(Zeroizing::new(octets.to_vec()))
            }
            Self::Path => {
                no_controls(octets)?;
                let delimiter = octets.iter().find(|octet| br"/\?#%".contains(octet));
                if let Some(octet) = delimiter {
                    return Err(Unfit::Delimiter(char::from(*octet)));
                }
                if octets == b"." || octets.windows(2).any(|pair| pair == b"..") {
                    return Err(Unfit::Dots);
                }
                Ok(percent(octets, HexCase::Upper, is_unreserved))
            }
            Self::Query | Self::Form => Ok(percent(octets, HexCase::Upper, is_unreserved)),
            Self::Json => {
                let text = std::str::from_utf8(octets).map_err(|_| Unfit::NotText)?;
                Ok(json(text, HexCase::Lower, |_| false))
            }
            Self::Text => Ok(Zeroizing::new(octets.to_vec())),
        }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Header => "a header",
            Self::Login => "a basic login",
            Self::Path => "a path",
            Self::Query => "a query",
            Self::Json => "a JSON body",
            Self::Form => "a form",
            Self::Text => "a body",
        })
    }
}

fn no_controls(octets: &[u8]) -> Result<(), Unfit> {
    let refused = octets.iter().find_map(|octet| match octet {
        b'\r' => Some(Unfit::CarriageReturn),
        b'\n' => Some(Unfit::LineFeed),
        0 => Some(Unfit::Nul),
        0x01..=0x1f | 0x7f => Some(Unfit::Control),
        _ => None,
    });
    refused.map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn write(place: Position, octets: &[u8]) -> Result<Vec<u8>, Unfit> {
        place.write(&Secret::new(octets.to_vec())).map(|written| written.to_vec())
    }

    #[test]
    fn a_header_takes_no_control() {
        assert_eq!(write(Position::Header, b"Bearer a~b%").unwrap(), b"Bearer a~b%");
        assert_eq!(write(Position::Login, "a:é".as_bytes()).unwrap(), "a:é".as_bytes());
        assert_eq!(write(Position::Header, "é".as_bytes()), Err(Unfit::NotAscii));
        for place in [Position::Header, Position::Login] {
            assert_eq!(write(place, b"a\r\nb"), Err(Unfit::CarriageReturn));
            assert_eq!(write(place, b"a\nb"), Err(Unfit::LineFeed));
            assert_eq!(write(place, b"a\0"), Err(Unfit::Nul));
            assert_eq!(write(place, b"a\tb"), Err(Unfit::Control));
            assert_eq!(write(place, b"a\x7f"), Err(Unfit::Control));
        }
    }

    #[test]
    fn a_path_takes_nothing_that_changes_it() {
        for octet in *br"/\?#%" {
            assert_eq!(write(Position::Path, &[b'a', octet]), Err(Unfit::Delimiter(char::from(octet))));
        }
        for dots in ["..", ".", "a..b", "..a", "a.."] {
            assert_eq!(write(Position::Path, dots.as_bytes()), Err(Unfit::Dots), "{dots}");
        }
        assert_eq!(write(Position::Path, b"\r"), Err(Unfit::CarriageReturn));
        assert_eq!(write(Position::Path, b"123:a.b;c d@").unwrap(), b"123%3Aa.b%3Bc%20d%40");
    }

    #[test]
    fn queries_and_forms_are_percent_encoded() {
        for place in [Position::Query, Position::Form] {
            assert_eq!(write(place, b"a+b &=c~\n").unwrap(), b"a%2Bb%20%26%3Dc~%0A");
        }
    }

    #[test]
    fn json_is_escaped_or_refused() {
        assert_eq!(
            write(Position::Json, "a\"\\/\n\u{1}é".as_bytes()).unwrap(),
            "a\\\"\\\\/\\n\\u0001é".as_bytes()
        );
        assert_eq!(write(Position::Json, b"\xff"), Err(Unfit::NotText));
    }

    proptest! {
        #[test]
        fn nothing_leaves_its_place(octets in proptest::collection::vec(any::<u8>(), 1..40)) {
            if let Ok(path) = write(Position::Path, &octets) {
                prop_assert!(path.iter().all(|o| is_unreserved(*o) || *o == b'%'));
                prop_assert!(path != b"." && path != b"..");
            }
            prop_assert!(write(Position::Query, &octets).unwrap().iter().all(|o| is_unreserved(*o) || *o == b'%'));
            if let Ok(header) = write(Position::Header, &octets) {
                prop_assert!(header.is_ascii() && !header.iter().any(u8::is_ascii_control));
            }
            prop_assert_eq!(write(Position::Text, &octets).unwrap(), octets);
        }
    }
}
