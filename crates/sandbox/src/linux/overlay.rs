//! The overlaid workspace: the folder as lower layer, and a directory of the run as upper layer.
//!
//! The kernel takes layers by name, so both are attached in the private file system for the moment of the mount, and detached afterwards:
//! inside, only the overlay is visible.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, StatVfsMountFlags};
use sys::mount::{self, Flags};

use super::root::Root;
use crate::changes::{WORK, WRITTEN};
use crate::source;

/// The names of the layers during the mount.
const BELOW: &str = ".below";
const ABOVE: &str = ".above";
const FLAGS: Flags = Flags::NO_SUID.and(Flags::NO_DEV);

impl Root {
    /// Mounts the next two trees, the folder and the directory for writes, as an overlay at the folder's own path.
    pub(super) fn overlay_workspace(&mut self, path: &Path) -> io::Result<()> {
        let trees = [(BELOW, self.next_tree()?), (ABOVE, self.next_tree()?)];
        let flags = flags_over(rustix::fs::fstatvfs(&trees[0].1)?.f_flag);
        rustix::process::fchdir(self.private()?)?;
        for (name, tree) in &trees {
            rustix::fs::mkdirat(self.private()?, *name, Mode::RWXU)?;
            mount::set_flags(tree.as_fd(), FLAGS)?;
            mount::attach(tree.as_fd(), self.private()?, &source::c_path(Path::new(name)))?;
        }
        let overlay = mounted(flags)?;
        for (name, _) in &trees {
            rustix::mount::unmount(*name, rustix::mount::UnmountFlags::DETACH)?;
            rustix::fs::unlinkat(self.private()?, *name, rustix::fs::AtFlags::REMOVEDIR)?;
        }
        self.attach(overlay.as_fd(), path)
    }
}

/// Returns the flags of an overlay over a folder. The kernel does not take them over: where no program of the folder can be executed, none
/// could be but by way of the overlay.
fn flags_over(below: StatVfsMountFlags) -> Flags {
    match below.contains(StatVfsMountFlags::NOEXEC) {
        true => FLAGS.and(Flags::NO_EXEC),
        false => FLAGS,
    }
}

fn mounted(flags: Flags) -> io::Result<OwnedFd> {
    let name = |text: String| std::ffi::CString::new(text).map_err(io::Error::other);
    let (lower, upper, work) =
        (name(BELOW.into())?, name(format!("{ABOVE}/{WRITTEN}"))?, name(format!("{ABOVE}/{WORK}"))?);
    let options = [
        (c"lowerdir", lower.as_c_str()),
        (c"upperdir", upper.as_c_str()),
        (c"workdir", work.as_c_str()),
        (c"userxattr", c""),
    ];
    mount::make(c"overlay", &options, flags)
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
