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

#[cfg(test)]
mod tests {
    use super::shell_word;

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
