//! Searches for needles in a long text by samples. If the shortest needle has `n` octets, a sample of four octets at every
//! `n - 3` meets every occurrence of every needle once within its first `n` octets.
//!
//! ```text
//! text    ┊----·········┊----·········┊----·········┊----·········   the samples, every 14 octets
//!                         sk-live-012345678   of 17 octets: met by `5678`, which it has at 13
//! ```
//!
//! If characters have several spellings, every sample that can occur within the first `n - 3` octets is known too: the number that a
//! character adds does not depend on the other characters. Such a needle is then read backwards to its beginning.
//!
//! A known sample is only a candidate: the caller compares the needle. Two secrets of 40 octets, which make 20 needles, on a busy
//! two-core machine, the best of some series: 2.6 to 4.2 µs for 64 KiB, where `heads` took 4.8 to 7.1; built in 30 µs.

use std::mem;
use std::sync::Arc;

use zeroize::{Zeroize, Zeroizing};

use super::needle::Needle;

/// The octets of a sample.
const SAMPLE: usize = 4;
/// The largest stride, as the number of known samples grows with it, and the smallest, below which `heads` is faster.
const FURTHEST: usize = 32;
const NEAREST: usize = 8;
/// The most samples of exact needles, the most places in all needles, and the filter's bits per sample: the filter must fit the
/// processor's first cache.
const MOST_KNOWN: usize = 2 << 10;
const MOST_PLACES: usize = 8 << 10;
const BITS_EACH: usize = 64;
const MOST_BITS: usize = MOST_KNOWN * BITS_EACH;

/// The known samples of a set of needles.
pub(super) struct Samples {
    /// The distance of two samples in a text.
    stride: usize,
    /// A bit for each hash of a sample: set if a known sample has it.
    filter: Zeroizing<Vec<u64>>,
    /// The shift that turns a hash into the number of a bit.
    shift: u32,
    /// All known samples, sorted, one for each place.
    values: Zeroizing<Vec<u32>>,
    places: Vec<NeedlePlace>,
}

/// The place of a sample in a needle.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct NeedlePlace {
    needle: usize,
    /// The offset of the character in which it begins,
    at: usize,
    /// and the offset in a spelling of that character.
    into: usize,
}

/// A known sample and its place.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct KnownSample {
    sample: u32,
    place: NeedlePlace,
}

impl Zeroize for KnownSample {
    /// The place reveals nothing.
    fn zeroize(&mut self) {
        self.sample.zeroize();
    }
}

impl NeedlePlace {
    /// Returns the fewest octets before it: no spelling is shorter than its character.
    const fn min_offset(self) -> usize {
        self.at + self.into
    }
}

impl Samples {
    /// Builds the samples of needles. Returns `None` if the shortest needle is too short for a useful stride, or there are too many.
    pub(super) fn of(needles: &[Arc<Needle>]) -> Option<Self> {
        let shortest = needles.iter().map(|needle| needle.octets.len()).min()?;
        let furthest = (shortest + 1).saturating_sub(SAMPLE).min(FURTHEST);
        let furthest = furthest.min(MOST_KNOWN / needles.len());
        if furthest < NEAREST {
            return None;
        }
        // Allocated at full size: a buffer that grows leaves copies behind.
        let mut room = 0;
        note_samples(needles, furthest, &mut |_| room += 1);
        let mut known = Zeroizing::new(Vec::with_capacity(room));
        note_samples(needles, furthest, &mut |one| known.push(one));
        known.sort_unstable();
        known.dedup();
        let mut many = [0; FURTHEST];
        known.iter().for_each(|one| many[one.place.min_offset()] += 1);
        let stride = many[..furthest]
            .iter()
            .scan(0, |sum, many| {
                *sum += many;
                (*sum <= MOST_PLACES).then_some(())
            })
            .count();
        if stride < NEAREST {
            return None;
        }
        known.retain(|one| one.place.min_offset() < stride);
        let different = known.chunk_by(|one, other| one.sample == other.sample).count();
        let bits = (different * BITS_EACH).next_power_of_two().min(MOST_BITS);
        let values = Zeroizing::new(known.iter().map(|one| one.sample).collect());
        let places = known.iter().map(|one| one.place).collect();
        let filter = Zeroizing::new(vec![0; bits / 64]);
        let shift = u32::BITS - bits.ilog2();
        let mut samples = Self { stride, filter, shift, values, places };
        for index in 0..samples.values.len() {
            let (word, bit) = samples.bit(samples.values[index]);
            samples.filter[word] |= bit;
        }
        Some(samples)
    }

    /// Visits every position where a needle may begin, with that needle. Each occurrence is visited once, unless the text ends within
    /// [`Self::tail`] octets of its beginning. The order is not that of the text.
    pub(super) fn visit(&self, needles: &[Arc<Needle>], text: &[u8], mut visit: impl FnMut(usize, usize)) {
        let mut spelled: Vec<(usize, usize)> = Vec::new();
        let mut at = 0;
        while let Some(sample) = sample_at(text, at) {
            let (word, bit) = self.bit(sample);
            if self.filter[word] & bit != 0 {
                let from = self.values.partition_point(|known| *known < sample);
                let known = self.values[from..].iter().take_while(|known| **known == sample);
                for (place, _) in self.places[from..].iter().zip(known) {
                    let (needle, Some(place_at)) = (&needles[place.needle], at.checked_sub(place.into))
                    else {
                        continue;
                    };
                    if !needle.is_exact() {
                        // No earlier: the sample before this one has met a needle that begins there.
                        let earliest = (at + 1).saturating_sub(self.stride);
                        let mut note = |start| spelled.push((start, place.needle));
                        needle.begins(text, place.at, place_at, earliest, &mut note);
                    } else if let Some(start) = place_at.checked_sub(place.at)
                        && goes_on(needle, place.at, text, at)
                    {
                        visit(start, place.needle);
                    }
                }
                if !spelled.is_empty() {
                    // Several sequences of spellings may have one beginning.
                    spelled.sort_unstable();
                    spelled.dedup();
                    mem::take(&mut spelled).into_iter().for_each(|(start, needle)| visit(start, needle));
                }
            }
            at += self.stride;
        }
    }

