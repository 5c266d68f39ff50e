//! A directory of the host below a layer for writes: the command can write into a cache, and nothing of that reaches the host.
//!
//! Writes go to a file system of their own, which no path leads to and which ends with the overlay. The kernel takes layers by name, so
//! they are attached in the private file system for the moment of the mount.

use std::ffi::CStr;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{AtFlags, Gid, Mode, Uid};
use rustix::mount::UnmountFlags;
use sys::mount::{self, Flags};

use super::root::Root;

/// The names of the layers during the mount.
const BELOW: &CStr = c".under-below";
const ABOVE: &CStr = c".under-above";
const FLAGS: Flags = Flags::NO_SUID.and(Flags::NO_DEV);

impl Root {
    /// Shows the next tree at a path, with writes over it kept in memory.
    pub(super) fn show_under(&mut self, target: &Path, size: u64) -> io::Result<()> {
        let tree = self.next_tree()?;
        let stat = rustix::fs::fstat(&tree)?;
        mount::set_flags(tree.as_fd(), FLAGS.and(Flags::READ_ONLY))?;
        let size = std::ffi::CString::new(size.to_string()).map_err(io::Error::other)?;
        let memory = mount::make(c"tmpfs", &[(c"size", size.as_c_str()), (c"mode", c"700")], FLAGS)?;
        for part in [c"upper", c"work"] {
            rustix::fs::mkdirat(&memory, part, Mode::RWXU)?;
        }
        let (uid, gid) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
        // An owner that is not mapped inside cannot be set. The directory is the command's own then.
        let _ = rustix::fs::chownat(&memory, c"upper", Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW);
        rustix::process::fchdir(self.private()?)?;
        for (name, tree) in [(BELOW, &tree), (ABOVE, &memory)] {
            rustix::fs::mkdirat(self.private()?, name, Mode::RWXU)?;
            mount::attach(tree.as_fd(), self.private()?, name)?;
        }
        let options = [
            (c"lowerdir", BELOW),
            (c"upperdir", c".under-above/upper"),
            (c"workdir", c".under-above/work"),
            (c"userxattr", c""),
        ];
        let overlay = mount::make(c"overlay", &options, FLAGS)?;
        for name in [BELOW, ABOVE] {
            rustix::mount::unmount(name, UnmountFlags::DETACH)?;
            rustix::fs::unlinkat(self.private()?, name, AtFlags::REMOVEDIR)?;
        }
        self.attach(overlay.as_fd(), target)
    }
}
