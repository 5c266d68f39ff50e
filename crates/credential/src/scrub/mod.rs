//! Masking: every occurrence of a secret in a stream becomes as many `*`, so lengths, ranges and frames stay what they were.
//!
//! ```text
//! piece ──► out: [ what was held back | piece ]
//!                        │ search, in place
//!                [ settled: masked ][ held: an end in which some secret may begin ]
//!                                         └──► kept raw until the next piece, or until the end
//! ```
//!
//! A position is settled when no later octet can change what becomes of it, whatever the secrets are. What is held is what follows the
//! last end of a line, word, record, or text or structure of JSON, or as much as the longest form of a secret may take, whichever is less:
//! an event that ends in a line feed or in `}` is never delayed, unless a secret has such an octet. Held is not what happens to be the beginning of a secret: whoever has a text of their own sent through here in
//! pieces would see by that how much of it is one. Any cutting of a text into pieces gives the same result.
//!
//! It finds the encodings that `forms` lists, with every character escaped in any way that `spellings` knows, one layer deep, and
//! nothing inside compressed text: decompress first. Redact before you truncate, or the cut leaves a beginning that nothing matches
//! any more.

mod forms;
mod heads;
mod needle;
mod needles;
mod samples;
mod spellings;

use std::ops::Range;
use std::{fmt, mem};

use zeroize::{Zeroize, Zeroizing};

pub use needles::Needles;
use needles::Occurrence;

const MASK: u8 = b'*';

/// Masks one stream.
pub struct Scrubber {
    needles: Needles,
    held: Zeroizing<Vec<u8>>,
    /// How far into what is held (and perhaps one character beyond) an occurrence reaches that began before it.
    carried: MaskEnd,
    found: u64,
    occurrences: Vec<Occurrence>,
}

/// The end of a mask.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct MaskEnd {
    end: usize,
    /// The text ends at `end`, and the next character belongs to the mask if it is one of base64.
    open: bool,
}

impl MaskEnd {
    /// The end in a text that has grown.
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
    /// A scrubber at the beginning of a stream.
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

    /// Takes the next piece of the stream in, and appends to `out` what is settled: as many octets as came in, less those
    /// held back.
    pub fn push(&mut self, piece: &[u8], out: &mut Vec<u8>) {
        self.pass(piece, out, Then::More);
    }

    /// Ends the stream: appends to `out` what was held back. Another stream may follow.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        self.pass(&[], out, Then::End);
    }

    /// Takes the next piece without copying it, if nothing is masked in it or in what was held back before it.
    ///
    /// Returns how many octets of the piece the caller may send on unchanged. It sends `before` first: what was held back so far is
    /// appended there. The rest of the piece is held back.
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

    /// Whether the last piece of the stream goes on as it is, where nothing was held back before it and nothing of it is masked.
    pub fn settles_last(&mut self, piece: &[u8]) -> bool {
        self.held.is_empty() && self.is_clear(piece)
    }

    /// Whether nothing of a text is masked, for what is in it or before it.
    fn is_clear(&mut self, text: &[u8]) -> bool {
        if self.carried != MaskEnd::default() {
            return false;
        }
        self.needles.search(text, &mut self.occurrences);
        let is_clear = self.occurrences.is_empty();
        self.occurrences.clear();
        is_clear
    }

    /// How many occurrences have been masked, those that overlap counted one by one.
    #[must_use]
    pub const fn found(&self) -> u64 {
        self.found
    }

    fn pass(&mut self, piece: &[u8], out: &mut Vec<u8>, then: Then) {
        if self.needles.is_empty() {
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

    /// Masks what is settled. What is held stays raw: it is searched again with what follows.
    fn mask(&mut self, text: &mut [u8], hold: usize) {
        let mut carried = mem::take(&mut self.carried).close(text);
        // All edges are looked at before the first octet changes.
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
    /// What is held may be the beginning of a secret: only its length is shown.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Scrubber({:?}, {} found, {} octets held)", self.needles, self.found, self.held.len())
    }
}

#[cfg(test)]
mod tests;
