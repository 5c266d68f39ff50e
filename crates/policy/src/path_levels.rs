//! How a path reads at each level of its encoding, and what no level may hold.

use std::borrow::Cow;

use crate::path_best_fit::{BACKSLASH_OF_CODE_PAGES, narrowed};

/// How many times over a path may be encoded. Each level is decoded and looked at.
const MOST_LEVELS: usize = 8;

/// Why a path could lead elsewhere.
pub(crate) type Why = &'static str;

const CLIMBS_WIDE: Why = "some servers read wide characters in it as a `.` or `..` segment";
const TOO_MANY_LEVELS: Why = "it is encoded too many times over";

/// Whether a rule lets `%2F` stand inside a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) enum EncodedSlash {
    /// Refused: most servers take it for a separator.
    #[default]
    Refuse,
    /// Allowed, for services that need it. Dot segments are still refused after decoding.
    Allow,
}

/// Refuses a path that some server could take for another place: dot segments at any level of decoding (also before a `;` parameter, and
/// in wide forms), separators that appear by decoding, control octets, and text that is not UTF-8. Other wide forms may stand in a name.
pub(crate) fn check_levels(path: &str, encoded_slash: EncodedSlash) -> Result<(), Why> {
    let mut level = Cow::Borrowed(path.as_bytes());
    for levels in 0..=MOST_LEVELS {
        check_level(&level)?;
        let Some(next) = decode(&level, encoded_slash)? else {
            return if level.is_ascii() { Ok(()) } else { check_wide(&decoded(path)) };
        };
        if levels == 0 && std::str::from_utf8(&next).is_err() {
            return Err("it is not UTF-8 once decoded");
        }
        level = Cow::Owned(next);
    }
    Err(TOO_MANY_LEVELS)
}

/// Decodes a text to its last level, each level with what its wide characters are to a server that maps them to ASCII.
pub(crate) fn decoded(text: &str) -> String {
    let mut level = narrowed(text.as_bytes().to_vec());
    for _ in 0..MOST_LEVELS {
        let Ok(Some(next)) = decode(&level, EncodedSlash::Allow) else { break };
        level = narrowed(next);
    }
    String::from_utf8_lossy(&level).into_owned()
}

/// Returns a decoded text with a `/` for each character that is a backslash in code pages only.
pub(crate) fn separated(decoded: &str) -> String {
    decoded.replace(BACKSLASH_OF_CODE_PAGES, "/")
}

/// Refuses what no level of a path may hold.
fn check_level(path: &[u8]) -> Result<(), Why> {
    if path.iter().any(|b| *b < 0x20 || *b == 0x7f || *b == b'\\') {
        return Err("it holds a control octet or a backslash");
    }
    if climbs(path) { Err("it holds a `.` or `..` segment") } else { Ok(()) }
}

/// Refuses what no path that is [decoded] with its wide characters may be.
fn check_wide(decoded: &str) -> Result<(), Why> {
    if climbs(separated(decoded).as_bytes()) {
        return Err(CLIMBS_WIDE);
    }
    match decode(decoded.as_bytes(), EncodedSlash::Allow)? {
        Some(_) => Err(TOO_MANY_LEVELS),
        None => Ok(()),
    }
}

/// Whether a segment of a path is `.` or `..` to some server.
fn climbs(path: &[u8]) -> bool {
    path.split(|b| b"/\\".contains(b)).any(|segment| {
        // Some servers drop control octets, or end a name at one.
        let text = segment.split(u8::is_ascii_control).find(|part| !part.is_empty()).unwrap_or_default();
        // Some servers cut a decoded path where a query or a fragment would begin, and drop trailing blanks.
        let name = text.split(|b| b";?#".contains(b)).next().unwrap_or(text).trim_ascii_end();
        name == b"." || name == b".."
    })
}

/// Decodes each `%XX` once. Returns `None` if there is nothing to decode.
fn decode(path: &[u8], encoded_slash: EncodedSlash) -> Result<Option<Vec<u8>>, Why> {
    if !path.contains(&b'%') {
        return Ok(None);
    }
    let mut out = Vec::with_capacity(path.len());
    let mut changed = false;
    let mut at = 0;
    while at < path.len() {
        let octet = (path[at] == b'%').then(|| path.get(at + 1..at + 3).and_then(hex_octet)).flatten();
        match octet {
            Some(b'/') if encoded_slash == EncodedSlash::Refuse => {
                return Err("a `/` appears in it by decoding; a rule may say `encoded_slash = true`");
            }
            Some(octet) => {
                out.push(octet);
                changed = true;
                at += 3;
            }
            None => {
                out.push(path[at]);
                at += 1;
            }
        }
    }
    Ok(changed.then_some(out))
}

