//! Encodings of octets: percent-encoding, JSON strings, hexadecimal.
//!
//! Injection into requests and the search of responses share these functions, so an echo of a sent value is always found. Every
//! result is wiped on drop, and its buffer is allocated at full size: a buffer that grows leaves copies behind.

use zeroize::Zeroizing;

/// The case of hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HexCase {
    Lower,
    Upper,
}

impl HexCase {
    pub(crate) const BOTH: [Self; 2] = [Self::Lower, Self::Upper];

    fn push(self, octet: u8, out: &mut Vec<u8>) {
        let digits = match self {
            Self::Lower => b"0123456789abcdef",
            Self::Upper => b"0123456789ABCDEF",
        };
        out.extend([digits[usize::from(octet >> 4)], digits[usize::from(octet & 0xf)]]);
    }
}

/// Returns whether a character never needs percent-encoding: RFC 3986 §2.3.
pub(crate) const fn is_unreserved(octet: u8) -> bool {
    octet.is_ascii_alphanumeric() || matches!(octet, b'-' | b'.' | b'_' | b'~')
}

/// Encodes each octet as two hexadecimal digits.
pub(crate) fn hex(value: &[u8], case: HexCase) -> Zeroizing<Vec<u8>> {
    each(value, 2, |octet, out| case.push(octet, out))
}

/// Percent-encodes all octets but those to keep: RFC 3986 §2.1.
pub(crate) fn percent(value: &[u8], case: HexCase, keep: impl Fn(u8) -> bool) -> Zeroizing<Vec<u8>> {
    each(value, 3, |octet, out| {
        if keep(octet) {
            out.push(octet);
        } else {
            out.push(b'%');
            case.push(octet, out);
        }
    })
}

/// Escapes a text for a JSON string: the escapes that RFC 8259 §7 demands, and `\uXXXX` for the characters to spell out.
pub(crate) fn json(text: &str, case: HexCase, spell_out: impl Fn(char) -> bool) -> Zeroizing<Vec<u8>> {
    // The longest escape: one octet of ASCII becomes six.
    let mut out = Zeroizing::new(Vec::with_capacity(text.len() * 6));
    for character in text.chars() {
        let short = match character {
            _ if spell_out(character) => None,
            '"' => Some(b'"'),
            '\\' => Some(b'\\'),
            '\u{8}' => Some(b'b'),
            '\u{c}' => Some(b'f'),
            '\n' => Some(b'n'),
            '\r' => Some(b'r'),
            '\t' => Some(b't'),
            _ => None,
        };
        if let Some(letter) = short {
            out.extend([b'\\', letter]);
        } else if character < ' ' || spell_out(character) {
            for unit in character.encode_utf16(&mut [0; 2]) {
                out.extend(b"\\u");
                unit.to_be_bytes().iter().for_each(|octet| case.push(*octet, &mut out));
            }
        } else {
            out.extend(character.encode_utf8(&mut [0; 4]).as_bytes());
        }
    }
    out
}

/// Encodes each octet as at most `widest` octets.
pub(crate) fn each(value: &[u8], widest: usize, write: impl Fn(u8, &mut Vec<u8>)) -> Zeroizing<Vec<u8>> {
    let mut out = Zeroizing::new(Vec::with_capacity(value.len() * widest));
    value.iter().for_each(|octet| write(*octet, &mut out));
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn percent_keeps_what_it_is_told_to() {
        assert_eq!(percent(b"a/b~\xff", HexCase::Upper, is_unreserved).as_slice(), b"a%2Fb~%FF");
        assert_eq!(percent(b"a/", HexCase::Lower, |_| false).as_slice(), b"%61%2f");
    }

    #[test]
    fn json_spells_out_by_units_of_utf16() {
        assert_eq!(json("a\"é😀", HexCase::Lower, |_| true).as_slice(), br"\u0061\u0022\u00e9\ud83d\ude00");
        assert_eq!(json("é😀", HexCase::Lower, |_| false).as_slice(), "é😀".as_bytes());
        assert_eq!(json("\u{1f}\u{7f}", HexCase::Upper, |_| false).as_slice(), b"\\u001F\x7f");
    }

    proptest! {
        #[test]
        fn json_reads_back(text in any::<String>(), all in any::<bool>()) {
            let written = [b"\"", json(&text, HexCase::Lower, |_| all).as_slice(), b"\""].concat();
            prop_assert_eq!(serde_json::from_slice::<String>(&written).unwrap(), text);
        }

        #[test]
        fn the_room_is_reserved_at_once(text in any::<String>()) {
            let length = text.len();
            prop_assert!(json(&text, HexCase::Lower, |_| true).len() <= length * 6);
            prop_assert_eq!(percent(text.as_bytes(), HexCase::Lower, |_| false).len(), length * 3);
            prop_assert_eq!(hex(text.as_bytes(), HexCase::Upper).len(), length * 2);
        }
    }
}