    /// Returns the number of octets at the end of a text in which beginnings are not visited. Every needle is longer.
    pub(super) const fn tail(&self) -> usize {
        self.stride + SAMPLE - 2
    }

    /// Returns the filter bit of a sample: the index of its word, and its mask.
    fn bit(&self, sample: u32) -> (usize, u64) {
        // Multiplication by the golden ratio spreads samples that differ only in their low bits.
        let hash = sample.wrapping_mul(0x9e37_79b1) >> self.shift;
        (hash as usize / 64, 1 << (hash % 64))
    }
}

/// Notes the samples that may begin within the first `furthest` octets of a needle, some of them several times.
fn note_samples(needles: &[Arc<Needle>], furthest: usize, note: &mut dyn FnMut(KnownSample)) {
    for (index, needle) in needles.iter().enumerate() {
        for at in (0..furthest).filter(|at| needle.begins_at(*at)) {
            needle.ways(at, &mut |way, next| {
                for into in 0..way.len().min(furthest - at) {
                    let place = NeedlePlace { needle: index, at, into };
                    needle.unfold_behind(&way[into..], next, SAMPLE, &mut |octets| {
                        sample_at(octets, 0)
                            .into_iter()
                            .for_each(|sample| note(KnownSample { sample, place }));
                    });
                }
            });
        }
    }
}

/// Returns whether the next four octets agree too, if both have them. Most false candidates of an exact needle end here.
fn goes_on(needle: &Needle, at: usize, text: &[u8], place: usize) -> bool {
    let (in_needle, in_text) = (sample_at(&needle.octets, at + SAMPLE), sample_at(text, place + SAMPLE));
    in_needle == in_text || in_needle.is_none() || in_text.is_none()
}

/// Returns the four octets at a position of a text.
fn sample_at(text: &[u8], at: usize) -> Option<u32> {
    text.get(at..)?.first_chunk().copied().map(u32::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;
    use crate::scrub::needle::Edges;

    fn needles(texts: &[String]) -> Vec<Arc<Needle>> {
        let octets = |text: &String| Zeroizing::new(text.clone().into_bytes());
        texts.iter().map(|text| Arc::new(Needle::spelled(octets(text), Edges::default()))).collect()
    }

    fn is_here(needle: &Needle, rest: &[u8]) -> bool {
        needle.read(rest).is_some()
    }

    /// Returns where needles begin.
    fn met(needles: &[Arc<Needle>], text: &[u8]) -> Vec<(usize, usize)> {
        let mut met = Vec::new();
        Samples::of(needles).unwrap().visit(needles, text, |start, needle| {
            if is_here(&needles[needle], &text[start..]) {
                met.push((start, needle));
            }
        });
        met.sort_unstable();
        met
    }

    #[test]
    fn short_needles_and_very_many_are_not_for_samples() {
        let some = |length: usize, many: usize| needles(&vec!["a".repeat(length); many]);
        assert!(Samples::of(&some(10, 1)).is_none());
        assert!(Samples::of(&some(11, 1)).is_some_and(|samples| samples.stride == 8 && samples.tail() == 10));
        let stride = |length, many| Samples::of(&some(length, many)).map(|samples| samples.stride);
        assert_eq!(
            [stride(99, 64), stride(99, 65), stride(99, 256), stride(99, 257)],
            [Some(32), Some(31), Some(8), None]
        );
        assert!(Samples::of(&[]).is_none());
    }

    proptest! {
        #[test]
        fn every_needle_is_met_once_at_every_place(
            texts in prop_oneof![vec("[ab]{11,16}", 1..4), vec("[a-c]{11,50}", 1..20), vec("[ab&+\\\\]{11,40}", 1..4)],
            plus in select(vec!["+", "%2B", "\\u002b", "&#43;"]),
            backslash in select(vec!["\\", "\\\\", "&#x5C;"]),
            around in vec(("[ab]{0,40}|[ -~]{0,40}", any::<prop::sample::Index>(), any::<prop::sample::Index>()), 0..9),
            ends in select(vec!["", "a", "ab", "~~~~"]),
        ) {
            let needles = needles(&texts);
            let mut text = String::new();
            for (between, which, cut) in around {
                let needle = &texts[which.index(texts.len())];
                // More than half of them are whole.
                let needle = &needle[..needle.len().min(cut.index(2 * needle.len() + 1))];
                text.push_str(&needle.replace('\\', backslash).replace('+', plus));
                text.push_str(&between);
            }
            text.push_str(ends);
            let (text, tail) = (text.as_bytes(), Samples::of(&needles).unwrap().tail());
            let begins = |start: usize| {
                let rest = &text[start..];
                (0..needles.len()).filter(|index| is_here(&needles[*index], rest)).map(move |index| (start, index)).collect::<Vec<_>>()
            };
            let expected: Vec<_> = (0..text.len().saturating_sub(tail)).flat_map(begins).collect();
            let found: Vec<_> =
                met(&needles, text).into_iter().filter(|(start, _)| text.len() - start > tail).collect();
            prop_assert_eq!(found, expected);
            prop_assert!(needles.iter().all(|needle| needle.octets.len() > tail));
        }
    }
}