fn hex_octet(digits: &[u8]) -> Option<u8> {
    let text = std::str::from_utf8(digits).ok()?;
    let plain = digits.iter().all(u8::is_ascii_hexdigit);
    if plain { u8::from_str_radix(text, 16).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn climbing_is_refused_at_every_level() {
        for path in [
            "/v1/..",
            "/v1/../x",
            "/v1/.",
            "/v1/%2e%2e/x",
            "/v1/%252e%252e/x",
            "/v1/..;a=b/x",
            "/v1/%2e%2e%3bx/y",
            "/v1/a%2f..",
            "/v1/a%5cb",
            "/v1/%00",
            "/v1/%0d%0a",
            "/v1/%ff",
            "/v1/%252f",
            "/v1/.%2e",
            "/v1/..%3fx",
            "/v1/..%23x",
            "/v1/..%20/x",
            "/v1/%252e%252e%253f",
            "/v1/%EF%BC%8E%ef%bc%8e/x",
            "/v1/.%EF%BC%8E",
            "/v1/%E2%80%A5/x",
            "/v1/..%EF%BC%8Fx",
            "/v1/%E2%80%A4%EF%B9%92%E2%81%84x",
            "/v1/..%E2%88%95x",
            "/v1/..%EF%BC%BCx",
            "/v1/..%E2%88%96x",
            "/v1/x%C2%A5..",
            "/v1/..%E2%82%A9x",
            "/v1/..%EF%BC%9B/x",
            "/v1/..%EF%BC%9Fx",
            "/v1/..%E3%80%80/x",
            "/v1/..%25EF%25BC%258Fx",
            "/v1/..%25EF%BC%25258Fx",
            "/v1/%EF%BC%852e%EF%BC%8E/x",
            "/v1/%EF%BC%85%EF%BC%92%EF%BC%A5./x",
            "/v1/..%EF%BC%8500/x",
            "/v1/..%EF%BC%8500.txt",
            "/v1/%EF%BC%850A..",
            "/v1/.%EF%BC%8509./x",
            "/v1/..%E2%81%87/x",
            "/v1/..%E2%81%88",
        ] {
            assert!(check_levels(path, EncodedSlash::Refuse).is_err(), "{path}");
        }
        for path in ["/v1/...", "/v1/a;b=..x", "/v1/%41", "/v1/%c3%a9", "/v1/..a", "/v1//x", "/", "/v1/%25"] {
            assert!(check_levels(path, EncodedSlash::Refuse).is_ok(), "{path}");
        }
    }

    #[test]
    fn a_name_with_wide_characters_is_no_climb() {
        for name in [
            "名前．txt",
            "名前／１",
            "．．名前",
            "‥名前",
            "……",
            "１０％１０月",
            "¥100",
            "a∖b",
            "½",
            "é；v",
            "《..》",
            "·",
            "。。",
        ] {
            let encoded: String = name.bytes().map(|octet| format!("%{octet:02X}")).collect();
            assert_eq!(check_levels(&format!("/v1/{encoded}/x"), EncodedSlash::Refuse), Ok(()), "{name}");
        }
    }

    #[test]
    fn an_encoded_slash_can_be_let_through_but_not_a_hidden_climb() {
        assert!(check_levels("/p/group%2Fproject", EncodedSlash::Allow).is_ok());
        assert!(check_levels("/p/a%2F..%2Fb", EncodedSlash::Allow).is_err());
        assert!(check_levels("/p/a%252F..", EncodedSlash::Allow).is_err());
    }

    #[test]
    fn a_path_is_decoded_eight_times_and_no_more() {
        let encoded = |levels: usize| format!("/v1/%{}41", "25".repeat(levels - 1));
        assert_eq!(decoded(&encoded(8)), "/v1/A");
        assert_eq!(check_levels(&encoded(8), EncodedSlash::Refuse), Ok(()));
        for levels in [9, 200, 4000] {
            let refused = check_levels(&encoded(levels), EncodedSlash::Allow);
            assert_eq!(refused, Err(TOO_MANY_LEVELS), "{levels}");
        }
        // A wide `%` opens levels of its own.
        let wide = |levels: usize| format!("/v1/%EF%BC%85{}41", "25".repeat(levels - 1));
        assert_eq!(check_levels(&wide(7), EncodedSlash::Refuse), Ok(()));
        for levels in [8, 200, 4000] {
            assert_eq!(check_levels(&wide(levels), EncodedSlash::Refuse), Err(TOO_MANY_LEVELS), "{levels}");
        }
    }
}
