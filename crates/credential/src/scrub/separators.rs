//! The octets at which texts usually end, and of which most secrets have none.

/// The kind of a separator octet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Separator {
    LineEnd = 1,
    Blank = 2,
    /// Record separators and the like. No secret that a user stores has any.
    Control = 4,
    /// The end of a JSON string or structure.
    JsonEnd = 8,
}

impl Separator {
    pub(super) const fn of(octet: u8) -> Option<Self> {
        match octet {
            b'\n' | b'\r' | 0 => Some(Self::LineEnd),
            b' ' | b'\t' => Some(Self::Blank),
            0x01..=0x1f | 0x7f => Some(Self::Control),
            b'}' | b']' | b'"' => Some(Self::JsonEnd),
            _ => None,
        }
    }
}

/// A set of kinds of separators.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Separators(u8);

impl Separators {
    /// Returns the kinds that a text has.
    pub(super) fn of(text: &[u8]) -> Self {
        let kinds = text.iter().filter_map(|octet| Separator::of(*octet));
        Self(kinds.fold(0, |all, kind| all | kind as u8))
    }

    pub(super) const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(super) const fn have(self, kind: Separator) -> bool {
        self.0 & kind as u8 != 0
    }
}
