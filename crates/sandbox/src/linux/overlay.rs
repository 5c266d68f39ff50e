//! The workspace with what is written kept apart: the folder below, and a directory of the run's own above it.
//!
//! The kernel takes its layers by name, so both are put into the private file system for the moment of the mount, and taken out
//! again: inside there is only the one that lies over them.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::Mode;
use sys::mount::{self, Flags};

use super::root::Root;
use crate::changes::{WORK, WRITTEN};
use crate::source;

/// The names of that moment.
const BELOW: &str = ".below";
const ABOVE: &str = ".above";
const FLAGS: Flags = Flags::NO_SUID.and(Flags::NO_DEV);

impl Root {
    /// Shows the next two trees, the folder and the directory of what is written, as one at the folder's own path.
    pub(super) fn overlay_workspace(&mut self, path: &Path) -> io::Result<()> {
        let trees = [(BELOW, self.next_tree()?), (ABOVE, self.next_tree()?)];
        rustix::process::fchdir(self.private()?)?;
        for (name, tree) in &trees {
            rustix::fs::mkdirat(self.private()?, *name, Mode::RWXU)?;
            mount::set_flags(tree.as_fd(), FLAGS)?;
            mount::attach(tree.as_fd(), self.private()?, &source::c_path(Path::new(name)))?;
        }
        let overlay = mounted()?;
        for (name, _) in &trees {
            rustix::mount::unmount(*name, rustix::mount::UnmountFlags::DETACH)?;
            rustix::fs::unlinkat(self.private()?, *name, rustix::fs::AtFlags::REMOVEDIR)?;
        }
        self.attach(overlay.as_fd(), path)
    }
}

fn mounted() -> io::Result<OwnedFd> {
    let name = |text: String| std::ffi::CString::new(text).map_err(io::Error::other);
    let (lower, upper, work) =
        (name(BELOW.into())?, name(format!("{ABOVE}/{WRITTEN}"))?, name(format!("{ABOVE}/{WORK}"))?);
    let options = [
        (c"lowerdir", lower.as_c_str()),
        (c"upperdir", upper.as_c_str()),
        (c"workdir", work.as_c_str()),
        (c"userxattr", c""),
    ];
    mount::make(c"overlay", &options, FLAGS)
}
