//! Owners as the run sees them: a mount whose files belong to somebody outside, shown as the run's own.
//!
//! The map is a user namespace that exists only to be named: a child holds it while its descriptor is opened.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::process::Signal;
use sys::privilege::{self, IdPair};
use sys::process::{self, Child, Namespaces};
use sys::{descriptor, mount};

use crate::plan::Identity;
use crate::source;

/// Owner maps that were made, one for each owner that was met.
pub(crate) struct Owners {
    identity: Identity,
    made: Vec<((u32, u32), OwnedFd)>,
    /// Those that held a namespace open; waited for at the end, for the kernel takes a millisecond over each.
    leaving: Vec<Child>,
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
        use std::os::fd::AsFd;
        let owner = source::owner(opened)?;
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

    fn make(&mut self, owner: (u32, u32)) -> io::Result<OwnedFd> {
        let (ours, theirs) = descriptor::message_pair()?;
        let child = process::clone(Namespaces::USER, None, move || {
            let _ = process::die_with_parent();
            // Waits to be killed; the message never comes.
            let _ = descriptor::receive(&theirs, &mut [0; 1]);
            0
        })?;
        let directory = format!("/proc/{}", child.pid().as_raw_nonzero());
        // In a mount's map the inside is what is on disk, and the outside what the run sees.
        let pair = |disk, seen: (u32, u32)| IdPair { inside: disk, outside: seen.1 };
        let written = privilege::write_foreign_id_maps(
            &directory,
            pair(owner.0, self.identity.uid),
            pair(owner.1, self.identity.gid),
        );
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
