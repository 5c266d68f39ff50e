//! An image as the root: its layers, read-only, under one of the run's own that takes what is written.
//!
//! The own layer lives in the private file system in memory, so it ends with the sandbox and is as large as the plan says.
//! Nothing of an image is followed on the way: layers are opened by the paths of the store, which is this person's.

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

/// Where layers lie in the private file system, by their numbers; and in the directory above them what is written, and what the
/// kernel works with.
const LAYERS: &str = "layers";
const ABOVE: &str = "above";
const UPPER: &str = "upper";
const WORK: &str = "work";
/// An attribute of no meaning, to see whether there can be one.
const ATTRIBUTE: &CStr = c"user.lockgate";
/// The longest text that one option of a mount may be, fsconfig(2).
const LONGEST_OPTION: usize = 255;
/// The attributes of overlayfs under which an unprivileged mount reads and writes them.
const FLAGS: Flags = Flags::NO_SUID.and(Flags::NO_DEV);

/// Where what is written over an image goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    /// Into the private file system, which bounds it.
    InMemory,
    /// Into a directory of the run's own.
    OnDisk,
}

/// Makes the directory on disk that takes what is written, where the plan has one. How it goes is noted first.
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
    /// Mounts the next trees as the layers of an image, bottom first, and makes that the root. Where what is written goes to
    /// disk, its directory is the tree after them.
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
        // Names are relative to here, so that many of them fit into one option.
        rustix::process::fchdir(self.open(within)?)?;
        let overlay = overlay(layers.max(1))?;
        mount::attach(overlay.as_fd(), self.fd()?, c"")?;
        self.cover(overlay);
        Ok(())
    }

    /// Without attributes the mount works, and a directory that is made in the place of one
    /// that was removed does not: a run would fail somewhere in its middle.
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

    /// The root of what is written looks like that of the topmost layer: owner and mode are taken from there. Everybody may look
    /// into it: an image that was made for root alone has a command that is not root here.
    fn take_after(&self, top: &Path) -> io::Result<()> {
        let stat = rustix::fs::fstat(self.open(top)?)?;
        let (upper, mode) =
            (&Path::new(ABOVE).join(UPPER), Mode::from_raw_mode(stat.st_mode & 0o1777 | 0o055));
        // An owner that is none inside cannot be taken: then it is the command's own.
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
    // The topmost first.
    let names: Vec<String> = (0..layers).rev().map(|number| number.to_string()).collect();
    let joined = names.join(":");
    let text = |text: String| CString::new(text).map_err(io::Error::other);
    let lower: Vec<(_, CString)> = if joined.len() <= LONGEST_OPTION {
        vec![(c"lowerdir", text(joined)?)]
    } else {
        names.into_iter().map(|name| Ok((c"lowerdir+", text(name)?))).collect::<io::Result<_>>()?
    };
    let (upper, work) = (text(format!("../{ABOVE}/{UPPER}"))?, text(format!("../{ABOVE}/{WORK}"))?);
    let mut options: Vec<_> = lower.iter().map(|(key, value)| (*key, value.as_c_str())).collect();
    options.extend([(c"upperdir", upper.as_c_str()), (c"workdir", work.as_c_str()), (c"userxattr", c"")]);
    mount::make(c"overlay", &options, FLAGS)
}
