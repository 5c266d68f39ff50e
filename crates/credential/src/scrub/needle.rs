//! A needle: one form of a secret, and its comparison with a text at one position.

use std::ops::Range;

use zeroize::Zeroizing;

use super::separators::Separators;
use super::spellings;

/// One form of one secret.
pub(super) struct Needle {
    /// Its octets without escapes. No spelling of it is shorter.
    pub(super) octets: Zeroizing<Vec<u8>>,
    /// The ranges of the characters with several spellings, each of which is independent of the others.
    variable: Vec<Range<usize>>,
    pub(super) edges: Edges,
    /// The length of its longest spelling.
    pub(super) longest: usize,
    /// The kinds of separators that it has, however it is spelled.
    pub(super) separators: Separators,
}

/// Whether the characters next to a needle hold bits of the secret, as base64 characters at its ends do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Edges {
    pub(super) before: bool,
    pub(super) after: bool,
}

impl Edges {
    pub(super) const fn or(self, other: Self) -> Self {
        Self { before: self.before || other.before, after: self.after || other.after }
    }
}

impl Needle {
    /// Creates a needle with one spelling.
    pub(super) fn exact(octets: Zeroizing<Vec<u8>>) -> Self {
        let (longest, separators) = (octets.len(), Separators::of(&octets));
        Self { octets, variable: Vec::new(), edges: Edges::default(), longest, separators }
    }

    /// Creates a needle that matches however its characters are escaped.
    pub(super) fn spelled(octets: Zeroizing<Vec<u8>>, edges: Edges) -> Self {
        let variable = spellings::variable_characters(&octets);
        let more = |character: &Range<usize>| {
            let ways = spellings::of(&octets[character.clone()]);
            ways.iter().map(|way| way.len()).max().unwrap_or(0).saturating_sub(character.len())
        };
        let longest = octets.len() + variable.iter().map(more).sum::<usize>();
        Self { variable, edges, longest, ..Self::exact(octets) }
    }

    /// Returns it as it is where letters have lost their case.
    pub(super) fn in_lower_case(&self) -> Self {
        let octets = Zeroizing::new(self.octets.to_ascii_lowercase());
        Self { octets, variable: self.variable.clone(), ..*self }
    }

    /// Returns it with the spellings of another needle too, which has the same octets. Returns `None` if it has them.
    pub(super) fn merged_with(&self, other: &Self) -> Option<Self> {
        let edges = self.edges.or(other.edges);
        let spelled = if self.is_exact() { other } else { self };
        if edges == self.edges && spelled.is_exact() == self.is_exact() {
            return None;
        }
        let (octets, variable) = (self.octets.clone(), spelled.variable.clone());
        Some(Self { octets, variable, edges, ..*spelled })
    }

    #[cfg(test)]
    pub(super) fn is_as(&self, other: &Self) -> bool {
        let all = |it: &Self| (it.variable.clone(), it.edges, it.longest, it.separators);
        self.octets == other.octets && all(self) == all(other)
    }

    /// Returns whether it has only one spelling.
    pub(super) const fn is_exact(&self) -> bool {
        self.variable.is_empty()
    }

    /// Returns whether one of its first `length` octets has several spellings.
    pub(super) fn varies_within(&self, length: usize) -> bool {
        self.variable.first().is_some_and(|character| character.start < length)
    }

    /// Returns whether a text begins with a spelling of a character, or ends within one.
    fn may_be_at(&self, character: &Range<usize>, text: &[u8]) -> bool {
        let Some(first) = text.first() else { return true };
        let ways = spellings::of(&self.octets[character.clone()]);
        // Most differ in the first octet.
        let may = |way: &[u8]| way.first() == Some(first) && (text.starts_with(way) || way.starts_with(text));
        ways.iter().any(|way| may(way))
    }

    /// Returns whether a character begins at an offset, instead of including it.
    pub(super) fn begins_at(&self, at: usize) -> bool {
        let character = self.variable.partition_point(|character| character.end <= at);
        self.variable.get(character).is_none_or(|character| character.start >= at)
    }

    /// Matches the needle at the beginning of a text. Returns the end of the longest spelling that matches.
    #[inline]
    pub(super) fn read(&self, text: &[u8]) -> Option<usize> {
        let from = self.variable.first().map_or(self.octets.len(), |character| character.start);
        if !text.starts_with(&self.octets[..from]) {
            return None;
        }
        let Some(character) = self.variable.first() else { return Some(from) };
        if self.may_be_at(character, &text[from..]) { self.read_on(text, from) } else { None }
    }

    /// Continues [`Self::read`] from the first character with several spellings.
    fn read_on(&self, text: &[u8], from: usize) -> Option<usize> {
        // A spelling may begin with another one, as `&amp;` does with `&`. So all are tried in parallel, which takes at most their number
        // times the text. Backtracking could take as many steps as there are sequences of spellings.
        let mut places = vec![from];
        for (index, character) in self.variable.iter().enumerate() {
            let until = self.variable.get(index + 1).map_or(self.octets.len(), |next| next.start);
            let literal = &self.octets[character.end..until];
            let mut next = Vec::with_capacity(places.len());
            let ways = spellings::of(&self.octets[character.clone()]);
            for (place, way) in places.iter().flat_map(|place| ways.iter().map(move |way| (*place, way))) {
                let rest = &text[place..];
                if rest.strip_prefix(&**way).is_some_and(|rest| rest.starts_with(literal)) {
                    next.push(place + way.len() + literal.len());
                }
            }
            next.sort_unstable();
            next.dedup();
            places = next;
            if places.is_empty() {
                break;
            }
        }
        places.last().copied()
    }

