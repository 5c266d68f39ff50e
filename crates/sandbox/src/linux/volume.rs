//! Directories of an image that the command can write to, whatever their owners and modes in the image: its volumes, which hold the data of
//! its programs, its home, and those for everybody's temporary files.
//!
//! Its content stays, and writes go to the layer for all writes over the image.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{Gid, Mode, OFlags, Uid};
use rustix::io::Errno;

use super::root::Root;
use crate::plan::ids::Identity;

impl Root {
    /// Gives a directory to the command. Links of the image on its path are followed, but cannot lead out of the root.
    pub(super) fn volume(&self, path: &Path, identity: &Identity) -> io::Result<()> {
        let directory = self.made(path, 0o700)?;
        let (uid, gid) = (Uid::from_raw(identity.uid.inside), Gid::from_raw(identity.gid.inside));
        rustix::fs::fchown(&directory, Some(uid), Some(gid))?;
        let mode = rustix::fs::fstat(&directory)?.st_mode;
        rustix::fs::fchmod(&directory, Mode::from_raw_mode(mode & 0o1777 | 0o700))?;
        // Best effort: a path through a link keeps the image's own modes.
        let _ = self.let_through(path);
        Ok(())
    }

    /// Gives the command its home, if the image has nothing else there: daemons have homes such as `/dev/null`.
    pub(super) fn home(&self, path: &Path, identity: &Identity) -> io::Result<()> {
        unless_none(self.volume(path, identity))
    }

    /// Makes a directory writable for everybody. A link that leads nowhere is left alone.
    pub(super) fn everybodys(&self, path: &Path) -> io::Result<()> {
        let all = || {
            let directory = self.made(path, 0o1777)?;
            rustix::fs::fchmod(&directory, Mode::from_raw_mode(0o1777))?;
            let _ = self.let_through(path);
            Ok(())
        };
        unless_none(all())
    }

    /// Opens a directory, and makes it if it does not exist.
    fn made(&self, path: &Path, mode: u32) -> io::Result<OwnedFd> {
        self.directory(path, mode)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match self.follow(path, flags) {
            // It is in a directory of the sandbox's own, where the image has no link.
            Err(error) if error.raw_os_error() == Some(Errno::XDEV.raw_os_error()) => {
                Ok(rustix::fs::openat(self.open(path)?, c".", flags, Mode::empty())?)
            }
            opened => opened,
        }
    }
}

/// Passes over what is no directory.
fn unless_none(done: io::Result<()>) -> io::Result<()> {
    match done {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotADirectory | io::ErrorKind::NotFound) => {
            Ok(())
        }
        done => done,
    }
}
