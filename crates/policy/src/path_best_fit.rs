//! What the characters of a path are to a server that maps them to ASCII: it normalises text (NFKC), or names files in a code
//! page of Windows and takes for each character the one that fits best.
//!
//! Sources: UnicodeData.txt (NFKC), and for code pages 1252, 932 and 949 unicode.org/Public/MAPPINGS/VENDORS/MICSFT/WindowsBestFit.

use std::iter::repeat_n;

/// Replaces each character that some server takes for ASCII where paths are cut or compared. Octets that are not UTF-8 stay.
pub(crate) fn narrowed(octets: Vec<u8>) -> Vec<u8> {
    if octets.is_ascii() {
        return octets;
    }
    let mut narrowed = Vec::with_capacity(octets.len());
    for chunk in octets.utf8_chunks() {
        narrowed.extend_from_slice(chunk.valid().chars().flat_map(narrow).collect::<String>().as_bytes());
        narrowed.extend_from_slice(chunk.invalid());
    }
    narrowed
}

fn narrow(wide: char) -> impl Iterator<Item = char> {
    let (narrow, times) = match wide {
        '\u{ff01}'..='\u{ff5e}' => (char::from_u32(u32::from(wide) - 0xfee0).unwrap_or(wide), 1),
        '\u{2024}' | '\u{fe52}' => ('.', 1),
        '\u{2025}' | '\u{fe30}' => ('.', 2),
        '\u{2026}' | '\u{fe19}' => ('.', 3),
        '\u{2044}' | '\u{2215}' => ('/', 1),
        // A backslash in code pages only, and so a separator: set minus in 1252, yen in 932, won in 949.
        '\u{2216}' | '\u{a5}' | '\u{ffe5}' | '\u{20a9}' | '\u{ffe6}' => ('/', 1),
        '\u{fe68}' => ('\\', 1),
        '\u{37e}' | '\u{fe14}' | '\u{fe54}' => (';', 1),
        '\u{fe16}' | '\u{fe56}' => ('?', 1),
        '\u{fe5f}' => ('#', 1),
        '\u{66a}' | '\u{fe6a}' => ('%', 1),
        '\u{589}' | '\u{2236}' | '\u{fe13}' | '\u{fe55}' => (':', 1),
        '\u{fe69}' => ('$', 1),
        '\u{a0}' | '\u{2000}'..='\u{200a}' | '\u{202f}' | '\u{205f}' | '\u{3000}' => (' ', 1),
        _ => (wide, 1),
    };
    repeat_n(narrow, times)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_forms_become_ascii_and_names_stay() {
        for (wide, narrow) in [
            ("／⁄∕∖¥￥₩￦", "////////"),
            ("＼﹨", "\\\\"),
            ("．․﹒‥︰…︙", "...........\u{2e}\u{2e}"),
            ("；\u{37e}︔﹔？︖﹖＃﹟", ";;;;???##"),
            ("％﹪٪：︓﹕∶։＄﹩", "%%%:::::$$"),
            ("a\u{a0}b\u{2003}c\u{3000}", "a b c "),
            ("ａＺ０～", "aZ0~"),
            ("名前。、・café ｶﾅ ·÷", "名前。、・café ｶﾅ ·÷"),
        ] {
            assert_eq!(String::from_utf8(narrowed(wide.into())).unwrap(), narrow, "{wide}");
        }
        assert_eq!(narrowed(b"\xff\xef\xbc\x8f\xef\xbc".to_vec()), b"\xff/\xef\xbc");
    }
}
