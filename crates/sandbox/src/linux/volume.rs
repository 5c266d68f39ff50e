//! Directories of an image that the command can write to, whatever their owners and modes in the image: its volumes, which hold the data of
//! its programs, its home, and those for everybody's temporary files.
//!
//! Its content stays, and writes go to the layer for all writes over the image.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{Gid, Mode, OFlags, Uid};
use rustix::io::Errno;

use super::etc;
use super::root::Root;
use crate::plan::ids::Identity;

impl Root {
    /// Gives a volume to the command.
    pub(super) fn volume(&self, path: &Path, identity: &Identity) -> io::Result<()> {
        self.led_to(path, 0o700)?;
        self.give(path, identity)
    }

    /// Makes a directory as [`Root::directory`] does. In an image it is made where links lead, as engines do.
    pub(super) fn led_to(&self, path: &Path, mode: u32) -> io::Result<()> {
        let made = self.directory(path, mode);
        let is_missing = |error: io::Error| error.kind() == io::ErrorKind::NotFound;
        if self.is_image() && self.follow(path, OFlags::PATH).is_err_and(is_missing) {
            return self.directory(&etc::missing(self, path)?, mode);
        }
        made
    }

    /// Gives a directory to the command. Links of the image on its path are followed, but cannot lead out of the root.
    fn give(&self, path: &Path, identity: &Identity) -> io::Result<()> {
        let directory = self.made(path, 0o700)?;
        let (uid, gid) = (Uid::from_raw(identity.uid.inside), Gid::from_raw(identity.gid.inside));
        rustix::fs::fchown(&directory, Some(uid), Some(gid))?;
        let mode = rustix::fs::fstat(&directory)?.st_mode;
        rustix::fs::fchmod(&directory, Mode::from_raw_mode(mode & 0o1777 | 0o700))?;
        // Best effort: a path through a link keeps the image's own modes.
        let _ = self.let_through(path);
        Ok(())
    }

    /// Gives the command its home, if the image has nothing else there: daemons have homes such as `/dev/null`. Returns a notice if a link
    /// that leads nowhere is on the way.
    pub(super) fn home(&self, path: &Path, identity: &Identity) -> io::Result<Option<String>> {
        match self.give(path, identity) {
            // All directories on the way were made, so that one is missing behind a link.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Some(format!(
                "the command has no home: a link of the image leads from `{}` to a directory that the image does not have. Make that \
                 directory in the image",
                path.display()
            ))),
            given => unless_none(given).map(|()| None),
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::ids::{IdMapping, MappedId};

    /// Returns a directory as an image's root, and the identity of this process.
    fn image_in(folder: &Path) -> (Root, Identity) {
        let open = || std::fs::File::open(folder).unwrap().into();
        let mut root = Root::at(open());
        root.cover(open());
        let own = [rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()];
        let [uid, gid] = own.map(|id| MappedId { inside: id, outside: id });
        let mapping = IdMapping::Callers;
        (root, Identity { uid, gid, mapping, range: None, subordinate: None, owners_kept: false })
    }

    #[test]
    fn a_volume_behind_a_link_that_leads_nowhere_is_made() {
        let folder = tempfile::tempdir().unwrap();
        for (link, target) in [("data", "/mnt/a/b"), ("srv", "gone")] {
            std::os::unix::fs::symlink(target, folder.path().join(link)).unwrap();
        }
        let (root, identity) = image_in(folder.path());
        for (volume, made) in [("/data", "mnt/a/b"), ("/srv/app", "gone/app")] {
            root.volume(Path::new(volume), &identity).unwrap();
            assert!(folder.path().join(made).is_dir(), "{made}");
        }
        root.led_to(Path::new("/srv/other"), 0o755).unwrap();
        assert!(folder.path().join("gone/other").is_dir());
    }

    #[test]
    fn a_home_behind_a_link_that_leads_nowhere_is_told_of() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("there")).unwrap();
        std::fs::write(folder.path().join("null"), "").unwrap();
        for (link, target) in [("home", "var/home"), ("linked", "there")] {
            std::os::unix::fs::symlink(target, folder.path().join(link)).unwrap();
        }
        let (root, identity) = image_in(folder.path());
        let told = |path: &str| root.home(Path::new(path), &identity).unwrap();
        let notice = told("/home/agent").unwrap();
        assert!(notice.contains("has no home") && notice.contains("`/home/agent`"), "{notice}");
        for path in ["/linked/agent", "/new/agent", "/null"] {
            assert_eq!(told(path), None, "{path}");
        }
        assert!(folder.path().join("there/agent").is_dir());
    }
}
