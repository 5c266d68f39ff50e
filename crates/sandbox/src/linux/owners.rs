//! Owners as the run sees them: a mount whose files belong to somebody outside, shown as the run's own.
//!
//! The map is a user namespace that exists only to be named: a child holds it while its descriptor is opened.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::process::Signal;
use sys::privilege::{self, IdMap};
use sys::process::{self, Child, Namespaces};
use sys::{descriptor, mount};

use crate::plan::{IdRange, Identity};
use crate::source;

/// Owner maps that were made, one for each owner that was met.
pub(crate) struct Owners {
    identity: Identity,
    made: Vec<(Owner, OwnedFd)>,
    /// Those that held a namespace open; waited for at the end, for the kernel takes a millisecond over each.
    leaving: Vec<Child>,
}

/// Whose files a map is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    /// One user's and group's, who become the run's own.
    One(u32, u32),
    /// Everybody's, each of whom becomes the one of that id inside.
    All(IdRange),
}

impl Drop for Owners {
    fn drop(&mut self) {
        for child in &self.leaving {
            let _ = child.wait();
        }
    }
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

    /// Maps every owner on the detached `tree` of an image's layer to the same id inside; the one there is, where the run
    /// has no more.
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
        let (ours, theirs) = descriptor::message_pair()?;
        let child = process::clone(Namespaces::USER, None, move || {
            let _ = process::die_with_parent();
            // Of what the parent has open nothing outlives it here, and its end of this socket least of all.
            if descriptor::close_all_but(&[theirs.as_fd()]).is_err() {
                return 1;
            }
            // Waits to be killed; the message never comes.
            let _ = descriptor::receive(&theirs, &mut [0; 1]);
            0
        })?;
        let directory = format!("/proc/{}", child.pid().as_raw_nonzero());
        // In a mount's map the inside is what is on disk, and the outside what the run sees.
        let (uid, gid) = match owner {
            Owner::One(uid, gid) => {
                (IdMap::one(uid, self.identity.uid.1), IdMap::one(gid, self.identity.gid.1))
            }
            Owner::All(range) => (range.map(), range.map()),
        };
        let written = privilege::write_foreign_id_maps(&directory, uid, gid);
        let opened = written.and_then(|()| {
            Ok(rustix::fs::open(
                format!("{directory}/ns/user"),
                OFlags::RDONLY | OFlags::CLOEXEC,
                Mode::empty(),
            )?)
        });
        child.signal(Signal::KILL)?;
        self.leaving.push(child);
        drop(ours);
        opened
    }
}
