//! Spellings: the ways in which encoders write one character, plain or by an escape of JSON, JavaScript, HTML, XML or URLs.
//!
//! Encoders differ in the characters that they escape, in too many ways to list. So each character may have each of its spellings,
//! independently of the others. This module knows characters, not secrets.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::OnceLock;

use zeroize::Zeroizing;

use crate::escape::{HexCase, hex, json, percent};

/// All spellings of a character, sorted. None is shorter than the character itself, which is one of them.
pub(super) type Spellings = Cow<'static, [Box<[u8]>]>;

/// The spellings of one character, built once.
type Made = OnceLock<Box<[Box<[u8]>]>>;

/// The spellings of ASCII characters, each built on first use: needles are compared at many positions.
static ASCII: [Made; 128] = [const { OnceLock::new() }; 128];

/// Returns whether a character is a letter, a digit or usual punctuation of keys. Encoders escape these only if they escape
/// everything.
const fn is_plain(octet: u8) -> bool {
    octet.is_ascii_alphanumeric() || matches!(octet, b'-' | b'.' | b'_')
}

/// Returns the ranges of the characters with several spellings. An octet that is not UTF-8 counts as a character.
pub(super) fn variable_characters(octets: &[u8]) -> Vec<Range<usize>> {
    let mut variable = Vec::new();
    let mut at = 0;
    while let Some(first) = octets.get(at) {
        let long = match first {
            0xc2..0xe0 => 2,
            0xe0..0xf0 => 3,
            0xf0..0xf5 => 4,
            _ => 1,
        };
        let is_text = octets.get(at..at + long).is_some_and(|octets| std::str::from_utf8(octets).is_ok());
        let end = at + if is_text { long } else { 1 };
        if !is_plain(*first) {
            variable.push(at..end);
        }
        at = end;
    }
    variable
}

/// Returns the spellings of a character.
pub(super) fn of(character: &[u8]) -> Spellings {
    match character {
        [octet] if octet.is_ascii() => {
            Cow::Borrowed(ASCII[usize::from(*octet)].get_or_init(|| all(character).into()))
        }
        _ => Cow::Owned(all(character)),
    }
}

fn all(octets: &[u8]) -> Vec<Box<[u8]>> {
    let mut all: Vec<Box<[u8]>> = vec![octets.into()];
    for case in HexCase::BOTH {
        all.push(percent(octets, case, |_| false).as_slice().into());
        if let Ok(text) = std::str::from_utf8(octets) {
            all.push(json(text, case, |_| true).as_slice().into());
            all.push(json(text, case, |_| false).as_slice().into());
        }
        // JavaScript strings (ECMA-262 §12.9.4), and logs, which escape each octet.
        all.push(octets.chunks(1).flat_map(|it| [b"\\x", hex(it, case).as_slice()].concat()).collect());
    }
    let text = std::str::from_utf8(octets).unwrap_or_default();
    for character in text.chars() {
        let number = u32::from(character);
        // HTML §13.1.4. PHP writes `&#039;`; others pad to four digits.
        let numbers = [
            format!("&#{number};"),
            format!("&#{number:03};"),
            format!("&#{number:04};"),
            format!("&#x{number:x};"),
            format!("&#x{number:X};"),
            format!("&#x{number:04x};"),
            format!("&#x{number:04X};"),
        ];
        all.extend(numbers.map(|number| number.into_bytes().into()));
        let others: &[&[u8]] = match character {
            // PHP and JavaScript; URL-encoded forms.
            '/' => &[b"\\/"],
            '\'' => &[b"\\'"],
            ' ' => &[b"+"],
            _ => &[],
        };
        all.extend(others.iter().map(|other| (*other).into()));
        all.extend(names(character).iter().map(|name| format!("&{name};").into_bytes().into()));
    }
    all.sort_unstable();
    all.dedup();
    all
}

/// Returns a text with all its punctuation written by the names of HTML, `.` and `_` too, as some encoders do: by the first name of each
/// character, and by the last; none if it has neither of the two, and is a spelling so.
pub(super) fn by_names(text: &[u8]) -> impl Iterator<Item = Zeroizing<Vec<u8>>> {
    let is_spelling = !text.iter().any(|octet| matches!(octet, b'.' | b'_'));
    let choices: [Choose; 2] = [|names| names.first().copied(), |names| names.last().copied()];
    choices.into_iter().filter(move |_| !is_spelling).map(|choose| by_name(text, choose))
}

