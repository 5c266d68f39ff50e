//! Mounts an image as the root: its read-only layers below a private layer for writes.
//!
//! The private layer is in the tmpfs of the private root, so it ends with the sandbox and has the size of the plan. Opening the layers
//! follows no path of the image: they are opened by the paths of the image store, which belongs to the caller.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use rustix::fs::{Gid, Mode, OFlags, Uid, XattrFlags};
use rustix::io::Errno;
use sys::mount::{self, Flags};

use super::root::Root;
use crate::error::Error;
use crate::plan::Plan;
use crate::step::Step;
use crate::undo::{Undo, UndoLog};

/// The directories in the private file system: of the layers, by their numbers; of the private layer's upper and work directories; an
/// empty one.
const LAYERS: &str = "layers";
const ABOVE: &str = "above";
const PLACE: &str = "place";
const UPPER: &str = "upper";
const WORK: &str = "work";
/// A meaningless attribute, to test whether attributes can be set.
const ATTRIBUTE: &CStr = c"user.lockgate";
/// The longest text of one mount option, fsconfig(2).
const LONGEST_OPTION: usize = 255;
/// The flags of the overlay.
const FLAGS: Flags = Flags::NO_SUID.and(Flags::NO_DEV);

/// The place of files written over an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    /// The private file system, whose size limits them.
    InMemory,
    /// A directory of the run on disk.
    OnDisk,
}

/// Makes the directory on disk for files written over the image, if the plan has one, after recording its undo.
pub(super) fn make_written(plan: &Plan, undo: &mut UndoLog) -> Result<(), Error> {
    let written = plan.steps.iter().find_map(|step| match step {
        Step::MountImage { written, .. } => written.as_ref(),
        _ => None,
    });
    let Some(path) = written else { return Ok(()) };
    undo.push(Undo::Written(path.clone()));
    let make = |part| std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path.join(part));
    let made = make(UPPER).and_then(|()| make(WORK));
    made.map_err(|error| Error::Source { path: path.clone(), why: format!("it cannot be made: {error}") })
}

impl Root {
    /// Mounts the next trees as the layers of an image, bottom first, and makes the overlay the root. If writes go to disk, the tree after
    /// the layers is their directory.
    pub(super) fn mount_image(
        &mut self,
        layers: usize,
        written: Written,
        size: u64,
        inodes: u64,
    ) -> io::Result<()> {
        self.mount(size, inodes)?;
        let within = Path::new(LAYERS);
        self.directory(within, 0o755)?;
        for number in 0..layers.max(1) {
            let place = within.join(number.to_string());
            self.directory(&place, 0o755)?;
            // An image without layers is an empty directory.
            if number < layers {
                let tree = self.next_tree()?;
                mount::set_flags(tree.as_fd(), FLAGS.and(Flags::READ_ONLY))?;
                self.attach(tree.as_fd(), &place)?;
            }
        }
        if written == Written::OnDisk {
            let tree = self.next_tree()?;
            mount::set_flags(tree.as_fd(), FLAGS)?;
            self.attach(tree.as_fd(), Path::new(ABOVE))?;
        } else {
            for part in [UPPER, WORK] {
                self.directory(&Path::new(ABOVE).join(part), 0o755)?;
            }
        }
        self.refuse_without_attributes()?;
        self.take_after(&within.join(layers.saturating_sub(1).to_string()))?;
        self.directory(Path::new(PLACE), 0o755)?;
        // Layer names are relative to this directory, so that many fit into one option.
        rustix::process::fchdir(self.open(within)?)?;
        let overlay = overlay(layers.max(1))?;
        mount::attach(overlay.as_fd(), self.fd()?, c"")?;
        self.cover(overlay);
        Ok(())
    }

    /// Refuses an upper directory without extended attributes. The overlay could be mounted, but a directory could not be made in place
    /// of a removed one, and a run would fail in its middle.
    fn refuse_without_attributes(&self) -> io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let upper = rustix::fs::openat(self.fd()?, Path::new(ABOVE).join(UPPER), flags, Mode::empty())?;
        match rustix::fs::fsetxattr(&upper, ATTRIBUTE, b"y", XattrFlags::empty()) {
            Ok(()) => Ok(rustix::fs::fremovexattr(&upper, ATTRIBUTE)?),
            Err(Errno::NOTSUP) => {
                Err(io::Error::other("its file system has no attributes for what is written"))
            }
            Err(errno) => Err(errno.into()),
        }
    }

    /// Gives the upper directory the owner and mode of the topmost layer's root, readable by everybody: the command is not root here,
    /// even of an image that was made for root alone.
    fn take_after(&self, top: &Path) -> io::Result<()> {
        let stat = rustix::fs::fstat(self.open(top)?)?;
        let (upper, mode) =
            (&Path::new(ABOVE).join(UPPER), Mode::from_raw_mode(stat.st_mode & 0o1777 | 0o055));
        // An owner that is not mapped inside cannot be set. The directory is the command's own then.
        let (uid, gid) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
        let _ = rustix::fs::chownat(
            self.fd()?,
            upper,
            Some(uid),
            Some(gid),
            rustix::fs::AtFlags::SYMLINK_NOFOLLOW,
        );
        Ok(rustix::fs::chmodat(self.fd()?, upper, mode, rustix::fs::AtFlags::empty())?)
    }
}

fn overlay(layers: usize) -> io::Result<OwnedFd> {
    // Topmost first.
    let names: Vec<String> = (0..layers).rev().map(|number| number.to_string()).collect();
    let lower = names.join(":");
    let (upper, work) = (format!("../{ABOVE}/{UPPER}"), format!("../{ABOVE}/{WORK}"));
    let text = |text: String| CString::new(text).map_err(io::Error::other);
    // fsconfig(2) takes them one by one as well, but from Linux 6.7 on only.
    if lower.len() > LONGEST_OPTION {
        let options = text(format!("lowerdir={lower},upperdir={upper},workdir={work},userxattr"))?;
        return mount::make_at(&text(format!("../{PLACE}"))?, c"overlay", &options, FLAGS);
    }
    let (lower, upper, work) = (text(lower)?, text(upper)?, text(work)?);
    let options = [(c"lowerdir", &*lower), (c"upperdir", &*upper), (c"workdir", &*work), (c"userxattr", c"")];
    mount::make(c"overlay", &options, FLAGS)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn an_overlay_has_more_layers_than_one_option_names() {
        let room = tempfile::tempdir().unwrap();
        let at = |name: &str| room.path().join(name);
        for part in ["place", "upper", "work"] {
            fs::create_dir(at(part)).unwrap();
        }
        let layers: Vec<String> = (0..150).map(|n| at(&n.to_string()).display().to_string()).collect();
        for layer in &layers {
            fs::create_dir(layer).unwrap();
        }
        fs::write(at("149/lowest"), "x").unwrap();
        let (upper, work) = (at("upper").display().to_string(), at("work").display().to_string());
        let options = format!("lowerdir={},upperdir={upper},workdir={work},userxattr", layers.join(":"));
        let options = CString::new(options).unwrap();
        let place = CString::new(at("place").as_os_str().as_bytes()).unwrap();
        let tree = match mount::make_at(&place, c"overlay", &options, Flags::NO_SUID) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return, // it takes root
            made => made.unwrap(),
        };
        assert!(rustix::fs::statat(&tree, "lowest", rustix::fs::AtFlags::empty()).is_ok());
        assert_eq!(fs::read_dir(at("place")).unwrap().count(), 0, "it is attached nowhere");
    }
}
