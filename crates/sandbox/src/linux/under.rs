//! A directory of the host below a layer for writes: the command can write into a cache, and nothing of that reaches the host.
//!
//! Writes go to a file system of their own, which no path leads to and which ends with the overlay.

use std::ffi::CString;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{AtFlags, Gid, Mode, Uid};
use sys::mount::{self, Flags};

use super::root::Root;

const UPPER: &str = "upper";
const WORK: &str = "work";
const FLAGS: Flags = Flags::NO_SUID.and(Flags::NO_DEV);

impl Root {
    /// Shows the next tree at a path, with writes over it kept in memory.
    pub(super) fn show_under(&mut self, target: &Path, size: u64) -> io::Result<()> {
        let tree = self.next_tree()?;
        let stat = rustix::fs::fstat(&tree)?;
        mount::set_flags(tree.as_fd(), FLAGS.and(Flags::READ_ONLY))?;
        let size = CString::new(size.to_string()).map_err(io::Error::other)?;
        let memory = mount::make(c"tmpfs", &[(c"size", size.as_c_str()), (c"mode", c"700")], FLAGS)?;
        for part in [UPPER, WORK] {
            rustix::fs::mkdirat(&memory, part, Mode::RWXU)?;
        }
        let (uid, gid) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
        // An owner that is not mapped inside cannot be set. The directory is the command's own then.
        let _ = rustix::fs::chownat(&memory, UPPER, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW);
        let overlay = self.mount_overlay(tree.as_fd(), memory.as_fd(), [UPPER, WORK])?;
        self.attach(overlay.as_fd(), target)
    }
}
