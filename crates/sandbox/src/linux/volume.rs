//! A volume of an image: a directory for the data of its programs, which the command owns, whatever its owner in the image.
//!
//! Its content stays, and writes go to the layer for all writes over the image.

use std::io;
use std::path::Path;

use rustix::fs::{Gid, Mode, OFlags, Uid};
use rustix::io::Errno;

use super::root::Root;
use crate::plan::ids::Identity;

impl Root {
    /// Gives a directory to the command. Links of the image on its path are followed, but cannot lead out of the root.
    pub(super) fn volume(&self, path: &Path, identity: &Identity) -> io::Result<()> {
        self.directory(path, 0o700)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = match self.follow(path, flags) {
            // It is in a directory of the sandbox's own, where the image has no link.
            Err(error) if error.raw_os_error() == Some(Errno::XDEV.raw_os_error()) => {
                rustix::fs::openat(self.open(path)?, c".", flags, Mode::empty())?
            }
            opened => opened?,
        };
        let (uid, gid) = (Uid::from_raw(identity.uid.inside), Gid::from_raw(identity.gid.inside));
        rustix::fs::fchown(&directory, Some(uid), Some(gid))?;
        let mode = rustix::fs::fstat(&directory)?.st_mode;
        rustix::fs::fchmod(&directory, Mode::from_raw_mode(mode & 0o777 | 0o700))?;
        // Best effort: a path through a link keeps the image's own modes.
        let _ = self.let_through(path);
        Ok(())
    }
}
