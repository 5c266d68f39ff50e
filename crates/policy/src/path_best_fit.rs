//! What the signs of a path are to a server that maps them to ASCII: it normalises text (NFKC), or names files in a code page of Windows
//! and takes for each character the one that fits best. Of letters and digits only the full-width ones are here: no `²`, `ⓐ`, `ā` or `½`.
//!
//! Sources: UnicodeData.txt (NFKC), and for code page 1252 unicode.org/Public/MAPPINGS/VENDORS/MICSFT/WindowsBestFit. That code pages 932
//! and 949 take a yen and a won for a backslash is as their author describes it; their tables were not compared.

/// What a backslash in code pages only is narrowed to. It cuts a path as any separator does, and yet no host begins at it.
pub(crate) const BACKSLASH_OF_CODE_PAGES: char = '\u{2216}';

/// Replaces each sign and full-width form that some server takes for ASCII where paths are cut or compared. Octets that are not UTF-8 stay.
pub(crate) fn narrowed(octets: Vec<u8>) -> Vec<u8> {
    if octets.is_ascii() {
        return octets;
    }
    let mut narrowed = Vec::with_capacity(octets.len());
    for chunk in octets.utf8_chunks() {
        for wide in chunk.valid().chars() {
            match narrow(wide) {
                Some(narrow) => narrowed.extend_from_slice(narrow.as_bytes()),
                None => narrowed.extend_from_slice(full_width(wide).encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
        narrowed.extend_from_slice(chunk.invalid());
    }
    narrowed
}

/// Returns what a sign is in ASCII.
fn narrow(sign: char) -> Option<&'static str> {
    Some(match sign {
        '\u{2024}' | '\u{fe52}' => ".",
        '\u{2025}' | '\u{fe30}' => "..",
        '\u{2026}' | '\u{fe19}' => "...",
        '\u{2044}' | '\u{2215}' => "/",
        // Set minus in 1252, yen in 932, won in 949.
        BACKSLASH_OF_CODE_PAGES | '\u{a5}' | '\u{ffe5}' | '\u{20a9}' | '\u{ffe6}' => "\u{2216}",
        '\u{fe68}' => "\\",
        '\u{37e}' | '\u{fe14}' | '\u{fe54}' => ";",
        '\u{fe16}' | '\u{fe56}' => "?",
        '\u{2047}' => "??",
        '\u{2048}' => "?!",
        '\u{2049}' => "!?",
        '\u{fe5f}' => "#",
        '\u{66a}' | '\u{fe6a}' => "%",
        '\u{589}' | '\u{2236}' | '\u{fe13}' | '\u{fe55}' => ":",
        '\u{fe69}' => "$",
        '\u{a0}' | '\u{2000}'..='\u{200a}' | '\u{202f}' | '\u{205f}' | '\u{3000}' => " ",
        _ => return None,
    })
}

/// Returns a full-width character in ASCII, and any other as it is.
fn full_width(wide: char) -> char {
    match wide {
        '\u{ff01}'..='\u{ff5e}' => char::from_u32(u32::from(wide) - 0xfee0).unwrap_or(wide),
        _ => wide,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_forms_become_ascii_and_names_stay() {
        for (wide, narrow) in [
            ("／⁄∕∖¥￥₩￦", "///∖∖∖∖∖"),
            ("＼﹨", "\\\\"),
            ("．․﹒‥︰…︙", "...........\u{2e}\u{2e}"),
            ("；\u{37e}︔﹔？︖﹖＃﹟", ";;;;???##"),
            ("⁇⁈⁉", "???!!?"),
            ("％﹪٪：︓﹕∶։＄﹩", "%%%:::::$$"),
            ("a\u{a0}b\u{2003}c\u{3000}", "a b c "),
            ("ａＺ０～", "aZ0~"),
            ("名前。、・café ｶﾅ ·÷²", "名前。、・café ｶﾅ ·÷²"),
        ] {
            assert_eq!(String::from_utf8(narrowed(wide.into())).unwrap(), narrow, "{wide}");
        }
        assert_eq!(narrowed(b"\xff\xef\xbc\x8f\xef\xbc".to_vec()), b"\xff/\xef\xbc");
    }
}
