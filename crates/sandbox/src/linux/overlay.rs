//! Overlays, and the overlaid workspace: the folder as lower layer, and a directory of the run as upper layer.
//!
//! The kernel takes layers by name, so both are attached in the private file system for the moment of the mount, and detached afterwards:
//! inside, only the overlay is visible.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, Mode, StatVfsMountFlags};
use rustix::mount::UnmountFlags;
use sys::mount::{self, Flags};

use super::root::Root;
use crate::changes::{WORK, WRITTEN};

/// The names of the layers during the mount.
const BELOW: &CStr = c".below";
const ABOVE: &CStr = c".above";
const FLAGS: Flags = Flags::NO_SUID.and(Flags::NO_DEV);

impl Root {
    /// Mounts the next two trees, the folder and the directory for writes, as an overlay at the folder's own path.
    pub(super) fn overlay_workspace(&mut self, path: &Path) -> io::Result<()> {
        let (below, above) = (self.next_tree()?, self.next_tree()?);
        for tree in [&below, &above] {
            mount::set_flags(tree.as_fd(), FLAGS)?;
        }
        let overlay = self.mount_overlay(below.as_fd(), above.as_fd(), [WRITTEN, WORK])?;
        self.attach(overlay.as_fd(), path)
    }

    /// Returns an overlay over `below`. What is written goes to two directories of `above`: the upper layer and its working directory.
    pub(super) fn mount_overlay(
        &self,
        below: BorrowedFd<'_>,
        above: BorrowedFd<'_>,
        [upper, work]: [&str; 2],
    ) -> io::Result<OwnedFd> {
        let flags = flags_over(rustix::fs::fstatvfs(below)?.f_flag);
        rustix::process::fchdir(self.private()?)?;
        let layers = [(BELOW, below), (ABOVE, above)];
        for (name, tree) in layers {
            rustix::fs::mkdirat(self.private()?, name, Mode::RWXU)?;
            mount::attach(tree, self.private()?, name)?;
        }
        let [upper, work] = [in_above(upper)?, in_above(work)?];
        let options =
            [(c"lowerdir", BELOW), (c"upperdir", &*upper), (c"workdir", &*work), (c"userxattr", c"")];
        let overlay = mount::make(c"overlay", &options, flags)?;
        for (name, _) in layers {
            rustix::mount::unmount(name, UnmountFlags::DETACH)?;
            rustix::fs::unlinkat(self.private()?, name, AtFlags::REMOVEDIR)?;
        }
        Ok(overlay)
    }
}

/// Returns the name of a directory of the upper tree during the mount.
fn in_above(directory: &str) -> io::Result<CString> {
    CString::new([ABOVE.to_bytes(), b"/", directory.as_bytes()].concat()).map_err(io::Error::other)
}

/// Returns the flags of an overlay over a folder. The kernel does not take them over: where no program of the folder can be executed, none
/// could be but by way of the overlay.
fn flags_over(below: StatVfsMountFlags) -> Flags {
    match below.contains(StatVfsMountFlags::NOEXEC) {
        true => FLAGS.and(Flags::NO_EXEC),
        false => FLAGS,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_executed_in_a_folder_cannot_be_in_an_overlay_over_it() {
        let mounted = StatVfsMountFlags::RELATIME | StatVfsMountFlags::RDONLY;
        assert_eq!(flags_over(mounted), FLAGS);
        assert_eq!(flags_over(mounted | StatVfsMountFlags::NOEXEC), FLAGS.and(Flags::NO_EXEC));
    }
}
