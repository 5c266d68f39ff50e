//! Id-mapped mounts: files of an owner outside appear as the run's own.
//!
//! The id map is that of a user namespace which exists only for this.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::io::Errno;
use sys::holder::Holder;
use sys::mount;
use sys::privilege::IdMap;
use sys::process::Namespaces;

use crate::error::Error;
use crate::failure::Failure;
use crate::need::Need;
use crate::plan::ids::{IdRange, Identity};
use crate::{mounted, source};

/// A file system cannot do that, or the mount is id-mapped already, mount_setattr(2).
const UNMAPPABLE: [Errno; 2] = [Errno::INVAL, Errno::PERM];

/// The id maps of a run, one for each owner.
pub(crate) struct Owners {
    identity: Identity,
    made: Vec<(Owner, OwnedFd)>,
    /// The holders of the namespaces. They are waited for at the end, because the kernel takes a millisecond over each.
    leaving: Vec<Holder>,
}

/// The owner that a map is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    /// One user and group, mapped to the run's own, and that user's files of other groups.
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
                let map = self.make(owner).map_err(|error| match Errno::from_io_error(&error) {
                    Some(errno) if source::is_of_this_machine(errno) => error,
                    // What the kernel says here is not of the mount's file system.
                    _ => io::Error::other(error),
                })?;
                self.made.push((owner, map));
                self.made.len() - 1
            }
        };
        mount::map_owners(tree, self.made[index].1.as_fd())
    }

    fn make(&mut self, owner: Owner) -> io::Result<OwnedFd> {
        // In a mount's id map, inside is the id on disk, and outside the id that the run sees.
        let (uids, gids) = match owner {
            Owner::One(uid, gid) => {
                (vec![IdMap::one(uid, self.identity.uid.outside)], groups(gid, self.identity.gid.outside))
            }
            Owner::All(range) => (vec![range.map()], vec![range.map()]),
        };
        let holder = Holder::begin(Namespaces::NONE, Vec::new())?;
        let namespace = holder.open_user(&uids, &gids)?;
        self.leaving.push(holder);
        Ok(namespace)
    }
}

/// Returns the map of one group to the run's own, and of every other group to itself. The kernel lets nobody write to a file whose group
/// is not mapped, not even its owner. No process of a run is in another group, so the groups give it nothing: the user must be the owner.
/// Ids of other runs are left out.
fn groups(one: u32, own: u32) -> Vec<IdMap> {
    let same = |first, end: u32| IdMap { inside: first, outside: first, count: end.saturating_sub(first) };
    let others = [same(0, one.min(IdRange::FIRST)), same(one.saturating_add(1), IdRange::FIRST)];
    let others = others.into_iter().filter(|others| others.count > 0);
    std::iter::once(IdMap::one(one, own)).chain(others).collect()
}

/// Whether a file system said that it maps no owners.
pub(super) fn is_of_the_file_system(error: &io::Error) -> bool {
    Errno::from_io_error(error).is_some_and(|errno| UNMAPPABLE.contains(&errno))
}

/// Returns what the namespace of a map needs that could not be made. What the kernel says of the ids, `EINVAL`, is none.
fn need_of_namespace(error: &io::Error) -> Option<Need> {
    let of_namespace = error.get_ref()?.downcast_ref::<io::Error>()?;
    Need::of_namespaces(of_namespace).filter(|_| Errno::from_io_error(of_namespace) != Some(Errno::INVAL))
}

/// Returns the error for a folder whose owner was not mapped.
pub(super) fn unmapped(path: &Path, source: io::Error) -> Error {
    let path = path.to_path_buf();
    match Errno::from_io_error(&source) {
        _ if is_of_the_file_system(&source) => {
            let below = mounted::first_below(&path).ok().flatten();
            Error::Unmappable { path, below }
        }
        Some(errno) if source::is_of_this_machine(errno) => Error::Open { path, source },
        _ => match need_of_namespace(&source) {
            Some(need) => {
                let step = format!("map the owners of `{}`", path.display());
                Error::Step(Failure::new(step, source).needing(need))
            }
            None => Error::Source { path, why: format!("its owners cannot be mapped: {source}") },
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_this_machine_lacks_is_not_told_of_the_folder() {
        let unmapped = |errno: Errno| unmapped(Path::new("/nonesuch"), errno.into());
        assert!(matches!(unmapped(Errno::MFILE), Error::Open { .. }));
        assert!(matches!(unmapped(UNMAPPABLE[0]), Error::Unmappable { .. }));
        assert!(matches!(unmapped(Errno::BADF), Error::Source { .. }));
        let no_map = |errno: Errno| super::unmapped(Path::new("/"), io::Error::other(io::Error::from(errno)));
        let remedy = no_map(Errno::NOSPC).remedy().unwrap();
        assert!(remedy.contains("user.max_"), "{remedy}");
        assert!(no_map(Errno::INVAL).remedy().is_none());
        // Of a layer, it is the place of the images that the caller can choose.
        let of_a_layer = unmapped(UNMAPPABLE[0]).of_the_store().remedy().unwrap();
        assert!(of_a_layer.contains("XDG_DATA_HOME"), "{of_a_layer}");
    }

    #[test]
    fn every_group_but_those_of_runs_is_mapped_once() {
        let maps = |one| -> Vec<_> {
            let maps = groups(one, 0x7000_0001).into_iter();
            maps.map(|IdMap { inside, outside, count }| (inside, outside, count)).collect()
        };
        let (own, end) = (0x7000_0001, IdRange::FIRST);
        assert_eq!(maps(0), [(0, own, 1), (1, 1, end - 1)]);
        assert_eq!(maps(1000), [(1000, own, 1), (0, 0, 1000), (1001, 1001, end - 1001)]);
        assert_eq!(maps(end - 1), [(end - 1, own, 1), (0, 0, end - 1)]);
        assert_eq!(maps(end + 7), [(end + 7, own, 1), (0, 0, end)]);
    }
}
