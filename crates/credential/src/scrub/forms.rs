//! The forms of a secret in a server's response: plain and in base64, with punctuation escaped in any way; in hexadecimal; and with
//! every octet escaped. Also the same forms of the encoding in which the sidecar wrote the secret into the request, and of what a
//! secret that is not ASCII becomes where a server takes its octets for Latin-1, or writes it so.
//!
//! Not covered, because they cannot be listed: two layers of a server's encodings, base64 broken into lines, a part of the secret,
//! other charsets, compressed text.

use std::fmt;
use std::sync::Arc;

use data_encoding::{BASE64_NOPAD, BASE64URL_NOPAD, Encoding};
use zeroize::Zeroizing;

use super::needle::{Edges, Needle};
use super::{latin1, spellings};
use crate::escape::{HexCase, hex, is_unreserved, json, percent};
use crate::secret::Secret;

/// The longest secret that is searched for in two layers: the length of the needles grows with its square.
const LONGEST_TWICE: usize = 4 << 10;

/// All forms of one secret. A clone shares them. They are wiped when the last is dropped.
#[derive(Clone)]
pub struct Forms(Arc<[Arc<Needle>]>);

impl Forms {
    /// Writes a secret in all its forms.
    #[must_use]
    pub fn of(secret: &Secret) -> Self {
        Self(of(secret.expose()).into_iter().map(Arc::new).collect())
    }

    pub(super) fn needles(&self) -> &[Arc<Needle>] {
        &self.0
    }
}

impl fmt::Debug for Forms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Forms({})", self.0.len())
    }
}

/// Returns all forms of a secret. Several may be equal, and some too short to search for.
pub(super) fn of(secret: &[u8]) -> Vec<Needle> {
    let mut all = one_layer(secret);
    // Blanks at the ends are not part of a header's value (RFC 9110 §5.5).
    let bare = secret.trim_ascii();
    if bare != secret && !bare.is_empty() {
        all.extend(of(bare));
    }
    for taken in latin1::taken_for(secret) {
        all.extend(one_layer(&taken));
    }
    if secret.len() > LONGEST_TWICE {
        return all;
    }
    // As templates encode it in a JSON body, and in a path or a query. For most secrets that is the secret itself.
    let in_json = std::str::from_utf8(secret).ok().map(|text| json(text, HexCase::Lower, |_| false));
    let in_address = percent(secret, HexCase::Upper, is_unreserved);
    for written in in_json.into_iter().chain([in_address]).filter(|written| written.as_slice() != secret) {
        all.extend(one_layer(&written));
    }
    all
}

fn one_layer(secret: &[u8]) -> Vec<Needle> {
    let mut forms = vec![Needle::spelled(Zeroizing::new(secret.to_vec()), Edges::default())];
    for case in HexCase::BOTH {
        forms.push(Needle::exact(hex(secret, case)));
        // Encoders that escape letters escape all of them.
        forms.push(Needle::exact(percent(secret, case, |_| false)));
        if let Ok(text) = std::str::from_utf8(secret) {
            forms.push(Needle::exact(json(text, case, |_| true)));
        }
    }
    forms.extend(spellings::by_names(secret).map(Needle::exact));
    forms.extend(base64s(secret));
    forms
}

/// Returns the secret in both base64 alphabets, at each of the three offsets in a group of three octets. Characters that also hold
/// bits of adjacent octets are cut off and marked as edges.
fn base64s(secret: &[u8]) -> impl Iterator<Item = Needle> {
    let alphabets = [BASE64_NOPAD, BASE64URL_NOPAD];
    alphabets
        .into_iter()
        .flat_map(move |alphabet| (0..3).map(move |offset| base64(secret, &alphabet, offset)))
}

