//! References to images: `registry/repository:tag@digest`. A name in the store needs fewer parts than a pull.
//!
//! There is no default registry: it would be somebody else's choice which one a bare name means, so a pull of it is refused.

use std::fmt;
use std::str::FromStr;

use crate::digest::Digest;
use crate::error::Error;

/// The tag of a reference without tag and digest.
const LATEST: &str = "latest";
/// The longest name and the longest tag, by the distribution specification.
const LONGEST_NAME: usize = 255;
const LONGEST_TAG: usize = 128;

/// A reference to an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    registry: Option<String>,
    repository: String,
    /// `latest` if nothing was given; `None` if there is a digest alone.
    tag: Option<String>,
    digest: Option<Digest>,
}

impl Reference {
    /// Returns the registry, `HOST` or `HOST:PORT`; `None` for a bare name.
    #[must_use]
    pub fn registry(&self) -> Option<&str> {
        self.registry.as_deref()
    }

    /// Returns the repository within its registry.
    #[must_use]
    pub fn repository(&self) -> &str {
        &self.repository
    }

    /// Returns the tag, `latest` if neither tag nor digest was given.
    #[must_use]
    pub fn tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }

    /// Returns the digest the manifest must have, if one was given.
    #[must_use]
    pub fn digest(&self) -> Option<&Digest> {
        self.digest.as_ref()
    }

    /// Whether a name of the store is of the same repository.
    pub(crate) fn shares_repository(&self, name: &str) -> bool {
        let other = name.parse::<Self>();
        other.is_ok_and(|other| (&other.registry, &other.repository) == (&self.registry, &self.repository))
    }

    /// Returns what a registry is asked for: the digest, else the tag.
    pub(crate) fn wanted(&self) -> String {
        let digest = self.digest.as_ref().map(ToString::to_string);
        digest.or_else(|| self.tag.clone()).unwrap_or_else(|| LATEST.into())
    }

    /// Returns the name under which the store keeps an image: without the digest if there is a tag. A digest alone claims no tag.
    #[must_use]
    pub fn name(&self) -> String {
        let registry = self.registry.as_ref().map(|r| format!("{r}/")).unwrap_or_default();
        let last = match (&self.tag, &self.digest) {
            (None, Some(digest)) => format!("@{digest}"),
            (tag, _) => format!(":{}", tag.as_deref().unwrap_or(LATEST)),
        };
        format!("{registry}{}{last}", self.repository)
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())?;
        match (&self.tag, &self.digest) {
            (Some(_), Some(digest)) => write!(f, "@{digest}"),
            _ => Ok(()),
        }
    }
}

impl FromStr for Reference {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        parse(text).map_err(|why| Error::Reference { name: text.escape_default().to_string(), why })
    }
}

fn parse(text: &str) -> Result<Reference, &'static str> {
    match text.split_once("://") {
        Some(("https", _)) => return Err("it is an address; leave out https://"),
        Some(_) => return Err("it is an address; leave out what is before the host"),
        None => {}
    }
    let (rest, digest) = match text.split_once('@') {
        Some((rest, digest)) => (rest, Some(digest.parse()?)),
        None => (text, None),
    };
    // The first part is a registry if it could be a host: it has a dot or a port, or is `localhost`.
    let (registry, rest) = match rest.split_once('/') {
        Some((host, rest)) if host.contains(['.', ':']) || host == "localhost" => (Some(host), rest),
        _ => (None, rest),
    };
    let (repository, tag) = match rest.rsplit_once(':') {
        Some((repository, tag)) if !tag.contains('/') => (repository, Some(tag)),
        _ => (rest, digest.is_none().then_some(LATEST)),
    };
    if let Some(registry) = registry {
        check_registry(registry)?;
    }
    if repository.len() + registry.map_or(0, str::len) > LONGEST_NAME {
        return Err("it is longer than 255 characters");
    }
    if !repository.split('/').all(is_component) {
        return Err(
            "a repository is lower-case letters, digits and `.`, `_`, `-` between them, in parts divided by `/`",
        );
    }
    if tag.is_some_and(|tag| !is_tag(tag)) {
        return Err("a tag is letters, digits, `_`, `.` and `-`, 128 of them at most");
    }
    Ok(Reference {
        registry: registry.map(Into::into),
        repository: repository.into(),
        tag: tag.map(Into::into),
        digest,
    })
}

fn check_registry(registry: &str) -> Result<(), &'static str> {
    let (host, port) = registry.split_once(':').map_or((registry, None), |(host, port)| (host, Some(port)));
    let label = |l: &str| {
        !l.is_empty()
            && !l.starts_with('-')
            && !l.ends_with('-')
            && l.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
    };
    if !host.split('.').all(label) {
        return Err("its registry is not a host name");
    }
    // Digits only: parsers disagree about other spellings of a number.
    let digits = |p: &str| p.bytes().all(|b| b.is_ascii_digit()) && !p.starts_with('0');
    match port {
        None => Ok(()),
        Some(port) if digits(port) && port.parse::<u16>().is_ok() => Ok(()),
        Some(_) => Err("its registry's port is not a number from 1 to 65535"),
    }
}

fn is_tag(tag: &str) -> bool {
    let first = tag.bytes().next();
    let valid = tag.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-'));
    valid && tag.len() <= LONGEST_TAG && first.is_some_and(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// Whether a part matches `[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*` of the distribution specification.
fn is_component(part: &str) -> bool {
    let alphanumeric = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let ends = part.bytes().next().is_some_and(alphanumeric) && part.bytes().last().is_some_and(alphanumeric);
    let separators = part.split(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit());
    ends && separators
        .filter(|s| !s.is_empty())
        .all(|s| matches!(s, "." | "_" | "__") || s.bytes().all(|b| b == b'-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_apart() {
        let digest = Digest::of(b"");
        for (text, registry, repository, tag) in [
            ("debian", None, "debian", "latest"),
            ("library/debian:12", None, "library/debian", "12"),
            ("registry.example.com/a/b:v1.2", Some("registry.example.com"), "a/b", "v1.2"),
            ("localhost/x", Some("localhost"), "x", "latest"),
            ("127.0.0.1:5000/x__y/z--1:A", Some("127.0.0.1:5000"), "x__y/z--1", "A"),
        ] {
            let reference: Reference = text.parse().unwrap();
            let parts = (reference.registry(), reference.repository(), reference.tag());
            assert_eq!(parts, (registry, repository, Some(tag)), "{text}");
            let pinned: Reference = format!("{}@{digest}", reference.name()).parse().unwrap();
            assert_eq!((pinned.digest(), pinned.name()), (Some(&digest), reference.name()));
            assert_eq!(pinned.to_string(), format!("{}@{digest}", reference.name()));
        }
        let alone: Reference = format!("host.example/a@{digest}").parse().unwrap();
        assert_eq!((alone.tag(), alone.name()), (None, format!("host.example/a@{digest}")));
        assert_eq!((alone.to_string(), alone.wanted()), (alone.name(), digest.to_string()));
    }

    #[test]
    fn what_is_no_name_is_refused() {
        for text in [
            "",
            ":",
            "/",
            "a/",
            "/a",
            "A",
            "a//b",
            "a:",
            "a:-x",
            "a b",
            "a..b",
            "a_.b",
            "a/../b",
            "../a",
            "a\0",
            "a@sha256:1",
            "host.example:0/a",
            "host.example:080/a",
            "host.example:99999/a",
            "-x.example/a",
            "user@host.example/a",
            "http://host.example/a",
            "a:b:c",
            "a.-b/c",
        ] {
            assert!(text.parse::<Reference>().is_err(), "{text:?}");
        }
    }
}
