//! A secret value: wiped when it is dropped, redacted when it is printed, and readable only through [`Secret::expose`].

use std::fmt;

use zeroize::Zeroizing;

/// A secret in memory. It has no `Display`, no serialisation and no `PartialEq`. A clone is wiped as the original is.
#[derive(Clone)]
pub struct Secret(Zeroizing<Vec<u8>>);

impl Secret {
    /// Creates a secret. The caller must wipe any other copy.
    #[must_use]
    pub fn new(value: Vec<u8>) -> Self {
        Self(Zeroizing::new(value))
    }

    /// Creates a secret from a text, without a copy.
    #[must_use]
    pub fn from_text(text: String) -> Self {
        Self::new(text.into_bytes())
    }

    /// Creates a secret from a buffer that is wiped on drop, without a copy.
    pub(crate) const fn wiped(value: Zeroizing<Vec<u8>>) -> Self {
        Self(value)
    }

    /// Returns the value itself. Every call needs review.
    #[must_use]
    pub fn expose(&self) -> &[u8] {
        &self.0
    }

    /// Compares a presented value with this one, in a time that depends on their lengths only.
    #[must_use]
    pub fn matches(&self, presented: &[u8]) -> bool {
        aws_lc_rs::constant_time::verify_slices_are_equal(&self.0, presented).is_ok()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printing_shows_nothing() {
        let secret = Secret::new(b"correct horse".to_vec());
        assert_eq!(format!("{secret:?}"), "Secret(…)");
        assert_eq!(secret.expose(), b"correct horse");
    }

    #[test]
    fn nothing_but_the_value_matches() {
        let secret = Secret::from_text("correct horse".into());
        assert!(secret.matches(b"correct horse"));
        for other in [&b""[..], b"correct", b"correct horsf", b"Correct horse", b"correct horse\0"] {
            assert!(!secret.matches(other), "{}", other.escape_ascii());
        }
    }

    #[test]
    fn a_clone_is_a_secret_of_its_own() {
        let secret = Secret::from_text("correct horse".into());
        let clone = secret.clone();
        assert_ne!(secret.expose().as_ptr(), clone.expose().as_ptr());
        drop(secret);
        assert_eq!(clone.expose(), b"correct horse");
    }
}
