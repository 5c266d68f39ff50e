//! Finding needles in a long text by looks at a small part of it. Where the shortest needle has `n` octets, one look at every
//! `n - 3`, at four octets each, meets every occurrence of every needle once within its first `n`.
//!
//! ```text
//! text    ┊----·········┊----·········┊----·········┊----·········   what is looked at, every 14 octets
//!                         sk-live-012345678   of 17 octets: met by `5678`, which it has at 13
//! ```
//!
//! Four octets that are a needle's are only a reason to look: the caller compares the needle. Two secrets of 40 octets, which make 20
//! needles, on a busy two-core machine, the best of some series: 2.6 to 4.2 µs for 64 KiB, where `heads` took 4.8 to 7.1; made in 30 µs.

use std::ops::Range;

use zeroize::Zeroizing;

use super::needle::Needle;

/// The octets of a look.
const LOOK: usize = 4;
/// How far apart two looks are at most, for what is known grows with it, and at least, for `heads` is faster then.
const FURTHEST: usize = 32;
const NEAREST: usize = 8;
/// How many looks are known at most, and how many bits the filter has for each: it is to stay in the processor's first cache.
const MOST_KNOWN: usize = 2 << 10;
const BITS_EACH: usize = 64;

/// The looks by which a set of needles is met.
pub(super) struct Samples {
    /// How far apart two looks at a text are.
    stride: usize,
    /// A bit for each hash of a look: set where one that is known has it.
    filter: Zeroizing<Vec<u64>>,
    /// By how much a hash is shifted to be the number of a bit.
    shift: u32,
    /// All that are known, in order, one for each place.
    looks: Zeroizing<Vec<u32>>,
    places: Vec<Place>,
}

/// Where four octets are in a needle.
#[derive(Clone, Copy)]
struct Place {
    needle: usize,
    at: usize,
}

impl Samples {
    /// None where the shortest needle is too short to spare many looks, or there are too many of them.
    pub(super) fn of(needles: &[Needle]) -> Option<Self> {
        let shortest = needles.iter().map(|needle| needle.octets.len()).min()?;
        let stride = (shortest + 1).saturating_sub(LOOK).min(FURTHEST).min(MOST_KNOWN / needles.len());
        if stride < NEAREST {
            return None;
        }
        let bits = (needles.len() * stride * BITS_EACH).next_power_of_two();
        let look = |place: &Place| look_at(&needles[place.needle].octets, place.at);
        let everywhere = |needle| (0..stride).map(move |at| Place { needle, at });
        let mut places: Vec<Place> = (0..needles.len()).flat_map(everywhere).collect();
        places.sort_unstable_by_key(look);
        let looks = Zeroizing::new(places.iter().filter_map(look).collect());
        let filter = Zeroizing::new(vec![0; bits / 64]);
        let mut samples = Self { stride, filter, shift: u32::BITS - bits.ilog2(), looks, places };
        for index in 0..samples.looks.len() {
            let (word, bit) = samples.bit(samples.looks[index]);
            samples.filter[word] |= bit;
        }
        Some(samples)
    }

    /// Every position where a needle may begin, with that needle: each one that does once, unless the text ends within [`Self::tail`]
    /// octets of it. The order is not that of the text.
    pub(super) fn visit(&self, text: &[u8], mut visit: impl FnMut(usize, Range<usize>)) {
        let mut at = 0;
        while let Some(look) = look_at(text, at) {
            let (word, bit) = self.bit(look);
            if self.filter[word] & bit != 0 {
                let from = self.looks.partition_point(|known| *known < look);
                let known = self.looks[from..].iter().take_while(|known| **known == look);
                for (place, _) in self.places[from..].iter().zip(known) {
                    if let Some(start) = at.checked_sub(place.at) {
                        visit(start, place.needle..place.needle + 1);
                    }
                }
            }
            at += self.stride;
        }
    }

    /// Of how many octets at the end of a text nothing is said. No whole needle is as short.
    pub(super) const fn tail(&self) -> usize {
        self.stride + LOOK - 2
    }

    /// Which bit of the filter is that of a look: its word, and its mask there.
    fn bit(&self, look: u32) -> (usize, u64) {
        // The golden ratio's: it spreads what differs in its low bits alone.
        let hash = look.wrapping_mul(0x9e37_79b1) >> self.shift;
        (hash as usize / 64, 1 << (hash % 64))
    }
}

/// The four octets at a place of a text.
fn look_at(text: &[u8], at: usize) -> Option<u32> {
    text.get(at..)?.first_chunk().copied().map(u32::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;
    use crate::scrub::needle::Edges;

    fn needles(texts: &[String]) -> Vec<Needle> {
        let needle = |text: &String| Needle {
            octets: Zeroizing::new(text.clone().into_bytes()),
            edges: Edges::default(),
        };
        texts.iter().map(needle).collect()
    }

    /// Where needles begin, whole or cut off by the end of the text.
    fn met(needles: &[Needle], text: &[u8]) -> Vec<(usize, usize)> {
        let mut met = Vec::new();
        Samples::of(needles).unwrap().visit(text, |start, group| {
            let (rest, needle) = (&text[start..], &needles[group.start].octets);
            if rest.starts_with(needle) || needle.starts_with(rest) {
                met.push((start, group.start));
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
            texts in prop_oneof![vec("[ab]{11,16}", 1..4), vec("[a-c]{11,50}", 1..20)],
            around in vec(("[ab]{0,40}|[ -~]{0,40}", any::<prop::sample::Index>(), any::<prop::sample::Index>()), 0..9),
            ends in select(vec!["", "a", "ab", "~~~~"]),
        ) {
            let needles = needles(&texts);
            let mut text = String::new();
            for (between, which, cut) in around {
                let needle = &texts[which.index(texts.len())];
                // More than half of them whole.
                text.push_str(&needle[..needle.len().min(cut.index(2 * needle.len() + 1))]);
                text.push_str(&between);
            }
            text.push_str(ends);
            let (text, tail) = (text.as_bytes(), Samples::of(&needles).unwrap().tail());
            let begins = |start: usize| {
                let rest = &text[start..];
                let here = move |needle: &Needle| rest.starts_with(&needle.octets) || needle.octets.starts_with(rest);
                (0..needles.len()).filter(|index| here(&needles[*index])).map(move |index| (start, index)).collect::<Vec<_>>()
            };
            let expected: Vec<_> = (0..text.len().saturating_sub(tail)).flat_map(begins).collect();
            let found: Vec<_> =
                met(&needles, text).into_iter().filter(|(start, _)| text.len() - start > tail).collect();
            prop_assert_eq!(found, expected);
            prop_assert!(needles.iter().all(|needle| needle.octets.len() > tail));
        }
    }
}
