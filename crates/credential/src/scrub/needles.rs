//! The set of needles: all forms of all secrets of a credential, and the search for them. It changes no text.

use std::fmt;
use std::sync::{Arc, OnceLock};

use super::Scrubber;
use super::forms::{self, Forms};
use super::heads::Heads;
use super::needle::{Edges, Needle};
use super::samples::Samples;
use super::separators::{Separator, Separators};
use crate::secret::Secret;

/// The fewest octets of a needle: shorter ones would mask ordinary text.
const SHORTEST: usize = 4;

/// The shortest text that is searched by samples.
const LONG: usize = 1 << 10;

/// The secrets to mask, in all their forms. A clone shares them.
///
/// The needles are wiped when the last clone is dropped. The tables of the search by heads, which cannot be wiped, also hold the
/// first octets of each, eight at most.
#[derive(Clone)]
pub struct Needles(Arc<Set>);

struct Set {
    needles: Vec<Arc<Needle>>,
    heads: Heads,
    /// Built for the first long text; `None` if the needles do not suit.
    samples: OnceLock<Option<Samples>>,
    /// The same needles in lower case. Built for the first name that is long enough to hold one.
    in_names: OnceLock<Needles>,
    /// An upper bound of the octets at the end of a text that may be the beginning of a needle, or stand before one and be masked with
    /// it. Rounded up.
    reach: usize,
    /// The kinds of separators that the needles have.
    taken: Separators,
    /// The length of the shortest needle.
    shortest: usize,
}

/// An occurrence of a needle in a text, in octets.
#[derive(Debug)]
pub(super) struct Occurrence {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) edges: Edges,
}

impl Needles {
    /// Builds the needles of secrets. Forms shorter than four octets are left out.
    #[must_use]
    pub fn of<'a>(secrets: impl IntoIterator<Item = &'a Secret>) -> Self {
        Self::built(secrets.into_iter().flat_map(|secret| forms::of(secret.expose())).map(Arc::new).collect())
    }

    /// Builds the needles of secrets whose forms are known: many long ones take a tenth of the time.
    #[must_use]
    pub fn of_forms<'a>(forms: impl IntoIterator<Item = &'a Forms>) -> Self {
        Self::built(forms.into_iter().flat_map(|forms| forms.needles().iter().map(Arc::clone)).collect())
    }

    fn built(mut needles: Vec<Arc<Needle>>) -> Self {
        needles.retain(|needle| needle.octets.len() >= SHORTEST);
        needles.sort_unstable_by(|one, other| one.octets.cmp(&other.octets));
        needles.dedup_by(|later, kept| {
            let same = later.octets == kept.octets;
            if same && let Some(merged) = kept.merged_with(later) {
                *kept = Arc::new(merged);
            }
            same
        });
        let heads = Heads::of(&needles);
        let longest = needles.iter().map(|needle| needle.longest).max().unwrap_or(0);
        let reach = if needles.is_empty() { 0 } else { (longest + 1).next_multiple_of(ROUND) };
        let taken = needles.iter().fold(Separators::default(), |all, needle| all.or(needle.separators));
        let shortest = needles.iter().map(|needle| needle.octets.len()).min().unwrap_or(usize::MAX);
        let (samples, in_names) = (OnceLock::new(), OnceLock::new());
        Self(Arc::new(Set { needles, heads, samples, in_names, reach, taken, shortest }))
    }

    /// Returns whether one is a clone of the other.
    #[must_use]
    pub fn is_same_as(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Returns whether there is nothing to search for.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.needles.is_empty()
    }

    /// Returns whether any needle contains an octet.
    #[must_use]
    pub fn have(&self, octet: u8) -> bool {
        self.0.needles.iter().any(|needle| needle.octets.contains(&octet))
    }

    /// Returns whether any needle is in a text.
    #[must_use]
    pub fn are_in(&self, text: &[u8]) -> bool {
        let mut occurrences = Vec::new();
        self.search(text, &mut occurrences);
        !occurrences.is_empty()
    }

    /// Returns whether any needle is in the name of a header, given in lower case: the name has lost the needle's case by then.
    #[must_use]
    pub fn are_in_name(&self, name: &[u8]) -> bool {
        let lower =
            || Self::built(self.0.needles.iter().map(|needle| Arc::new(needle.in_lower_case())).collect());
        // Most names are shorter than any secret.
        name.len() >= self.0.shortest && self.0.in_names.get_or_init(lower).are_in(name)
    }

    /// Masks a whole text, such as a header's value. Returns it with the number of occurrences, or `None` if there is none.
    #[must_use]
    pub fn scrub_text(&self, text: &[u8]) -> Option<(Vec<u8>, u64)> {
        // Most headers are shorter than any secret.
        if text.len() < self.0.shortest {
            return None;
        }
        let mut occurrences = Vec::new();
        self.search(text, &mut occurrences);
        if occurrences.is_empty() {
            return None;
        }
        let mut out = Vec::with_capacity(text.len());
        let mut scrubber = Scrubber::new(self);
        scrubber.push(text, &mut out);
        scrubber.finish(&mut out);
        Some((out, scrubber.found()))
    }

    /// Finds every occurrence in a text.
    pub(super) fn search(&self, text: &[u8], occurrences: &mut Vec<Occurrence>) {
        let Set { needles, .. } = &*self.0;
        self.0.visit(text, |start, needle| {
            let needle = &needles[needle];
            if let Some(end) = needle.read(&text[start..]) {
                occurrences.push(Occurrence { start, end: start + end, edges: needle.edges });
            }
        });
        // Two needles at the same range are one occurrence.
        occurrences.sort_unstable_by_key(|occurrence| (occurrence.start, occurrence.end));
        occurrences.dedup_by(|later, kept| {
            let same = (later.start, later.end) == (kept.start, kept.end);
            if same {
                kept.edges = kept.edges.or(later.edges);
            }
            same
        });
    }

    #[cfg(test)]
    pub(crate) fn scrubbed(&self, text: &[u8]) -> (Vec<u8>, u64) {
        self.scrub_text(text).unwrap_or_else(|| (text.to_vec(), 0))
    }

    #[cfg(test)]
    pub(super) fn all(&self) -> &[Arc<Needle>] {
        &self.0.needles
    }

    /// Returns the position from which a text is held back. It depends on the needles only by their longest length and by the kinds of
    /// separators that none contains: the sender of the text sees how much is let through, and could otherwise read a secret from that,
    /// octet by octet.
    pub(super) fn hold(&self, text: &[u8]) -> usize {
        let Set { reach, taken, .. } = &*self.0;
        let from = text.len().saturating_sub(*reach);
        let is_in_none = |octet: &u8| Separator::of(*octet).is_some_and(|kind| !taken.have(kind));
        text[from..].iter().rposition(is_in_none).map_or(from, |at| from + at + 1)
    }

    /// Returns the most octets that are held back.
    #[must_use]
    pub fn reach(&self) -> usize {
        self.0.reach
    }
}

