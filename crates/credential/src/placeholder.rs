//! Placeholders: `lgph_` and 36 letters and digits, which an agent's environment holds in place of a secret.
//!
//! A placeholder is not a secret: only the sidecar that made it accepts it, and only at the targets of its credential. This module
//! makes and finds placeholders; it does not know their credentials.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;
use std::sync::LazyLock;

use memchr::memmem::Finder;

const PREFIX: &str = "lgph_";
// With the prefix more than 40: programs refuse a shorter text as no key (the client of Weights & Biases).
const DIGITS: usize = 36;
const LENGTH: usize = Placeholder::LENGTH;
const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

// Made once: to make a finder costs more than to search a header.
static FINDER: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(PREFIX));

/// An opaque placeholder, 41 characters of ASCII that no encoding of a request changes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Placeholder(String);

/// The error for a text that is not a placeholder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a placeholder is `{PREFIX}` and {DIGITS} letters and digits")]
pub struct PlaceholderError;

impl Placeholder {
    /// The length of a placeholder, in octets.
    pub const LENGTH: usize = PREFIX.len() + DIGITS;

    /// Makes a placeholder from 27 random octets: the last 36 digits of their number in base 62, which keep 214 of its
    /// 216 bits.
    #[must_use]
    pub fn mint(random: [u8; 27]) -> Self {
        let mut number = random;
        let mut text = String::with_capacity(LENGTH);
        text.push_str(PREFIX);
        for _ in 0..DIGITS {
            let mut rest: u16 = 0;
            for octet in &mut number {
                let value = rest << 8 | u16::from(*octet);
                // The remainder is below 62, so the quotient is below 256.
                *octet = (value / 62) as u8;
                rest = value % 62;
            }
            text.push(char::from(ALPHABET[usize::from(rest)]));
        }
        Self(text)
    }

    /// Returns the placeholder as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns whether a text may contain a placeholder, or the beginning of one.
    #[must_use]
    pub fn may_be_in(text: &[u8]) -> bool {
        FINDER.find(text).is_some()
    }

    /// Whether a text holds a placeholder.
    #[must_use]
    pub fn is_in(text: &[u8]) -> bool {
        Self::find_all(text).next().is_some()
    }

    /// Finds all placeholders in a text, with their ranges in octets, in order and without overlaps. Exactly 36 characters after the
    /// prefix belong to one, even if they look like the beginning of another.
    pub fn find_all(text: &[u8]) -> impl Iterator<Item = (Range<usize>, Self)> + '_ {
        let mut from = 0;
        FINDER.find_iter(text).filter_map(move |start| {
            if start < from {
                return None;
            }
            let range = start..start + LENGTH;
            let found = std::str::from_utf8(text.get(range.clone())?).ok()?;
            let placeholder = found.parse().ok()?;
            from = range.end;
            Some((range, placeholder))
        })
    }
}

impl FromStr for Placeholder {
    type Err = PlaceholderError;

    fn from_str(text: &str) -> Result<Self, PlaceholderError> {
        let digits = text.strip_prefix(PREFIX).ok_or(PlaceholderError)?;
        let fits = digits.len() == DIGITS && digits.bytes().all(|octet| octet.is_ascii_alphanumeric());
        fits.then(|| Self(text.into())).ok_or(PlaceholderError)
    }
}

impl fmt::Display for Placeholder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn they_do_not_overlap() {
        // The last four characters of the first look like the beginning of a second.
        let text = format!("lgph_{}lgph_{}", "a".repeat(32), "b".repeat(36));
        let found: Vec<_> = Placeholder::find_all(text.as_bytes()).map(|(range, _)| range).collect();
        assert_eq!((found.len(), found.first()), (1, Some(&(0..41))));
        let text = format!("lgph_{}lgph_{}", "a".repeat(36), "b".repeat(36));
        let found: Vec<_> = Placeholder::find_all(text.as_bytes()).map(|(range, _)| range).collect();
        assert_eq!(found, [0..41, 41..82]);
    }

    #[test]
    fn the_same_octets_make_the_same_placeholder() {
        assert_eq!(Placeholder::mint([0; 27]).as_str(), format!("lgph_{}", "0".repeat(36)));
        let mut one = [0; 27];
        one[26] = 63;
        assert_eq!(Placeholder::mint(one).as_str(), format!("lgph_11{}", "0".repeat(34)));
    }

    #[test]
    fn they_are_as_long_as_programs_want_a_key() {
        const { assert!(LENGTH > 40) }
        // The last of them differ too: by them a program knows a key that was approved.
        let (one, two) = (Placeholder::mint([1; 27]), Placeholder::mint([2; 27]));
        assert_ne!(one.as_str()[LENGTH - 20..], two.as_str()[LENGTH - 20..]);
    }

    #[test]
    fn only_whole_placeholders_parse() {
        let digits = "a".repeat(36);
        assert!(format!("lgph_{digits}").parse::<Placeholder>().is_ok());
        for text in [
            "",
            "lgph_",
            &format!("lgph_{digits}a"),
            &format!("lgph_{}", &digits[1..]),
            &format!("LGPH_{digits}"),
            &format!("lgph_{}-", &digits[1..]),
            &format!(" lgph_{digits}"),
        ] {
            assert!(text.parse::<Placeholder>().is_err(), "{text}");
        }
    }

    #[test]
    fn all_are_found_where_they_are() {
        let (one, two) = (Placeholder::mint([1; 27]), Placeholder::mint([2; 27]));
        let text = format!("lgph_x Basic {one}:{two}lgph_{two}, lgph_cut");
        let found: Vec<_> = Placeholder::find_all(text.as_bytes()).collect();
        let names: Vec<_> = found.iter().map(|(_, placeholder)| placeholder.clone()).collect();
        assert_eq!(names, [one, two.clone(), two]);
        for (range, placeholder) in found {
            assert_eq!(&text[range], placeholder.as_str());
        }
        assert_eq!(Placeholder::find_all(&[b"lgph_".as_slice(), &[0xff; 40]].concat()).count(), 0);
    }

    proptest! {
        #[test]
        fn what_is_minted_is_found(
            random in any::<[u8; 27]>(),
            before in "[^_]{0,40}",
            after in "[^_]{0,40}",
        ) {
            let placeholder = Placeholder::mint(random);
            prop_assert_eq!(placeholder.as_str().parse(), Ok(placeholder.clone()));
            let text = format!("{before}{placeholder}{after}");
            let range = before.len()..before.len() + LENGTH;
            prop_assert_eq!(Placeholder::find_all(text.as_bytes()).collect::<Vec<_>>(), [(range, placeholder)]);
        }

        #[test]
        fn other_octets_make_another(one in any::<[u8; 23]>(), two in any::<[u8; 23]>()) {
            let wide = |narrow: [u8; 23]| {
                let mut wide = [0; 27];
                wide[4..].copy_from_slice(&narrow);
                wide
            };
            prop_assert_eq!(one == two, Placeholder::mint(wide(one)) == Placeholder::mint(wide(two)));
        }
    }
}
