//! Masking: replaces every octet of a secret in a stream by `*`, so that lengths, ranges and frames do not change.
//!
//! ```text
//! piece ──► out: [ held back before | piece ]
//!                        │ search, in place
//!                [ settled: masked ][ held: an end in which some secret may begin ]
//!                                         └──► kept unmasked until the next piece, or until the end
//! ```
//!
//! A position is settled when no later octet can change its mask, whatever the secrets are. The scrubber holds back the octets after
//! the last separator (the end of a line, a word, a record, or a JSON string or structure), but at most as many as the longest form
//! of a secret takes. So an event that ends in a line feed or in `}` is never delayed, unless a secret has such an octet. The amount
//! must not depend on whether the end matches the beginning of a secret: an agent that sends its own text through in pieces could
//! read the secret from the delay. The result does not depend on how a text is cut into pieces.
//!
//! The search finds the encodings that `forms` lists, with every character escaped in any way that `spellings` knows, one layer deep.
//! It finds nothing in compressed text: decompress first. Mask before truncating: the beginning of a secret before a cut matches no
//! needle.

mod forms;
mod heads;
mod latin1;
mod needle;
mod needles;
mod samples;
mod separators;
mod spellings;

use std::ops::Range;
use std::{fmt, mem};

use zeroize::{Zeroize, Zeroizing};

pub use forms::Forms;
pub use needles::Needles;
use needles::Occurrence;

const MASK: u8 = b'*';

/// Masks one stream.
pub struct Scrubber {
    needles: Needles,
    held: Zeroizing<Vec<u8>>,
    /// The end, relative to the held octets, of a mask that began before them.
    carried: MaskEnd,
    found: u64,
    occurrences: Vec<Occurrence>,
}

/// The end of a mask.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct MaskEnd {
    end: usize,
    /// The text ends at `end`, and the next character belongs to the mask if it is a base64 character.
    open: bool,
}

impl MaskEnd {
    /// Resolves `open` in a text that has grown.
    fn close(self, text: &[u8]) -> Self {
        match text.get(self.end) {
            _ if !self.open => self,
            Some(next) => Self { end: self.end + usize::from(needles::is_base64(*next)), open: false },
            None => self,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Then {
    More,
    End,
}

impl Scrubber {
    /// Creates a scrubber at the beginning of a stream.
    #[must_use]
    pub fn new(needles: &Needles) -> Self {
        Self {
            needles: needles.clone(),
            held: Zeroizing::default(),
            carried: MaskEnd::default(),
            found: 0,
            occurrences: Vec::new(),
        }
    }

    /// Searches for other needles from here on, also in what is held back.
    pub fn search_for(&mut self, needles: &Needles) {
        self.needles = needles.clone();
    }

    /// Takes the next piece of the stream, and appends the settled octets to `out`: as many octets as came in, less those
    /// held back.
    pub fn push(&mut self, piece: &[u8], out: &mut Vec<u8>) {
        self.pass(piece, out, Then::More);
    }

    /// Ends the stream: appends the held octets to `out`. Another stream may follow.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        self.pass(&[], out, Then::End);
    }

    /// Takes the next piece without copying it, if nothing is masked in it or in the octets held back before it.
    ///
    /// Returns how many octets of the piece the caller may send on unchanged. The octets held back so far are appended to `before`,
    /// which the caller sends first. The rest of the piece is held back.
    ///
    /// Returns `None`, and changes nothing, if something would have to be masked, or if something is held back and the piece is
    /// shorter than [`Needles`] may hold back. The caller then passes the piece to [`Self::push`].
    pub fn settle(&mut self, piece: &[u8], before: &mut Vec<u8>) -> Option<usize> {
        if !self.held.is_empty() {
            let across = piece.get(..self.needles.reach())?;
            let seam = Zeroizing::new([self.held.as_slice(), across].concat());
            if !self.is_clear(&seam) {
                return None;
            }
        }
        if !self.is_clear(piece) {
            return None;
        }
        let hold = self.needles.hold(piece);
        before.append(&mut self.held);
        self.held.extend_from_slice(&piece[hold..]);
        Some(hold)
    }

    /// Returns whether the last piece of the stream may be sent unchanged: nothing was held back before it, and nothing is masked.
    pub fn settles_last(&mut self, piece: &[u8]) -> bool {
        self.held.is_empty() && self.is_clear(piece)
    }

    /// Returns whether nothing in a text is masked, by an occurrence in it or before it.
    fn is_clear(&mut self, text: &[u8]) -> bool {
        if self.carried != MaskEnd::default() {
            return false;
        }
        self.needles.search(text, &mut self.occurrences);
        let is_clear = self.occurrences.is_empty();
        self.occurrences.clear();
        is_clear
    }

    /// Returns whether octets are held back.
    #[must_use]
    pub fn holds_back(&self) -> bool {
        !self.held.is_empty()
    }

    /// Returns how many occurrences have been masked. Overlapping ones count one by one.
    #[must_use]
    pub const fn found(&self) -> u64 {
        self.found
    }

    fn pass(&mut self, piece: &[u8], out: &mut Vec<u8>, then: Then) {
        if self.needles.is_empty() && self.held.is_empty() && self.carried == MaskEnd::default() {
            out.extend_from_slice(piece);
            return;
        }
        let begin = out.len();
        out.reserve(self.held.len() + piece.len());
        out.extend_from_slice(&self.held);
        out.extend_from_slice(piece);
        let text = &mut out[begin..];
        self.needles.search(text, &mut self.occurrences);
        let hold = match then {
            Then::More => self.needles.hold(text),
            Then::End => text.len(),
        };
        if !self.occurrences.is_empty() || self.carried != MaskEnd::default() {
            self.mask(text, hold);
        }
        if then == Then::End {
            self.carried = MaskEnd::default();
        }
        self.held.clear();
        self.held.extend_from_slice(&text[hold..]);
        text[hold..].zeroize();
        out.truncate(begin + hold);
    }

    /// Masks the settled octets. The held octets stay unmasked: they are searched again with the next piece.
    fn mask(&mut self, text: &mut [u8], hold: usize) {
        let mut carried = mem::take(&mut self.carried).close(text);
        // All edges are read before the first octet changes.
        let mut spans: Vec<Range<usize>> = Vec::with_capacity(self.occurrences.len() + 1);
        spans.push(0..carried.end);
        for occurrence in self.occurrences.drain(..) {
            let reach = MaskEnd { end: occurrence.end, open: occurrence.edges.after }.close(text);
            let before = text[..occurrence.start].last().is_some_and(|last| needles::is_base64(*last));
            spans.push(occurrence.start - usize::from(occurrence.edges.before && before)..reach.end);
            if occurrence.start < hold {
                self.found += 1;
                carried = MaskEnd { end: carried.end.max(reach.end), open: carried.open || reach.open };
            }
        }
        for span in spans {
            text[span.start.min(hold)..span.end.min(hold)].fill(MASK);
        }
        if carried.end > hold || carried.open {
            self.carried = MaskEnd { end: carried.end - hold, open: carried.open };
        }
    }
}

impl fmt::Debug for Scrubber {
    /// Shows only the number of held octets, which may be the beginning of a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Scrubber({:?}, {} found, {} octets held)", self.needles, self.found, self.held.len())
    }
}

#[cfg(test)]
mod tests;
