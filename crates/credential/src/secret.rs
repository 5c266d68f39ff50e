//! A value that must not be seen: wiped when it is dropped, redacted when it is printed, and with one door.

use std::fmt;

use zeroize::Zeroizing;

/// A secret in memory. It has no `Display`, no serialisation and no comparison.
pub struct Secret(Zeroizing<Vec<u8>>);

impl Secret {
    /// Takes a value in. The caller's own copy is the caller's to wipe.
    #[must_use]
    pub fn new(value: Vec<u8>) -> Self {
        Self(Zeroizing::new(value))
    }

    /// The value itself. Every call of this is a line to review.
    #[must_use]
    pub fn expose(&self) -> &[u8] {
        &self.0
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
}
