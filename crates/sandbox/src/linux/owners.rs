//! Id-mapped mounts: files of an owner outside appear as the run's own.
//!
//! The id map is that of a user namespace which exists only for this.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use sys::held::Held;
use sys::mount;
use sys::privilege::IdMap;
use sys::process::Namespaces;

use crate::plan::ids::{IdRange, Identity};
use crate::source;

/// The id maps of a run, one for each owner.
pub(crate) struct Owners {
    identity: Identity,
    made: Vec<(Owner, OwnedFd)>,
    /// The holders of the namespaces. They are waited for at the end, because the kernel takes a millisecond over each.
    leaving: Vec<Held>,
}

/// The owner that a map is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    /// One user and group, mapped to the run's own.
    One(u32, u32),
    /// Every owner, each mapped to the same id inside.
    All(IdRange),
}

impl Owners {
    pub(crate) fn new(identity: Identity) -> Self {
        Self { identity, made: Vec::new(), leaving: Vec::new() }
    }

    /// Maps the owner of `opened` to the run's identity on the detached `tree`.
    pub(crate) fn map(&mut self, tree: BorrowedFd<'_>, opened: BorrowedFd<'_>) -> io::Result<()> {
        let (uid, gid) = source::owner(opened)?;
        self.map_to(tree, Owner::One(uid, gid))
    }

    /// Maps every owner on the detached `tree` of an image's layer to the same id inside, or to the one id if the run has no more.
    pub(crate) fn map_all(&mut self, tree: BorrowedFd<'_>, opened: BorrowedFd<'_>) -> io::Result<()> {
        match self.identity.range {
            Some(range) => self.map_to(tree, Owner::All(range)),
            None => self.map(tree, opened),
        }
    }

    fn map_to(&mut self, tree: BorrowedFd<'_>, owner: Owner) -> io::Result<()> {
        let known = self.made.iter().position(|(known, _)| *known == owner);
        let index = match known {
            Some(index) => index,
            None => {
                let map = self.make(owner)?;
                self.made.push((owner, map));
                self.made.len() - 1
            }
        };
        mount::map_owners(tree, self.made[index].1.as_fd())
    }

    fn make(&mut self, owner: Owner) -> io::Result<OwnedFd> {
        // In a mount's id map, inside is the id on disk, and outside the id that the run sees.
        let (uid, gid) = match owner {
            Owner::One(uid, gid) => {
                (IdMap::one(uid, self.identity.uid.outside), IdMap::one(gid, self.identity.gid.outside))
            }
            Owner::All(range) => (range.map(), range.map()),
        };
        let held = Held::begin(Namespaces::NONE, Vec::new())?;
        let namespace = held.open_user(uid, gid)?;
        self.leaving.push(held);
        Ok(namespace)
    }
}
