//! One thing to look for.

use zeroize::Zeroizing;

/// One form of one secret.
pub(super) struct Needle {
    pub(super) octets: Zeroizing<Vec<u8>>,
    pub(super) edges: Edges,
}

/// Whether the characters beside a needle hold bits of the secret: those of base64 that straddle its ends.
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
