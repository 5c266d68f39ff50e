//! A volume of an image: a directory in which its programs keep things, and so the command's own, whoever it belongs to in the image.
//!
//! What is in it stays as it is, and what is written goes where everything goes that is written over the image.

use std::io;
use std::path::Path;

use rustix::fs::{Gid, Mode, OFlags, Uid};

use super::root::Root;
use crate::plan::ids::Identity;

impl Root {
    /// Gives a directory to the command. Links of the image on the way are the image's own affair and lead out of nothing.
    pub(super) fn volume(&self, path: &Path, identity: &Identity) -> io::Result<()> {
        self.directory(path, 0o700)?;
        let directory = self.follow(path, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let (uid, gid) = (Uid::from_raw(identity.uid.inside), Gid::from_raw(identity.gid.inside));
        rustix::fs::fchown(&directory, Some(uid), Some(gid))?;
        let mode = rustix::fs::fstat(&directory)?.st_mode;
        rustix::fs::fchmod(&directory, Mode::from_raw_mode(mode & 0o777 | 0o700))?;
        // Where a link is on the way, it leads through the image's own directories as they are.
        let _ = self.let_through(path);
        Ok(())
    }
}
