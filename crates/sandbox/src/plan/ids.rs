//! User and group ids, inside a sandbox and outside of it.

use sys::privilege::IdMap;

use crate::subordinate::SubordinateIds;

/// The bit in which the sidecar's single id differs from the run's.
const SIDECAR_BIT: u32 = 0x0080_0000;

/// One user or group id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappedId {
    /// The id in the sandbox's user namespace.
    pub inside: u32,
    /// The id on the host.
    pub outside: u32,
}

impl MappedId {
    /// An id that is not mapped: the same number on both sides.
    pub(super) fn unmapped(id: u32) -> Self {
        Self { inside: id, outside: id }
    }

    /// The map of a user namespace that has this id alone.
    pub(crate) fn map(self) -> IdMap {
        IdMap::one(self.inside, self.outside)
    }
}

/// Whose ids the command has on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdMapping {
    /// Ids assigned to this run, of those that docs/sandbox.md tells to keep free of users. Only root can map them.
    Private,
    /// The ids of the caller, or of the user that an engine runs the command as.
    Callers,
}

/// The ids of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The user id.
    pub uid: MappedId,
    /// The group id.
    pub gid: MappedId,
    /// Whose ids these are on the host.
    pub mapping: IdMapping,
    /// All ids of the sandbox, if root started the run and it has more than one.
    pub range: Option<IdRange>,
    /// Further ids of the sandbox, if the caller is not root and subordinate ids are assigned to them. The command's own id
    /// stays the caller's.
    pub subordinate: Option<SubordinateIds>,
    /// Whether the image's files keep the owners that the image states. The run then cannot do without these ids.
    pub owners_kept: bool,
}

impl Identity {
    /// An identity of one private user id and one private group id.
    pub(super) fn private(uid: MappedId, gid: MappedId) -> Self {
        Self { uid, gid, mapping: IdMapping::Private, range: None, subordinate: None, owners_kept: false }
    }

    /// An identity that belongs to somebody on the host already.
    pub(super) fn callers(uid: MappedId, gid: MappedId) -> Self {
        Self { mapping: IdMapping::Callers, ..Self::private(uid, gid) }
    }

    /// Returns an identity whose sidecar has the id `id`.
    #[must_use]
    pub fn with_sidecar_id(id: u32) -> Self {
        let run = MappedId::unmapped(id ^ SIDECAR_BIT);
        Self::private(run, run)
    }

    /// Returns the user and group id of the sidecar on the host, if root started the run. The sandbox maps neither.
    #[must_use]
    pub fn sidecar_ids(&self) -> (u32, u32) {
        match self.range {
            Some(range) => (range.first + IdRange::INSIDE, range.first + IdRange::INSIDE),
            None => (self.uid.outside ^ SIDECAR_BIT, self.gid.outside ^ SIDECAR_BIT),
        }
    }

    /// Whether the ids on the host are private to the run.
    pub(crate) fn is_private(&self) -> bool {
        self.mapping == IdMapping::Private
    }
}

/// Consecutive host ids, onto which the ids from 0 on inside are mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdRange {
    pub(super) first: u32,
}

impl IdRange {
    /// The number of ids a range has inside. The next one on the host is the sidecar's.
    pub(super) const INSIDE: u32 = 0xffff;
    /// The first id that a run of root's may have on the host.
    pub(crate) const FIRST: u32 = 0x4000_0000;
    /// The first id of the first range, and the number of ranges: below the single ids, above those of accounts on this machine and of its
    /// subordinate ranges. A directory service may give such ids too.
    const PLACES: (u32, u32) = (Self::FIRST, 0x3000);

    /// Returns a range by its number. Numbers wrap around after the last range.
    #[must_use]
    pub fn numbered(number: u32) -> Self {
        Self { first: Self::PLACES.0 + (number % Self::PLACES.1) * (Self::INSIDE + 1) }
    }

    /// Returns the number of ranges.
    #[must_use]
    pub fn count() -> u32 {
        Self::PLACES.1
    }

    /// Returns the host's id for an id inside.
    pub(super) fn mapped(self, inside: u32) -> MappedId {
        MappedId { inside, outside: self.first + inside }
    }

    /// The map of a user namespace that has this range.
    pub(crate) fn map(self) -> IdMap {
        IdMap { inside: 0, outside: self.first, count: Self::INSIDE }
    }
}
