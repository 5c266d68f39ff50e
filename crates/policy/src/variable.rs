//! The names of environment variables.

/// Whether a text can name a variable: a program's environment is lines of `NAME=value`, environ(7). White space in a name is a slip
/// of whoever wrote it, for no shell could name that variable.
pub(crate) fn is_name(text: &str) -> bool {
    !text.is_empty() && !text.contains(|c: char| c == '=' || c.is_whitespace() || c.is_control())
}

#[cfg(test)]
mod tests {
    use super::is_name;

    #[test]
    fn a_name_has_no_space_and_no_equals_sign() {
        for name in ["A", "a_1", "npm_config_//registry.example.com/:_auth", "BASH_FUNC_x%%", "ÄÖ"] {
            assert!(is_name(name), "{name}");
        }
        for text in ["", "A B", "A=B", "A\0", "\u{1b}A", "A\n", "\u{a0}A"] {
            assert!(!is_name(text), "{text:?}");
        }
    }
}
