//! The authorities that programs inside trust beside those of the machine, or of the image. What they are is not judged here.

use std::fmt;

/// The authorities that programs inside trust beside those of the machine, or of the image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FurtherAuthorities {
    /// Whether the run's own is one of them, because its sidecar terminates TLS.
    pub own: bool,
    /// Those that the caller's environment adds, as PEM.
    pub callers: String,
}

impl FurtherAuthorities {
    pub(crate) fn is_empty(&self) -> bool {
        !self.own && self.callers.is_empty()
    }

    /// Returns all of them as PEM, given the run's own. That one is first: some programs read one of a file.
    pub(crate) fn with(&self, own: &[u8]) -> Vec<u8> {
        [own, self.callers.as_bytes()].concat()
    }
}

impl fmt::Display for FurtherAuthorities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.own, self.callers.is_empty()) {
            (true, true) => "the run's own authority",
            (true, false) => "the run's own authority, and those that SSL_CERT_FILE adds",
            (false, _) => "the authorities that SSL_CERT_FILE adds",
        })
    }
}
