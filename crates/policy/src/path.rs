//! Request paths, and the check that makes a path prefix meaningful: however a server reads the path, it cannot climb out (R7).

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use crate::denial::{Denial, Guard};

const HOST_AT_BEGINNING: &str = "some servers take what follows `//` at its beginning for a host";

/// How many octets in total are decoded, level by level, in search of a hidden dot segment before the path is refused.
const MOST_DECODED: usize = 1 << 20;

/// A request path as it was written: not decoded, not normalised, never empty.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Path(Arc<str>);

/// Whether a rule lets `%2F` stand inside a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) enum EncodedSlash {
    /// Refused: most servers take it for a separator.
    #[default]
    Refuse,
    /// Allowed, for services that need it. Dot segments are still refused after decoding.
    Allow,
}

impl Path {
    pub(crate) fn new(raw: &str) -> Self {
        Self(if raw.is_empty() { "/".into() } else { raw.into() })
    }

    /// Returns the path, octet for octet.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns what lenient servers may take the path for, without case: decoded; with repeated slashes collapsed; and read as
    /// leniently as any server does, without and with the streams of NTFS. Each of them also without a host at its beginning.
    pub(crate) fn readings(&self) -> Vec<String> {
        let read = |text: &str| {
            let (whole, cut) = (lenient(text, |name| name), lenient(text, without_stream));
            [text.to_owned(), collapsed(text), collapsed(&whole), collapsed(&cut)]
        };
        let beginnings = self.beginnings();
        let behind_host = beginnings.iter().filter_map(|text| behind_host(text)).flat_map(read);
        read(&beginnings[0]).into_iter().chain(behind_host).collect()
    }

    /// Returns the readings of which each may begin with `//`, as servers have them before they collapse slashes.
    fn beginnings(&self) -> [String; 3] {
        let folded = self.folded();
        let (whole, cut) = (lenient(&folded, |name| name), lenient(&folded, without_stream));
        [folded, whole, cut]
    }

    /// Returns the path fully decoded, without case, with repeated slashes collapsed.
    pub(crate) fn plain(&self) -> String {
        collapsed(&self.folded())
    }

    /// Returns the path fully decoded, without case.
    fn folded(&self) -> String {
        let mut decoded = self.0.as_bytes().to_vec();
        while let Ok(Some(next)) = decode(&decoded, EncodedSlash::Allow) {
            decoded = next;
        }
        without_case(&narrowed(&String::from_utf8_lossy(&decoded)))
    }

    /// Refuses a path that some server could take for one elsewhere, be it by its own spelling of `.`, `/` or `\`, or because it is not
    /// plain where a host at its beginning would end.
    pub(crate) fn check_no_doubt(&self) -> Result<(), Denial> {
        self.check_cannot_climb(EncodedSlash::Allow)?;
        let beginnings = self.beginnings();
        check_level(beginnings[0].as_bytes())?;
        let slashes = |text: &str| text.matches('/').count();
        let has_hidden_slash = slashes(&beginnings[0]) != slashes(&self.0);
        let is_doubtful = |rest: &str| has_hidden_slash || rest.starts_with("//");
        match beginnings.iter().filter_map(|text| behind_host(text)).any(is_doubtful) {
            true => Err(refuse(HOST_AT_BEGINNING)),
            false => Ok(()),
        }
    }

    /// Refuses a path that an allow rule could not be held to: to some servers it is only what follows a host at its beginning.
    pub(crate) fn check_no_host(&self) -> Result<(), Denial> {
        match self.beginnings().iter().any(|text| behind_host(text).is_some()) {
            true => Err(refuse(HOST_AT_BEGINNING)),
            false => Ok(()),
        }
    }

    /// Returns whether only an encoded `/` is in the way of a rule: one with `encoded_slash` may name the path.
    #[must_use]
    pub fn has_encoded_slash(&self) -> bool {
        self.check_cannot_climb(EncodedSlash::Refuse).is_err()
            && self.check_cannot_climb(EncodedSlash::Allow).is_ok()
    }

