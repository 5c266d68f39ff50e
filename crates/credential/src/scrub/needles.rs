//! What to look for in a stream: the forms of all secrets of a credential, found by their heads.
//!
//! It says where needles are; it changes nothing.

use std::fmt;
use std::sync::{Arc, OnceLock};

use super::heads::Heads;
use super::needle::{Edges, Needle};
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
    /// How many octets at the end of a text may be the beginning of a needle, or stand before one and be masked with it: no fewer, and
    /// rounded up.
    reach: usize,
    /// Which of the octets that part a text are in none of them.
    separators: Separators,
    /// The length of the shortest.
    shortest: usize,
}

/// A needle in a text, by octets.
#[derive(Debug)]
pub(super) struct Occurrence {
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
        let longest = needles.iter().map(Needle::longest).max().unwrap_or(0);
        let reach = if needles.is_empty() { 0 } else { (longest + 1).next_multiple_of(ROUND) };
        let separators = Separators::of(&needles);
        let shortest = needles.iter().map(|needle| needle.octets.len()).min().unwrap_or(usize::MAX);
        Self(Arc::new(Set { needles, heads, samples: OnceLock::new(), reach, separators, shortest }))
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

    /// Whether any of them is in a text.
    #[must_use]
    pub fn are_in(&self, text: &[u8]) -> bool {
        let mut occurrences = Vec::new();
        self.search(text, &mut occurrences);
        !occurrences.is_empty()
    }

    /// A whole text, such as a header's value, masked, and the number of occurrences; nothing where there is none.
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

    /// Notes every needle in a text.
    pub(super) fn search(&self, text: &[u8], occurrences: &mut Vec<Occurrence>) {
        let Set { needles, .. } = &*self.0;
        self.0.visit(text, |start, needle| {
            let needle = &needles[needle];
            if let Some(end) = needle.read(&text[start..]) {
                occurrences.push(Occurrence { start, end: start + end, edges: needle.edges });
            }
        });
        // What two needles have in common is one occurrence.
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
    pub(super) fn all(&self) -> &[Needle] {
        &self.0.needles
    }

    /// Where to hold a text back from. What the needles hold does not come into it, but for which kinds of octets none has that part a text:
    /// whoever gives the text sees how much of it is let go, and would read a secret from that, octet by octet.
    pub(super) fn hold(&self, text: &[u8]) -> usize {
        let Set { reach, separators, .. } = &*self.0;
        let from = text.len().saturating_sub(*reach);
        text[from..].iter().rposition(|octet| separators.have(*octet)).map_or(from, |at| from + at + 1)
    }

    /// How much of a text is held back at most.
    #[must_use]
    pub fn reach(&self) -> usize {
        self.0.reach
    }
}

/// To a multiple of what the reach of needles is rounded: how long a secret is, is not shown to the octet.
const ROUND: usize = 64;

/// Octets across which no needle goes, by what they do.
#[derive(Clone, Copy)]
struct Separators {
    lines: bool,
    words: bool,
    /// Records and the like; no secret that is given by hand has any.
    controls: bool,
    /// Texts and structures of JSON.
    closing: bool,
}

impl Separators {
    fn of(needles: &[Needle]) -> Self {
        let none = |what| {
            !needles.iter().any(|needle| needle.octets.iter().any(|octet| separator_of(*octet) == Some(what)))
        };
        Self {
            lines: none(Separator::LineEnd),
            words: none(Separator::Blank),
            controls: none(Separator::Control),
            closing: none(Separator::JsonEnd),
        }
    }

    fn have(self, octet: u8) -> bool {
        match separator_of(octet) {
            Some(Separator::LineEnd) => self.lines,
            Some(Separator::Blank) => self.words,
            Some(Separator::Control) => self.controls,
            Some(Separator::JsonEnd) => self.closing,
            None => false,
        }
    }
}

/// What an octet does that parts texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Separator {
    LineEnd,
    Blank,
    Control,
    JsonEnd,
}

pub(super) const fn separator_of(octet: u8) -> Option<Separator> {
    match octet {
        b'\n' | b'\r' | 0 => Some(Separator::LineEnd),
        b' ' | b'\t' => Some(Separator::Blank),
        0x01..=0x1f | 0x7f => Some(Separator::Control),
        b'}' | b']' | b'"' => Some(Separator::JsonEnd),
        _ => None,
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
        assert!(out.is_empty());
        let shown = format!("{scrubber:?}");
        assert!(shown.contains(&format!("{needles:?}, 0 found, 14 octets held")), "{shown}");
    }

    #[test]
    fn whole_texts_are_masked() {
        assert_eq!(needles(&["s3cret-1"]).scrubbed(b"Bearer s3cret-1"), (b"Bearer ********".to_vec(), 1));
        assert_eq!(needles(&["s3cret-1"]).scrubbed(b"Bearer s3cret"), (b"Bearer s3cret".to_vec(), 0));
        assert_eq!(needles(&[]).scrubbed(b"x"), (b"x".to_vec(), 0));
    }
}