/// Which of the names of a character is written.
type Choose = fn(&[&'static str]) -> Option<&'static str>;

fn by_name(text: &[u8], choose: Choose) -> Zeroizing<Vec<u8>> {
    let name = |octet: &u8| match octet {
        b'.' => Some("period"),
        b'_' => Some("lowbar"),
        _ => choose(names(char::from(*octet))),
    };
    let length = text.iter().map(|octet| name(octet).map_or(1, |name| name.len() + 2)).sum();
    // Allocated at full size: a buffer that grows leaves copies behind.
    let mut written = Zeroizing::new(Vec::with_capacity(length));
    for octet in text {
        match name(octet) {
            Some(name) => [b"&", name.as_bytes(), b";"].into_iter().for_each(|part| written.extend(part)),
            None => written.push(*octet),
        }
    }
    written
}

/// Returns the names by which HTML refers to a character of ASCII (HTML §13.5), those of XML 1.0 §4.6 among them. Of several, those
/// that encoders write, the one of npm's `entities` first.
const fn names(character: char) -> &'static [&'static str] {
    match character {
        '\t' => &["Tab"],
        '\n' => &["NewLine"],
        '!' => &["excl"],
        '"' => &["quot"],
        '#' => &["num"],
        '$' => &["dollar"],
        '%' => &["percnt"],
        '&' => &["amp"],
        '\'' => &["apos"],
        '(' => &["lpar"],
        ')' => &["rpar"],
        '*' => &["ast"],
        '+' => &["plus"],
        ',' => &["comma"],
        '/' => &["sol"],
        ':' => &["colon"],
        ';' => &["semi"],
        '<' => &["lt"],
        '=' => &["equals"],
        '>' => &["gt"],
        '?' => &["quest"],
        '@' => &["commat"],
        '[' => &["lbrack", "lsqb"],
        '\\' => &["bsol"],
        ']' => &["rbrack", "rsqb"],
        '^' => &["Hat"],
        '`' => &["DiacriticalGrave", "grave"],
        '{' => &["lbrace", "lcub"],
        '|' => &["verbar", "vert"],
        '}' => &["rbrace", "rcub"],
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(character: &str) -> Vec<String> {
        of(character.as_bytes()).iter().map(|form| String::from_utf8(form.to_vec()).unwrap()).collect()
    }

    #[test]
    fn a_character_is_written_in_every_way() {
        assert_eq!(
            texts("<"),
            [
                "%3C", "%3c", "&#0060;", "&#060;", "&#60;", "&#x003C;", "&#x003c;", "&#x3C;", "&#x3c;",
                "&lt;", "<", "\\u003C", "\\u003c", "\\x3C", "\\x3c"
            ]
        );
        assert_eq!(
            texts("é"),
            [
                "%C3%A9",
                "%c3%a9",
                "&#0233;",
                "&#233;",
                "&#x00E9;",
                "&#x00e9;",
                "&#xE9;",
                "&#xe9;",
                "\\u00E9",
                "\\u00e9",
                "\\xC3\\xA9",
                "\\xc3\\xa9",
                "é"
            ]
        );
        assert!(["\\\\", "\\u005c", "%5C"].iter().all(|form| texts("\\").iter().any(|known| known == form)));
        assert_eq!(of(b"\xff").concat(), b"%FF%ff\\xFF\\xff\xff");
    }

    #[test]
    fn no_way_is_shorter_than_the_character() {
        for character in (' '..='\u{7f}').chain(['\0', '\n', 'é', '\u{2028}', '😀', '\u{10ffff}']) {
            let plain = character.to_string();
            let all = of(plain.as_bytes());
            assert!(all.iter().all(|form| form.len() >= plain.len()), "{character}");
            assert!(all.iter().any(|form| **form == *plain.as_bytes()), "{character}");
        }
    }

    #[test]
    fn no_way_has_what_parts_a_text_unless_the_character_does() {
        use crate::scrub::separators::Separator;
        for character in ('\0'..='\u{ff}').chain(['\u{2028}', '😀', '\u{10ffff}']) {
            let plain = character.to_string();
            let own: Vec<_> = plain.bytes().filter_map(Separator::of).collect();
            let ways = of(plain.as_bytes());
            let others = ways.iter().flat_map(|way| way.iter()).filter_map(|octet| Separator::of(*octet));
            assert!(others.clone().all(|other| own.contains(&other)), "{character:?}");
        }
    }

    #[test]
    fn what_is_no_text_is_taken_octet_by_octet() {
        assert_eq!(variable_characters("a-é+😀".as_bytes()), [2..4, 4..5, 5..9]);
        assert_eq!(
            variable_characters(b"\xe2\x80a\xa9\xc3\xa9\xf0\x9f"),
            [0..1, 1..2, 3..4, 4..6, 6..7, 7..8]
        );
        assert!(variable_characters(b"sk-live_0.9").is_empty());
    }
}
