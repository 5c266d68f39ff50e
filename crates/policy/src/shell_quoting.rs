//! Shell quoting. A user may paste a recommended command, and an agent chooses part of its text.

/// Returns a text as one shell word, in quotes if it needs them.
#[must_use]
pub fn shell_word(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+,:@%".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

/// Returns a text as one shell word, unless some of its characters cannot be seen in a line that is to be typed.
#[must_use]
pub fn visible_shell_word(text: &str) -> Option<String> {
    let is_visible = |c: char| "'\"\\".contains(c) || c.escape_debug().eq([c]);
    text.chars().all(is_visible).then(|| shell_word(text))
}

#[cfg(test)]
mod tests {
    use super::{shell_word, visible_shell_word};

    #[test]
    fn a_word_that_cannot_be_seen_whole_is_not_to_be_typed() {
        assert_eq!(visible_shell_word("/src/ol'd \\"), Some(r"'/src/ol'\''d \'".into()));
        for text in ["/a\nb", "/a\u{202e}b", "/a\u{200b}", "/\x1b[2J"] {
            assert_eq!(visible_shell_word(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_shell_reads_the_text_and_nothing_else() {
        for plain in ["example.com:443", "https://example.com/v1/a%20b", "/src/a"] {
            assert_eq!(shell_word(plain), plain);
        }
        for (text, word) in [
            ("http://a.b/v2;touch$IFS/x;", "'http://a.b/v2;touch$IFS/x;'"),
            ("http://a.b/$(id)'x", r"'http://a.b/$(id)'\''x'"),
            ("[2606:4700::1]:443", "'[2606:4700::1]:443'"),
            ("my file", "'my file'"),
            ("", "''"),
        ] {
            assert_eq!(shell_word(text), word);
        }
    }
}
