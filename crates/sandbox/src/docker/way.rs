//! Makes the mount points in a workspace that the command may write to, as the command's user: an engine would make them as root, and
//! they stay. Where a link is on the way, nothing is made.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use policy::WorkspaceMode;
use rustix::fs::{Gid, Mode, OFlags, Uid};
use rustix::io::Errno;

use crate::error::Error;
use crate::plan::Plan;
use crate::source;
use crate::step::{Step, Visible};

/// Makes what is missing of the mount points of a plan.
pub(super) fn make(plan: &Plan) -> Result<(), Error> {
    if !plan.steps.contains(&Step::ShowWorkspace(plan.workspace.clone(), WorkspaceMode::ReadWrite)) {
        return Ok(());
    }
    let owner = (plan.identity.uid.outside, plan.identity.gid.outside);
    for step in &plan.steps {
        let Step::Show(Visible { source, target, .. }) = step else { continue };
        let Ok(path) = target.strip_prefix(&plan.workspace) else { continue };
        let fail = |error: io::Error| Error::Source { path: target.clone(), why: error.to_string() };
        let last = if source.is_dir() { Kind::Directory } else { Kind::File };
        make_point(source::open(&plan.workspace)?.as_fd(), path, last, owner).map_err(fail)?;
    }
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Directory,
    File,
}

fn make_point(workspace: BorrowedFd<'_>, path: &Path, last: Kind, owner: (u32, u32)) -> io::Result<()> {
    let mut parent = workspace.try_clone_to_owned()?;
    let mut names = path.iter().peekable();
    while let Some(name) = names.next() {
        let kind = if names.peek().is_some() { Kind::Directory } else { last };
        let opened = match open(parent.as_fd(), name, OFlags::PATH) {
            Err(Errno::NOENT) => made(parent.as_fd(), name, kind, owner),
            opened => opened,
        };
        parent = match opened {
            // A file, which somebody else may have made meanwhile, a link, or a folder of somebody else's: that is left to the engine.
            Err(Errno::NOTDIR | Errno::LOOP | Errno::ACCESS | Errno::EXIST) => return Ok(()),
            opened => opened?,
        };
    }
    Ok(())
}

fn open(parent: BorrowedFd<'_>, name: &OsStr, how: OFlags) -> Result<OwnedFd, Errno> {
    let flags = how | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(parent, name, flags, Mode::empty())
}

/// Makes a directory or an empty file, and gives it to its owner; only root can, and any other caller is the owner.
fn made(parent: BorrowedFd<'_>, name: &OsStr, kind: Kind, (uid, gid): (u32, u32)) -> Result<OwnedFd, Errno> {
    let made = match kind {
        Kind::Directory => match rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(0o755)) {
            Ok(()) => open(parent, name, OFlags::RDONLY)?,
            // Another run has made it meanwhile.
            Err(Errno::EXIST) => return open(parent, name, OFlags::PATH),
            Err(errno) => return Err(errno),
        },
        Kind::File => {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            rustix::fs::openat(parent, name, flags, Mode::from_raw_mode(0o644))?
        }
    };
    // What somebody has put in its place meanwhile keeps its owner.
    if rustix::process::geteuid().is_root() && rustix::fs::fstat(&made)?.st_uid == 0 {
        rustix::fs::fchown(&made, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
    }
    Ok(made)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn what_is_missing_is_made_and_a_link_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let workspace = source::open(&std::fs::canonicalize(folder.path()).unwrap()).unwrap();
        let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        std::fs::create_dir(folder.path().join("there")).unwrap();
        symlink("there", folder.path().join("link")).unwrap();
        for (path, kind) in [("in/x/y", Kind::Directory), ("in/f", Kind::File), ("link/z", Kind::Directory)] {
            for _ in 0..2 {
                make_point(workspace.as_fd(), Path::new(path), kind, owner).unwrap();
            }
        }
        assert!(folder.path().join("in/x/y").is_dir() && folder.path().join("in/f").is_file());
        assert!(!folder.path().join("there/z").exists());
    }
}
