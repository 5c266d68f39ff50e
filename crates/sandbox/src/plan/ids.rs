//! Ids inside and outside.

use sys::privilege::IdMap;

use crate::subordinate::SubordinateIds;

/// What tells the sidecar's id from the run's own, where each is one.
const BESIDE: u32 = 0x0080_0000;

/// Ids inside and outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The user id inside and outside.
    pub uid: (u32, u32),
    /// The group id inside and outside.
    pub gid: (u32, u32),
    /// Whether the ids outside are the run's own, because root started it.
    pub own: bool,
    /// All ids inside, where root started the run and there is more than one.
    pub range: Option<IdRange>,
    /// The same where they are lent to a caller who is not root; the command's own is the caller's.
    pub subordinate: Option<SubordinateIds>,
    /// Whether the files of the image belong to whom it says, so that there is no run without those ids.
    pub owners_kept: bool,
}

impl Identity {
    /// Ids that are the run's own, each alone.
    pub(super) fn own(uid: (u32, u32), gid: (u32, u32)) -> Self {
        Self { uid, gid, own: true, range: None, subordinate: None, owners_kept: false }
    }

    /// The same ids inside and outside.
    pub(super) fn same((uid, gid): (u32, u32)) -> Self {
        Self::found((uid, uid), (gid, gid))
    }

    /// Somebody whom nothing is made for: each id inside, and whose it is outside.
    pub(super) fn found(uid: (u32, u32), gid: (u32, u32)) -> Self {
        Self { own: false, ..Self::own(uid, gid) }
    }

    /// An identity of which the one beside is `id`.
    #[must_use]
    pub fn beside_of(id: u32) -> Self {
        let own = (id ^ BESIDE, id ^ BESIDE);
        Self::own(own, own)
    }

    /// The ids of the sidecar, where root started the run: nobody's inside.
    #[must_use]
    pub fn beside(&self) -> (u32, u32) {
        match self.range {
            Some(range) => (range.first + IdRange::INSIDE, range.first + IdRange::INSIDE),
            None => (self.uid.1 ^ BESIDE, self.gid.1 ^ BESIDE),
        }
    }
}

/// Ids outside that stand for those from 0 on inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdRange {
    pub(super) first: u32,
}

impl IdRange {
    /// How many ids a range has inside. The one after them is the sidecar's.
    pub(super) const INSIDE: u32 = 0xffff;
    /// Where ranges begin, and how many there are: below the single ids, above everybody else's.
    const PLACES: (u32, u32) = (0x4000_0000, 0x3000);

    /// A range by its number; numbers beyond the last begin again.
    #[must_use]
    pub fn numbered(number: u32) -> Self {
        Self { first: Self::PLACES.0 + (number % Self::PLACES.1) * (Self::INSIDE + 1) }
    }

    /// How many ranges there are.
    #[must_use]
    pub fn count() -> u32 {
        Self::PLACES.1
    }

    /// The map of a user namespace that has it.
    pub(crate) fn map(self) -> IdMap {
        IdMap { inside: 0, outside: self.first, count: Self::INSIDE }
    }
}