/// The reach is rounded up to a multiple of this, so that it does not reveal the exact length of a secret.
const ROUND: usize = 64;

impl Set {
    /// Visits every position where a needle may begin, with that needle. A needle so close to the end of the text that its head is cut
    /// short is not visited.
    fn visit(&self, text: &[u8], mut visit: impl FnMut(usize, usize)) {
        let mut from = 0;
        if text.len() >= LONG
            && let Some(samples) = self.samples.get_or_init(|| Samples::of(&self.needles))
        {
            samples.visit(&self.needles, text, &mut visit);
            from = text.len() - samples.tail();
        }
        self.heads.visit(&text[from..], |start, needle| visit(from + start, needle));
    }
}

impl fmt::Debug for Needles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Needles({})", self.0.needles.len())
    }
}

/// Returns whether an octet is a base64 character of either alphabet: RFC 4648 §4 and §5.
pub(super) const fn is_base64(octet: u8) -> bool {
    octet.is_ascii_alphanumeric() || matches!(octet, b'+' | b'/' | b'-' | b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn needles(secrets: &[&str]) -> Needles {
        let secrets: Vec<Secret> = secrets.iter().map(|text| Secret::from_text((*text).into())).collect();
        Needles::of(&secrets)
    }

    #[test]
    fn short_forms_are_left_out_and_equal_ones_are_one() {
        assert!(needles(&[]).is_empty());
        assert!(needles(&[""]).is_empty());
        assert_eq!(
            needles(&["abcdefgh"]).0.needles.len(),
            needles(&["abcdefgh", "abcdefgh"]).0.needles.len()
        );
        assert!(needles(&["abc"]).0.needles.iter().all(|needle| needle.octets.len() >= 4));
    }

    #[test]
    fn forms_that_are_shared_make_the_same_needles() {
        // Some forms of one are forms of another, with other edges or spellings.
        let secrets = ["k/\"\u{e9} &'<", "a b\tc}", "YSBi", "a b", "6120620963"]
            .map(|text| Secret::from_text(text.into()));
        let (whole, forms) = (Needles::of(&secrets), secrets.each_ref().map(Forms::of));
        for (order, shared) in [
            ("in their order", Needles::of_forms(&forms)),
            ("the other way round", Needles::of_forms(forms.iter().rev())),
            ("twice", Needles::of_forms(forms.iter().chain(&forms))),
        ] {
            assert_eq!((shared.0.reach, shared.0.taken), (whole.0.reach, whole.0.taken), "{order}");
            let (shared, whole) = (&shared.0.needles, &whole.0.needles);
            assert_eq!(shared.len(), whole.len(), "{order}");
            let differs = |(one, other): (&Arc<Needle>, &Arc<Needle>)| !one.is_as(other);
            assert_eq!(shared.iter().zip(whole).position(differs), None, "{order}");
        }
    }

    #[test]
    fn nothing_is_shown() {
        let needles = needles(&["correct horse"]);
        let (mut scrubber, mut out) = (Scrubber::new(&needles), Vec::new());
        scrubber.push(b"a correct hors", &mut out);
        assert!(out.is_empty());
        let shown = format!("{scrubber:?}");
        assert!(shown.contains(&format!("{needles:?}, 0 found, 14 octets held")), "{shown}");
    }

    #[test]
    fn a_name_holds_what_has_lost_its_case() {
        let needles = needles(&["S3cret-Value"]);
        for (name, holds) in [
            ("x-s3cret-value-x", true),
            ("s3cret-value", true),
            ("x-533363726574-56616c7565", false),
            ("x-5333637265742d56616c7565", true),
            ("x-s3cret-valu", false),
            ("etag", false),
        ] {
            assert_eq!(needles.are_in_name(name.as_bytes()), holds, "{name}");
        }
        let base64 = data_encoding::BASE64_NOPAD.encode(b"S3cret-Value").to_ascii_lowercase();
        assert!(needles.are_in_name(base64.as_bytes()));
        assert!(!needles.are_in(b"s3cret-value"), "a value keeps its case");
    }

    #[test]
    fn whole_texts_are_masked() {
        assert_eq!(needles(&["s3cret-1"]).scrubbed(b"Bearer s3cret-1"), (b"Bearer ********".to_vec(), 1));
        assert_eq!(needles(&["s3cret-1"]).scrubbed(b"Bearer s3cret"), (b"Bearer s3cret".to_vec(), 0));
        assert_eq!(needles(&[]).scrubbed(b"x"), (b"x".to_vec(), 0));
    }
}
