//! The forms a secret takes in what a server answers: as it is, and in one layer of each usual encoding; and the same of
//! what it was written as into a request, for that layer was our own.
//!
//! Not here, because they cannot be listed: two layers of others, base64 broken into lines, a part of the secret, compressed
//! text.

use data_encoding::{BASE64_NOPAD, BASE64URL_NOPAD, Encoding};
use zeroize::Zeroizing;

use super::needle::{Edges, Needle};
use crate::escape::{HexCase, each, hex, is_unreserved, json, percent};

/// Up to which length a secret is looked for in two layers: what is looked for grows with the square.
const LONGEST_TWICE: usize = 4 << 10;

/// All forms of a secret. Several may be equal, and some shorter than is worth looking for.
pub(super) fn of(secret: &[u8]) -> Vec<Needle> {
    let mut all = one_layer(secret);
    // Blanks at the ends of a field's value are no part of it (RFC 9110 §5.5).
    let bare = secret.trim_ascii();
    if bare != secret && !bare.is_empty() {
        all.extend(of(bare));
    }
    if secret.len() > LONGEST_TWICE {
        return all;
    }
    // As templates write it into a body of JSON, and into a path or a query; for most secrets that is the secret itself.
    let in_json = std::str::from_utf8(secret).ok().map(|text| json(text, HexCase::Lower, |_| false));
    let in_address = percent(secret, HexCase::Upper, is_unreserved);
    for written in in_json.into_iter().chain([in_address]).filter(|written| written.as_slice() != secret) {
        all.extend(one_layer(&written));
    }
    // Basic authentication is base64 of our making.
    all.extend(base64s(secret).flat_map(wrapped));
    all
}

fn one_layer(secret: &[u8]) -> Vec<Needle> {
    let mut forms = vec![Zeroizing::new(secret.to_vec())];
    for case in HexCase::BOTH {
        forms.push(hex(secret, case));
        forms.extend(percents(secret, case));
        if let Ok(text) = std::str::from_utf8(secret) {
            forms.extend(jsons(text, case));
        }
    }
    forms.extend(htmls(secret));
    let exact = forms.into_iter().map(|octets| Needle { octets, edges: Edges::default() });
    exact.chain(base64s(secret)).collect()
}