    /// Refuses a path that some server could take for another place: dot segments at any level of decoding (also
    /// before a `;` parameter), separators that appear by decoding, control octets, and text that is not UTF-8.
    pub(crate) fn check_cannot_climb(&self, encoded_slash: EncodedSlash) -> Result<(), Denial> {
        let mut level = Cow::Borrowed(self.0.as_bytes());
        let mut decoded = 0;
        while decoded < MOST_DECODED {
            check_level(&level)?;
            let Some(next) = decode(&level, encoded_slash)? else { return Ok(()) };
            if decoded == 0 && std::str::from_utf8(&next).is_err() {
                return Err(refuse("it is not UTF-8 once decoded"));
            }
            decoded += next.len().max(1);
            level = Cow::Owned(next);
        }
        Err(refuse("it is encoded too many times over"))
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Replaces the wide forms of ASCII (U+FF01 to U+FF5E) and the blank that breaks no line by what they are to a server that maps characters
/// to their best fit.
fn narrowed(text: &str) -> String {
    let narrow = |c: char| match c {
        '\u{ff01}'..='\u{ff5e}' => char::from_u32(u32::from(c) - 0xfee0).unwrap_or(c),
        '\u{a0}' => ' ',
        c => c,
    };
    text.chars().map(narrow).collect()
}

/// Folds the case of letters as any server may: those that share a small or a capital letter are one (`ſ` and `s`, `ı` and `i`, `ς` and
/// `σ`, `ẞ` and `ß`), and so are `İ` and `i`.
fn without_case(text: &str) -> String {
    let small = text.chars().flat_map(char::to_lowercase);
    let folded: String = small.flat_map(char::to_uppercase).flat_map(char::to_lowercase).collect();
    // U+0130 in lower case, SpecialCasing.txt of Unicode.
    folded.replace("i\u{307}", "i")
}

fn collapsed(path: &str) -> String {
    let mut path = path.to_owned();
    while path.contains("//") {
        path = path.replace("//", "/");
    }
    path
}

/// Returns the path that is left where a server takes what follows `//` for a host (RFC 3986 §4.2), as `java.net.URI`, `URL` of WHATWG and
/// `parse_url` of PHP do.
fn behind_host(path: &str) -> Option<&str> {
    let host = path.strip_prefix("//")?.trim_start_matches('/');
    Some(host.find('/').map_or("/", |end| &host[end..]))
}

/// Returns the most lenient reading of a decoded path: cut where a query or a fragment would begin, without segment parameters and the
/// dots and blanks that some servers drop at a segment's end. `named` is what a name is taken for.
fn lenient(decoded: &str, named: fn(&str) -> &str) -> String {
    let path = decoded.split(['?', '#']).next().unwrap_or_default();
    let name = |segment: &str| {
        let name = segment.split(';').next().unwrap_or_default();
        named(name).trim_end_matches([' ', '.']).to_owned()
    };
    path.split('/').map(name).collect::<Vec<_>>().join("/")
}

/// Cuts a name at the type of a stream: to NTFS `name::$DATA` is the file `name`, and `name:$I30:$INDEX_ALLOCATION` the folder.
fn without_stream(name: &str) -> &str {
    name.find(":$").map_or(name, |at| name[..at].trim_end_matches(':'))
}

fn check_level(path: &[u8]) -> Result<(), Denial> {
    if path.iter().any(|b| *b < 0x20 || *b == 0x7f || *b == b'\\') {
        return Err(refuse("it holds a control octet or a backslash"));
    }
    let climbs = path.split(|b| *b == b'/').any(|segment| {
        // Some servers cut a decoded path where a query or a fragment would begin, and drop trailing blanks.
        let name = segment.split(|b| b";?#".contains(b)).next().unwrap_or(segment).trim_ascii_end();
        name == b"." || name == b".."
    });
    if climbs { Err(refuse("it holds a `.` or `..` segment")) } else { Ok(()) }
}

/// Decodes each `%XX` once. Returns `None` if there is nothing to decode.
fn decode(path: &[u8], encoded_slash: EncodedSlash) -> Result<Option<Vec<u8>>, Denial> {
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
                return Err(refuse("a `/` appears in it by decoding; a rule may say `encoded_slash = true`"));
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

fn refuse(why: &str) -> Denial {
    Denial::new(Guard::Path, format!("the path could lead elsewhere: {why}"))
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
        ] {
            assert!(Path::new(path).check_cannot_climb(EncodedSlash::Refuse).is_err(), "{path}");
        }
        let (deep, deepest) =
            (format!("/v1/%{}41", "25".repeat(200)), format!("/v1/%{}41", "25".repeat(4000)));
        assert!(Path::new(&deep).check_cannot_climb(EncodedSlash::Refuse).is_ok());
        assert!(Path::new(&deepest).check_cannot_climb(EncodedSlash::Refuse).is_err());
        for path in ["/v1/...", "/v1/a;b=..x", "/v1/%41", "/v1/%c3%a9", "/v1/..a", "/v1//x", "/", "/v1/%25"] {
            assert!(Path::new(path).check_cannot_climb(EncodedSlash::Refuse).is_ok(), "{path}");
        }
    }

    #[test]
    fn the_most_lenient_reading_drops_what_some_reader_drops() {
        for (path, reading) in [
            ("/", "/"),
            ("/Exact", "/exact"),
            ("/exact;a=b", "/exact"),
            ("/a;v=1/b;c", "/a/b"),
            ("/;/a", "/a"),
            ("//a///b/", "/a/b/"),
            ("/exact%3fx", "/exact"),
            ("/exact%2523x", "/exact"),
            ("/exact%20", "/exact"),
            ("/a./b. .", "/a/b"),
            ("/a%3bv/b", "/a/b"),
            ("/%c5%bfettings", "/settings"),
            ("/adm%C4%B1n", "/admin"),
            ("/stra%C3%9Fe", "/strasse"),
            ("/stra%E1%BA%9Ee", "/strasse"),
            ("/ADM%c4%b0N", "/admin"),
            ("/%CE%91%CE%A3", "/\u{3b1}\u{3c3}"),
            ("/%e2%84%aaey", "/key"),
            ("/a::$INDEX_ALLOCATION/b", "/a/b"),
            ("/a:$i30:$INDEX_ALLOCATION/b::%24DATA", "/a/b"),
            ("/a:b/c:", "/a:b/c:"),
            ("/a%ef%bc%8fb", "/a/b"),
            ("/%EF%BD%81b%ef%bc%9bc", "/ab"),
            ("/a%c2%a0/b%c2%a0", "/a/b"),
        ] {
            assert_eq!(Path::new(path).readings()[3], reading, "{path}");
        }
    }

    #[test]
    fn an_encoded_slash_can_be_let_through_but_not_a_hidden_climb() {
        assert!(Path::new("/p/group%2Fproject").check_cannot_climb(EncodedSlash::Allow).is_ok());
        assert!(Path::new("/p/a%2F..%2Fb").check_cannot_climb(EncodedSlash::Allow).is_err());
        assert!(Path::new("/p/a%252F..").check_cannot_climb(EncodedSlash::Allow).is_err());
    }
}
