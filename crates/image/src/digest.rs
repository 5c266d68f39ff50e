//! Digests: SHA-256, the one kind in use, as `sha256:` and 64 hexadecimal digits.

use std::fmt;
use std::io::{self, Read};
use std::str::FromStr;

use aws_lc_rs::digest::{Context, SHA256};
use data_encoding::HEXLOWER;
use serde::{Deserialize, Serialize};

/// A SHA-256 digest.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest(String);

const PREFIX: &str = "sha256:";

impl Digest {
    /// Computes the digest of some octets.
    #[must_use]
    pub fn of(octets: &[u8]) -> Self {
        let mut hasher = Hasher::default();
        hasher.update(octets);
        hasher.finish()
    }

    /// Returns the 64 digits without the prefix, fit for a file name.
    #[must_use]
    pub fn hex(&self) -> &str {
        &self.0[PREFIX.len()..]
    }

    /// Returns the first twelve digits, as shown to people.
    #[must_use]
    pub fn short(&self) -> &str {
        &self.hex()[..12]
    }
}

impl FromStr for Digest {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let hex = text.strip_prefix(PREFIX).ok_or("a digest begins with `sha256:`")?;
        let digits = hex.len() == 64 && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        if digits { Ok(Self(text.into())) } else { Err("a digest has 64 lower-case hexadecimal digits") }
    }
}

impl TryFrom<String> for Digest {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.0
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A hasher that yields a [`Digest`].
#[derive(Clone)]
pub(crate) struct Hasher(Context);

impl Default for Hasher {
    fn default() -> Self {
        Self(Context::new(&SHA256))
    }
}

impl Hasher {
    pub(crate) fn update(&mut self, octets: &[u8]) {
        self.0.update(octets);
    }

    pub(crate) fn finish(self) -> Digest {
        Digest(format!("{PREFIX}{}", HEXLOWER.encode(self.0.finish().as_ref())))
    }
}

/// A reader that hashes what passes through it.
pub(crate) struct Hashing<R> {
    inner: R,
    hasher: Hasher,
}

impl<R: Read> Hashing<R> {
    pub(crate) fn new(inner: R) -> Self {
        Self { inner, hasher: Hasher::default() }
    }

    /// Reads the rest, up to `bound` octets, and returns the digest of everything: octets beyond the end of an archive belong to
    /// its digest.
    pub(crate) fn finish(mut self, bound: u64) -> io::Result<Digest> {
        let left = io::copy(&mut (&mut self).take(bound.saturating_add(1)), &mut io::sink())?;
        if left > bound {
            return Err(io::Error::other("there is too much after its end"));
        }
        Ok(self.hasher.finish())
    }
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.hasher.update(&buffer[..read]);
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[test]
    fn only_what_could_be_a_digest_is_one() {
        assert_eq!(Digest::of(b"").to_string(), EMPTY);
        assert_eq!(EMPTY.parse::<Digest>().unwrap().short(), "e3b0c44298fc");
        let upper = EMPTY.to_uppercase();
        for wrong in
            ["", "sha256:", "sha512:aa", "e3b0", &upper, "sha256:../../../../etc/passwd", &EMPTY[..70]]
        {
            assert!(wrong.parse::<Digest>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_passes_through_is_digested_to_its_end() {
        let mut reader = Hashing::new(&b"abcdef"[..]);
        reader.read_exact(&mut [0; 2]).unwrap();
        assert_eq!(reader.finish(16).unwrap(), Digest::of(b"abcdef"));
        assert!(Hashing::new(&b"abcdef"[..]).finish(5).is_err());
    }
}