/// RFC 3986 as it should be, `encodeURIComponent` (ECMA-262 §19.2.6), forms (a space is `+`), and every octet encoded.
fn percents(secret: &[u8], case: HexCase) -> [Zeroizing<Vec<u8>>; 7] {
    let component = |octet| is_unreserved(octet) || b"!*'()".contains(&octet);
    let mut form = percent(secret, case, |octet| is_unreserved(octet) || octet == b' ');
    form.iter_mut().filter(|octet| **octet == b' ').for_each(|octet| *octet = b'+');
    [
        percent(secret, case, is_unreserved),
        percent(secret, case, component),
        form,
        percent(secret, case, |_| false),
        // As addresses are written: by ECMAScript's encodeURI, by the URL standard in a path or query, and spaces alone.
        percent(secret, case, |octet| is_unreserved(octet) || b";,/?:@&=+$!*'()#[]".contains(&octet)),
        percent(secret, case, |octet| (0x21..0x7f).contains(&octet) && !br#""<>"#.contains(&octet)),
        percent(secret, case, |octet| octet != b' '),
    ]
}

/// As little escaped as RFC 8259 allows; slashes too (PHP); `<>&` too (Go); ASCII only (Python); and every character.
fn jsons(text: &str, case: HexCase) -> [Zeroizing<Vec<u8>>; 5] {
    let least = json(text, case, |_| false);
    let slashes = each(&least, 2, |octet, out| {
        if octet == b'/' {
            out.push(b'\\');
        }
        out.push(octet);
    });
    [
        json(text, case, |character| matches!(character, '<' | '>' | '&' | '\u{2028}' | '\u{2029}')),
        json(text, case, |character| !character.is_ascii()),
        json(text, case, |_| true),
        slashes,
        least,
    ]
}

/// The five characters HTML escapes; quotes have several names.
fn htmls(secret: &[u8]) -> impl Iterator<Item = Zeroizing<Vec<u8>>> {
    let quotes = [["&quot;", "&#39;"], ["&quot;", "&#x27;"], ["&#34;", "&#39;"]];
    quotes.into_iter().map(move |[double, single]| {
        each(secret, 6, |octet, out| match octet {
            b'&' => out.extend(b"&amp;"),
            b'<' => out.extend(b"&lt;"),
            b'>' => out.extend(b"&gt;"),
            b'"' => out.extend(double.bytes()),
            b'\'' => out.extend(single.bytes()),
            _ => out.push(octet),
        })
    })
}

/// Both alphabets, at each of the three places in a group of three octets a secret can begin. Characters that hold bits of
/// what stands beside it are cut off and marked as edges.
fn base64s(secret: &[u8]) -> impl Iterator<Item = Needle> {
    let alphabets = [BASE64_NOPAD, BASE64URL_NOPAD];
    alphabets
        .into_iter()
        .flat_map(move |alphabet| (0..3).map(move |offset| base64(secret, &alphabet, offset)))
}

/// Base64 whose signs were escaped: in an address, and in JSON as PHP writes it.
fn wrapped(needle: Needle) -> impl Iterator<Item = Needle> {
    let Needle { octets, edges } = needle;
    let cases = HexCase::BOTH.map(|case| percent(&octets, case, is_unreserved));
    let slashes = each(&octets, 2, |octet, out| {
        if octet == b'/' {
            out.push(b'\\');
        }
        out.push(octet);
    });
    let changed = move |form: &Zeroizing<Vec<u8>>| *form != octets;
    cases.into_iter().chain([slashes]).filter(changed).map(move |octets| Needle { octets, edges })
}

fn base64(secret: &[u8], alphabet: &Encoding, offset: usize) -> Needle {
    let mut shifted = Zeroizing::new(Vec::with_capacity(offset + secret.len()));
    shifted.resize(offset, 0);
    shifted.extend_from_slice(secret);
    let mut text = Zeroizing::new(vec![0; alphabet.encode_len(shifted.len())]);
    alphabet.encode_mut(&shifted, &mut text);
    let edges = Edges { before: offset > 0, after: !shifted.len().is_multiple_of(3) };
    // Characters 0 and 1, or 0 to 2, hold octets before the secret; of them the last holds some of its bits too.
    let start = [0, 2, 3][offset].min(text.len());
    let end = (text.len() - usize::from(edges.after)).max(start);
    Needle { octets: Zeroizing::new(text[start..end].to_vec()), edges }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(secret: &str) -> Vec<String> {
        of(secret.as_bytes()).iter().map(|n| String::from_utf8(n.octets.to_vec()).unwrap()).collect()
    }

    #[test]
    fn every_usual_form_is_there() {
        let forms = texts("k/\"é &'<");
        for form in [
            "k/\"é &'<",
            "6b2f22c3a92026273c",
            "6B2F22C3A92026273C",
            "k%2F%22%C3%A9%20%26%27%3C",
            "k%2f%22%c3%a9%20%26%27%3c",
            "k%2F%22%C3%A9+%26%27%3C",
            "k%2F%22%C3%A9%20%26'%3C",
            "%6B%2F%22%C3%A9%20%26%27%3C",
            "%6b%2f%22%c3%a9%20%26%27%3c",
            "k/\\\"é &'<",
            "k\\/\\\"é &'<",
            "k/\\\"é \\u0026'\\u003c",
            "k/\\\"\\u00e9 &'<",
            "k/\\\"\\u00E9 &'<",
            "\\u006b\\u002f\\u0022\\u00e9\\u0020\\u0026\\u0027\\u003c",
            "\\u006B\\u002F\\u0022\\u00E9\\u0020\\u0026\\u0027\\u003C",
            "k/&quot;é &amp;&#39;&lt;",
            "k/&quot;é &amp;&#x27;&lt;",
            "k/&#34;é &amp;&#39;&lt;",
        ] {
            assert!(forms.iter().any(|known| known == form), "{form}");
        }
    }

    #[test]
    fn blanks_at_the_ends_hide_nothing() {
        let forms = texts(" sk-0123 ");
        assert!(
            ["sk-0123", " sk-0123 ", "c2stMDEyM"].iter().all(|form| forms.iter().any(|f| f == form)),
            "{forms:?}"
        );
    }

    #[test]
    fn what_was_written_escaped_is_known_when_it_is_escaped_again() {
        let forms = texts("a\"b/c>>>????");
        for form in [
            r#"a\\\"b/c>>>????"#,                // JSON in JSON
            "a%5C%22b%2Fc%3E%3E%3E%3F%3F%3F%3F", // JSON in an address
            "a%2522b%252Fc%253E%253E%253E%253F%253F%253F%253F",
            "YSJiL2M%2BPj4%2FPz8%2F", // Basic authentication in an address
            "YSJiL2M%2bPj4%2fPz8%2f",
            "YSJiL2M+Pj4\\/Pz8\\/",
        ] {
            assert!(forms.iter().any(|known| known == form), "{form} {forms:#?}");
        }
        assert_eq!(texts("plain-text_0123").len(), one_layer(b"plain-text_0123").len());
    }

    #[test]
    fn base64_holds_only_characters_of_the_secret_alone() {
        let secret = b"\xfb\xef\xbe12345";
        for length in 1..=secret.len() {
            let secret = &secret[..length];
            for needle in base64s(secret) {
                assert!(needle.octets.len() * 6 <= length * 8, "{length}");
                assert!(needle.octets.len() * 6 + 10 >= length * 8, "{length}");
            }
        }
        let found: Vec<_> = base64s(b"\xff\xff\xff\xff").map(|n| (n.octets.to_vec(), n.edges)).collect();
        let edges = |before, after| Edges { before, after };
        assert_eq!(found[0], (b"/////".to_vec(), edges(false, true)));
        assert_eq!(found[1], (b"////".to_vec(), edges(true, true)));
        assert_eq!(found[2], (b"/////".to_vec(), edges(true, false)));
        assert_eq!(found[3].0, b"_____");
    }

    #[test]
    fn octets_that_are_no_text_have_no_json() {
        assert!(one_layer(b"\xff\xfe\xfd\xfc\xfb").iter().all(|needle| !needle.octets.starts_with(b"\\u")));
    }
}
