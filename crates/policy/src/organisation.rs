//! The name of an organisation whose keys a run uses. It becomes part of a path, so this type is the only way to make one.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// The longest name, in octets: that of a DNS label. RFC 1035 §2.3.4
const LONGEST: usize = 63;

/// The name of an organisation: lower-case letters, digits and inner hyphens. S1.27
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OrganisationName(Arc<str>);

impl OrganisationName {
    /// Returns the name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the flag that selects an organisation's credentials, after a space; an empty string for the user's own.
    #[must_use]
    pub fn flag(whose: Option<&Self>) -> String {
        whose.map(|name| format!(" --org {name}")).unwrap_or_default()
    }
}

impl FromStr for OrganisationName {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let inner = |octet: u8| octet.is_ascii_lowercase() || octet.is_ascii_digit() || octet == b'-';
        let is_name = (1..=LONGEST).contains(&text.len())
            && text.bytes().all(inner)
            && !text.starts_with('-')
            && !text.ends_with('-');
        if is_name {
            Ok(Self(text.into()))
        } else {
            Err(
                "an organisation is named in lower-case letters, digits and inner hyphens, 63 at most, as `acme`",
            )
        }
    }
}

impl fmt::Display for OrganisationName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // S1.27
    #[test]
    fn a_name_is_no_path_and_nothing_else() {
        let longest = "n".repeat(LONGEST);
        for good in ["a", "acme", "4-you", "a--b", "0", &longest] {
            assert_eq!(good.parse::<OrganisationName>().unwrap().as_str(), good);
        }
        let longer = "n".repeat(LONGEST + 1);
        for bad in [
            "", "-", "-a", "a-", ".", "..", "a.b", "a/b", "../a", "/a", "a/", "a\\b", "Acme", "a b", " a",
            "a\n", "a\0", "ä", "a_b", "a%2fb", "~", "*", "@a", &longer,
        ] {
            assert!(bad.parse::<OrganisationName>().is_err(), "{bad:?}");
        }
    }
}