fn base64(secret: &[u8], alphabet: &Encoding, offset: usize) -> Needle {
    let mut shifted = Zeroizing::new(Vec::with_capacity(offset + secret.len()));
    shifted.resize(offset, 0);
    shifted.extend_from_slice(secret);
    let mut text = Zeroizing::new(vec![0; alphabet.encode_len(shifted.len())]);
    alphabet.encode_mut(&shifted, &mut text);
    let edges = Edges { before: offset > 0, after: !shifted.len().is_multiple_of(3) };
    // Characters 0 and 1, or 0 to 2, hold octets before the secret; the last of them also holds bits of the secret.
    let start = [0, 2, 3][offset].min(text.len());
    let end = (text.len() - usize::from(edges.after)).max(start);
    // Servers escape its punctuation too: basic authentication sends the secret in base64.
    Needle::spelled(Zeroizing::new(text[start..end].to_vec()), edges)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(secret: &str) -> Vec<String> {
        of(secret.as_bytes()).iter().map(|n| String::from_utf8(n.octets.to_vec()).unwrap()).collect()
    }

    /// Returns whether a whole text is a form of a secret.
    fn knows(secret: &str, form: &str) -> bool {
        of(secret.as_bytes()).iter().any(|needle| needle.read(form.as_bytes()) == Some(form.len()))
    }

    #[test]
    fn every_usual_form_is_there() {
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
            assert!(knows("k/\"é &'<", form), "{form}");
        }
    }

    #[test]
    fn encoders_that_write_each_name_of_html_hide_nothing() {
        for (secret, form) in [
            ("ghp_0a.1b", "ghp&lowbar;0a&period;1b"),
            ("s_k+/=$", "s&lowbar;k&plus;&sol;&equals;&dollar;"),
            ("sk+/=$", "sk&plus;&sol;&equals;&dollar;"),
            ("sk+/=$", "sk+&#0047;&#x003D;&dollar;"),
        ] {
            assert!(knows(secret, form), "{form}");
        }
    }

    /// The characters of ASCII that have names (HTML §13.5): the name that npm's `entities` writes, and another that encoders write.
    #[rustfmt::skip]
    const NAMED: [(&str, &str); 32] = [
        ("\t", "Tab"), ("\n", "NewLine"), ("!", "excl"), ("\"", "quot"), ("#", "num"), ("$", "dollar"),
        ("%", "percnt"), ("&", "amp"), ("'", "apos"), ("(", "lpar"), (")", "rpar"), ("*", "ast"),
        ("+", "plus"), (",", "comma"), (".", "period"), ("/", "sol"), (":", "colon"), (";", "semi"),
        ("<", "lt"), ("=", "equals"), (">", "gt"), ("?", "quest"), ("@", "commat"), ("[", "lbrack lsqb"),
        ("\\", "bsol"), ("]", "rbrack rsqb"), ("^", "Hat"), ("_", "lowbar"),
        ("`", "DiacriticalGrave grave"), ("{", "lbrace lcub"), ("|", "verbar vert"), ("}", "rbrace rcub"),
    ];

    #[test]
    fn all_punctuation_of_ascii_is_known_by_its_names() {
        let secret: String = NAMED.iter().map(|(character, _)| *character).chain(["-~aZ0"]).collect();
        let all = (b'!'..=b'~').map(char::from).filter(char::is_ascii_punctuation);
        assert!(all.clone().all(|it| secret.contains(it)) && all.count() == 32);
        let written = |choose: fn(&str) -> Option<&str>| -> String {
            let names = NAMED.iter().map(|(_, names)| format!("&{};", choose(names).unwrap()));
            names.chain(["-~aZ0".into()]).collect()
        };
        for form in [written(|names| names.split(' ').next()), written(|names| names.split(' ').next_back())]
        {
            assert!(knows(&secret, &form), "{form}");
        }
        // Alone, a character that is usual in keys is taken for no escaped one.
        for (character, names) in NAMED.iter().filter(|(character, _)| !matches!(*character, "." | "_")) {
            for name in names.split(' ') {
                let form = secret.replace(character, &format!("&{name};"));
                assert!(knows(&secret, &form), "{form}");
            }
        }
    }

    #[test]
    fn what_servers_make_of_other_charsets_hides_nothing() {
        for (secret, forms) in [
            (
                "Küß/1",
                [
                    &b"K\xfc\xdf/1"[..], // read as UTF-8, written as Latin-1
                    b"K%FC%DF%2f1",
                    b"K\\xfc\\xdf/1",
                    b"S/zfLz",                                // in base64
                    "K\u{c3}\u{bc}\u{c3}\u{9f}/1".as_bytes(), // read as Latin-1, written as UTF-8
                    b"K\\u00c3\\u00bc\\u00c3\\u009f\\/1",
                    "KÃ¼ÃŸ/1".as_bytes(), // as windows-1252
                    b"K\\xc3\\xbc\\xc3\\x9f/1",
                    b"K%C3%83%C2%BC%C3%83%C5%B8%2F1",
                ],
            ),
            (
                "10€ 日",
                [
                    b"10\\u00e2\\u0082\\u00ac \\u00e6\\u0097\\u00a5",
                    "10â‚¬ æ—¥".as_bytes(),
                    "10&#226;&#8218;&#172; &#230;&#8212;&#165;".as_bytes(),
                    "10€ 日".as_bytes(),
                    b"10\\u20ac \\u65e5",
                    b"10%E2%82%AC+%E6%97%A5",
                    b"10%e2%82%ac%20%e6%97%a5",
                    b"10\\xe2\\x82\\xac \\xe6\\x97\\xa5",
                    b"MTDigqwg5pel",
                ],
            ),
        ] {
            for form in forms {
                let needles = of(secret.as_bytes());
                let is_known = needles.iter().any(|needle| needle.read(form) == Some(form.len()));
                assert!(is_known, "{secret}: {}", form.escape_ascii());
            }
        }
        assert!(of("5€ x".as_bytes()).iter().any(|needle| needle.read(b"5\x80 x") == Some(4)));
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
        for form in [
            r#"a\\\"b/c>>>????"#,                // JSON in JSON
            "a%5C%22b%2Fc%3E%3E%3E%3F%3F%3F%3F", // JSON in an address
            "a%2522b%252Fc%253E%253E%253E%253F%253F%253F%253F",
            "YSJiL2M%2BPj4%2FPz8%2F", // Basic authentication in an address
            "YSJiL2M%2bPj4%2fPz8%2f",
            "YSJiL2M+Pj4\\/Pz8\\/",
            "YSJiL2M\\u002BPj4/Pz8/",
            "YSJiL2M&#43;Pj4/Pz8/",
        ] {
            assert!(knows("a\"b/c>>>????", form), "{form}");
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