    /// Notes where the needle may begin in a text, at `earliest` or later, if its octet `at` is at `place`.
    pub(super) fn begins(
        &self,
        text: &[u8],
        at: usize,
        place: usize,
        earliest: usize,
        note: &mut dyn FnMut(usize),
    ) {
        let mut variable = &self.variable[..self.variable.partition_point(|character| character.end <= at)];
        let literal = |variable: &[Range<usize>], at| {
            &self.octets[variable.last().map_or(0, |character| character.end)..at]
        };
        // Most candidates end here: the first octets of an escape are common.
        let here = self.variable.get(variable.len()).filter(|character| character.start == at);
        if !text[..place].ends_with(literal(variable, at))
            || here.is_some_and(|character| !self.may_be_at(character, &text[place..]))
        {
            return;
        }
        let (mut at, mut places) = (at, vec![place]);
        loop {
            let literal = literal(variable, at);
            places.retain_mut(|place| {
                let fits = text[..*place].ends_with(literal);
                *place -= if fits { literal.len() } else { 0 };
                fits && *place >= earliest
            });
            let Some((character, before)) = variable.split_last().filter(|_| !places.is_empty()) else {
                return places.into_iter().for_each(note);
            };
            let ways = spellings::of(&self.octets[character.clone()]);
            let mut next = Vec::with_capacity(places.len());
            for place in places {
                let fit = ways.iter().filter(|way| text[..place].ends_with(way));
                next.extend(fit.map(|way| place - way.len()));
            }
            next.sort_unstable();
            next.dedup();
            (places, variable, at) = (next, before, character.start);
        }
    }

    /// Notes each spelling of the character at an offset, with the offset of the next character.
    pub(super) fn ways(&self, at: usize, note: &mut dyn FnMut(&[u8], usize)) {
        match self.variable.binary_search_by_key(&at, |character| character.start) {
            Ok(index) => {
                let character = &self.variable[index];
                spellings::of(&self.octets[character.clone()])
                    .iter()
                    .for_each(|way| note(way, character.end));
            }
            Err(_) => {
                if let Some(octet) = self.octets.get(at..at + 1) {
                    note(octet, at + 1);
                }
            }
        }
    }

    /// Notes the first `length` octets of all spellings from an offset on, some of them several times.
    pub(super) fn unfold(&self, at: usize, length: usize, note: &mut dyn FnMut(&[u8])) {
        let character = self.variable.partition_point(|character| character.start < at);
        let until = self.variable.get(character).map_or(self.octets.len(), |character| character.start);
        match self.octets.get(at..at + length) {
            Some(octets) if at + length <= until => note(octets),
            _ => self.unfold_behind(&[], at, length, note),
        }
    }

    /// Notes them after the octets `begun`.
    pub(super) fn unfold_behind(&self, begun: &[u8], at: usize, length: usize, note: &mut dyn FnMut(&[u8])) {
        if let Some(octets) = begun.get(..length) {
            return note(octets);
        }
        self.ways(at, &mut |way, next| {
            let written = Zeroizing::new([begun, way].concat());
            self.unfold_behind(&written, next, length, note);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn needle(text: &str) -> Needle {
        Needle::spelled(Zeroizing::new(text.into()), Edges::default())
    }

    fn read(needle: &Needle, text: &str) -> Option<usize> {
        needle.read(text.as_bytes())
    }

    #[test]
    fn each_character_is_spelled_for_itself() {
        let needle = needle("a+b=+c");
        for (text, end) in [
            ("a+b=+c", Some(6)),
            ("a\\u002Bb&#61;%2bc!", Some(17)),
            ("a\\u002Bb&#61;%2bd", None),
            ("a\\u002Cb=+c", None),
            ("\\u0061+b=+c", None),
        ] {
            assert_eq!(read(&needle, text), end, "{text}");
        }
        for cut in 0..16 {
            assert_eq!(read(&needle, &"a\\u002Bb&#61;%2bc"[..cut]), None);
        }
    }

    #[test]
    fn the_longest_spelling_counts() {
        assert_eq!(read(&needle("a&"), "a&amp;"), Some(6));
        assert_eq!(read(&needle("a&"), "a&am"), Some(2));
        assert_eq!(read(&needle("a&amp;"), "a&amp;"), Some(6));
        assert_eq!(read(&needle("a&amp;"), "a&amp;amp;"), Some(10));
        assert_eq!(needle("a&=").longest, 1 + 2 * "&#x0026;".len());
    }

    #[test]
    fn what_can_be_read_in_very_many_ways_is_read_soon() {
        let (slashes, text) = (needle(&"\\".repeat(300)), "\\".repeat(500));
        assert_eq!(read(&slashes, &text), Some(500));
        let mut begins = Vec::new();
        slashes.begins(text.as_bytes(), 300, 500, 0, &mut |start| begins.push(start));
        assert_eq!(begins, (0..=200).collect::<Vec<_>>());
    }

    #[test]
    fn it_begins_where_it_can_be_read_backwards() {
        let begins = |text: &str, at, place, earliest| {
            let mut begins = Vec::new();
            needle("a+b=c").begins(text.as_bytes(), at, place, earliest, &mut |start| begins.push(start));
            begins
        };
        assert_eq!(begins("..a%2Bb&#61;c", 4, 12, 0), [2]);
        assert_eq!(begins("..a%2Bb&#61;c", 4, 12, 3), [0; 0]);
        assert_eq!(begins("..a%2Cb&#61;c", 4, 12, 0), [0; 0]);
        assert_eq!(begins("..a%2Bb&#61;c", 1, 3, 0), [2]);
        assert_eq!(begins("..a", 0, 2, 0), [2]);
    }
}
