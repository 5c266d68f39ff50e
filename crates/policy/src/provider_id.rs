//! The id of a provider.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// The id of a provider (REQUIREMENTS, literal behaviour): `gmail`, or `@vendor/gmail`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProviderId(Arc<str>);

/// The scope of this program's own ids. No file may declare one, or ask for its credential.
const OWN: &str = "@lockgate/";

impl ProviderId {
    /// Returns whether an id is one of this program's own.
    #[must_use]
    pub fn is_own(name: &str) -> bool {
        name.starts_with(OWN)
    }

    /// Parses an id from a file.
    pub(crate) fn given(name: &str) -> Result<Self, &'static str> {
        if Self::is_own(name) {
            return Err("names under `@lockgate/` are this program's own");
        }
        name.parse()
    }

    /// Returns the id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ProviderId {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const LONGEST: usize = 128;
        let inner = |part: &str| part.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-'));
        let begins = |part: &str| part.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric());
        let name = match text.strip_prefix('@').map(|rest| rest.split_once('/')) {
            None => Some(text),
            Some(Some((scope, name))) if begins(scope) && inner(scope) => Some(name),
            Some(_) => None,
        };
        match name {
            Some(name) if begins(name) && inner(name) && !name.ends_with('-') && text.len() <= LONGEST => {
                Ok(Self(text.into()))
            }
            _ => Err(
                "a provider is named in lower-case letters, digits and inner hyphens, 128 at most, as `gmail` or `@vendor/gmail`",
            ),
        }
    }
}

impl fmt::Display for ProviderId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_that_is_too_long_is_told_how_long_one_may_be() {
        assert!("a".repeat(128).parse::<ProviderId>().is_ok());
        assert!("a".repeat(129).parse::<ProviderId>().unwrap_err().contains("128 at most"));
    }
}
