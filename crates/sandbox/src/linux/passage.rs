//! The directories of an image that are closed to the command, as `/root` is, and that it needs to go through: nobody is root inside.

use std::io;
use std::path::Path;

use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;

use super::root::{Root, relative};

impl Root {
    /// Makes the directories of an image above a path searchable by the command. They may be closed, as `/root` is. What is mounted over
    /// the image, such as the workspace, is somebody else's and keeps its modes. An image chooses the path: what is changed is what was
    /// opened, and no name is looked up twice.
    pub(super) fn let_through(&self, path: &Path) -> io::Result<()> {
        if !self.is_image() {
            return Ok(());
        }
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        for above in path.ancestors().skip(1).map(relative).take_while(|above| *above != Path::new(".")) {
            let above = match openat2(self.fd()?, above, flags, Mode::empty(), resolve) {
                Ok(above) => above,
                Err(Errno::XDEV) => continue,
                Err(errno) => return Err(errno.into()),
            };
            let mode = rustix::fs::fstat(&above)?.st_mode;
            if mode & 0o001 == 0 {
                rustix::fs::fchmod(&above, Mode::from_raw_mode(mode & 0o7777 | 0o011))?;
            }
        }
        Ok(())
    }

    /// Makes a directory of an image searchable by the command, and those above it. Best effort: it may not be there, and a path through a
    /// link keeps the image's own modes.
    pub(super) fn let_into(&self, path: &Path) {
        let _ = self.let_through(&path.join("below"));
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_directory_that_was_made_for_root_lets_the_command_in() {
        let directory = tempfile::tempdir().unwrap();
        let open = || std::fs::File::open(directory.path()).unwrap().into();
        let mut root = Root::at(open());
        root.cover(open());
        let [above, at] = ["root", "root/app"].map(|path| directory.path().join(path));
        std::fs::create_dir_all(&at).unwrap();
        for path in [&at, &above] {
            std::fs::set_permissions(path, PermissionsExt::from_mode(0o700)).unwrap();
        }
        root.let_into(Path::new("/root/app"));
        root.let_into(Path::new("/none/app"));
        let modes = [&above, &at].map(|path| path.metadata().unwrap().permissions().mode() & 0o777);
        assert_eq!(modes, [0o711; 2]);
    }

    #[test]
    fn a_path_of_an_image_that_leads_upwards_opens_nothing_outside_of_it() {
        let machine = tempfile::tempdir().unwrap();
        let at = |path: &str| machine.path().join(path);
        // What the image has at its own root is looked at, and what this machine has there is not touched.
        for made in ["image/secret", "secret", "image/keys"] {
            std::fs::create_dir_all(at(made)).unwrap();
        }
        std::fs::write(at("keys"), "").unwrap();
        let closed = ["image/secret", "secret", "image/keys", "keys"];
        for path in closed {
            std::fs::set_permissions(at(path), PermissionsExt::from_mode(0o700)).unwrap();
        }
        let open = || std::fs::File::open(at("image")).unwrap().into();
        let mut root = Root::at(open());
        root.cover(open());
        for path in ["/../secret", "/../keys", "/secret/../../secret", "/../../secret"] {
            root.let_into(Path::new(path));
        }
        let modes = closed.map(|path| at(path).metadata().unwrap().permissions().mode() & 0o777);
        assert_eq!(modes, [0o711, 0o700, 0o711, 0o700]);
    }
}
