//! What to look for in a stream: the forms of all secrets of a credential, found by their heads.
//!
//! It says where needles are; it changes nothing.

use std::fmt;
use std::sync::{Arc, OnceLock};

use super::heads::Heads;
use super::needle::{Edges, Needle, Reading};
use super::samples::Samples;
use super::{Scrubber, forms};
use crate::secret::Secret;

/// The fewest octets of a needle: shorter ones would mask ordinary text, and are no secrets.
const SHORTEST: usize = 4;

/// From how many octets on a text is searched by samples.
const LONG: usize = 1 << 10;

/// The secrets to mask, in all their forms. A clone shares them.
///
/// The needles are wiped when the last clone is dropped. Of each the first octets, eight at most, are also in the tables of the
/// search by heads, which cannot be wiped.
#[derive(Clone)]
pub struct Needles(Arc<Set>);

struct Set {
    needles: Vec<Needle>,
    heads: Heads,
    /// Made for the first long text, if the needles allow of any.
    samples: OnceLock<Option<Samples>>,
    /// The edges any of them has.
    edges: Edges,
    /// The length of the shortest.
    shortest: usize,
}

/// A needle in a text, by octets.
#[derive(Debug)]
pub(super) struct Sighting {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) edges: Edges,
}

impl Needles {
    /// The needles of some secrets. Forms shorter than four octets are left out.
    #[must_use]
    pub fn of<'a>(secrets: impl IntoIterator<Item = &'a Secret>) -> Self {
        let mut needles: Vec<Needle> =
            secrets.into_iter().flat_map(|secret| forms::of(secret.expose())).collect();
        needles.retain(|needle| needle.octets.len() >= SHORTEST);
        needles.sort_unstable_by(|one, other| one.octets.cmp(&other.octets));
        needles.dedup_by(|later, kept| {
            let same = later.octets == kept.octets;
            if same {
                kept.merge(later);
            }
            same
        });
        let heads = Heads::of(&needles);
        let edges = needles.iter().fold(Edges::default(), |edges, needle| edges.or(needle.edges));
        let shortest = needles.iter().map(|needle| needle.octets.len()).min().unwrap_or(usize::MAX);
        Self(Arc::new(Set { needles, heads, samples: OnceLock::new(), edges, shortest }))
    }

    /// Whether there is nothing to look for.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.needles.is_empty()
    }

    /// Whether any of them has an octet.
    #[must_use]
    pub fn have(&self, octet: u8) -> bool {
        self.0.needles.iter().any(|needle| needle.octets.contains(&octet))
    }

    /// Whether any of them is in a text, or begins at its end.
    #[must_use]
    pub fn are_in(&self, text: &[u8]) -> bool {
        let mut sightings = Vec::new();
        self.search(text, &mut sightings).is_some() || !sightings.is_empty()
    }

    /// A whole text, such as a header's value, masked, and the number of occurrences; nothing where there is none.
    #[must_use]
    pub fn scrub_text(&self, text: &[u8]) -> Option<(Vec<u8>, u64)> {
        // Most headers are shorter than any secret.
        if text.len() < self.0.shortest {
            return None;
        }
        let mut sightings = Vec::new();
        self.search(text, &mut sightings);
        if sightings.is_empty() {
            return None;
        }
        let mut out = Vec::with_capacity(text.len());
        let mut scrubber = Scrubber::new(self);
        scrubber.push(text, &mut out);
        scrubber.finish(&mut out);
        Some((out, scrubber.found()))
    }

    /// Notes every needle in a text, and gives the first position from which the rest of the text is the proper beginning
    /// of one.
    pub(super) fn search(&self, text: &[u8], sightings: &mut Vec<Sighting>) -> Option<usize> {
        let Set { needles, heads, .. } = &*self.0;
        let mut partial = text.len();
        self.0.visit(text, |start, needle| {
            let needle = &needles[needle];
            let Reading { end, is_cut } = needle.read(&text[start..]);
            if let Some(end) = end {
                sightings.push(Sighting { start, end: start + end, edges: needle.edges });
            }
            if is_cut {
                partial = partial.min(start);
            }
        });
        // What two needles have in common is one occurrence.
        sightings.sort_unstable_by_key(|sighting| (sighting.start, sighting.end));
        sightings.dedup_by(|later, kept| {
            let same = (later.start, later.end) == (kept.start, kept.end);
            if same {
                kept.edges = kept.edges.or(later.edges);
            }
            same
        });
        if partial < text.len() { Some(partial) } else { heads.cut_short(text) }
    }

    #[cfg(test)]
    pub(crate) fn scrubbed(&self, text: &[u8]) -> (Vec<u8>, u64) {
        self.scrub_text(text).unwrap_or_else(|| (text.to_vec(), 0))
    }

    #[cfg(test)]
    pub(super) fn all(&self) -> &[Needle] {
        &self.0.needles
    }

    /// Where to hold a text back from.
    pub(super) fn hold(&self, text: &[u8], partial: Option<usize>) -> usize {
        let hold = partial.unwrap_or(text.len());
        let before = text[..hold].last().is_some_and(|last| is_base64(*last));
        hold - usize::from(self.0.edges.before && before)
    }
}

impl Set {
    /// The positions where a needle may begin, with that needle: all where one does, but for those so close to the end of the text that
    /// even a head is cut short.
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

/// A character of base64, of either alphabet: RFC 4648 §4 and §5.
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
    fn nothing_is_shown() {
        let needles = needles(&["correct horse"]);
        let (mut scrubber, mut out) = (Scrubber::new(&needles), Vec::new());
        scrubber.push(b"a correct hors", &mut out);
        assert_eq!(out, b"a ");
        let shown = format!("{scrubber:?}");
        assert!(shown.contains(&format!("{needles:?}, 0 found, 12 octets held")), "{shown}");
    }

    #[test]
    fn whole_texts_are_masked() {
        assert_eq!(needles(&["s3cret-1"]).scrubbed(b"Bearer s3cret-1"), (b"Bearer ********".to_vec(), 1));
        assert_eq!(needles(&["s3cret-1"]).scrubbed(b"Bearer s3cret"), (b"Bearer s3cret".to_vec(), 0));
        assert_eq!(needles(&[]).scrubbed(b"x"), (b"x".to_vec(), 0));
    }
}
