//! A value that must not be seen: wiped when it is dropped, redacted when it is printed, and with one door.

use std::fmt;

use zeroize::Zeroizing;

/// A secret in memory. It has no `Display`, no serialisation and no comparison; a clone is wiped as the original is.
#[derive(Clone)]
pub struct Secret(Zeroizing<Vec<u8>>);

impl Secret {
    /// Takes a value in. The caller's own copy is the caller's to wipe.
    #[must_use]
    pub fn new(value: Vec<u8>) -> Self {
        Self(Zeroizing::new(value))
    }

    /// Takes a text in, without a copy.
    #[must_use]
    pub fn from_text(text: String) -> Self {
        Self::new(text.into_bytes())
    }

    /// Takes in what is wiped already, without a copy.
    pub(crate) const fn wiped(value: Zeroizing<Vec<u8>>) -> Self {
        Self(value)
    }

    /// The value itself. Every call of this is a line to review.
    #[must_use]
    pub fn expose(&self) -> &[u8] {
        &self.0
    }

    /// Whether a presented value is this one, in a time that depends on their lengths alone.
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
    fn a_clone_is_a_secret_of_its_own() {
        let secret = Secret::from_text("correct horse".into());
        let clone = secret.clone();
        assert_ne!(secret.expose().as_ptr(), clone.expose().as_ptr());
        drop(secret);
        assert_eq!(clone.expose(), b"correct horse");
    }
}
