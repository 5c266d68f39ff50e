//! Compares the upper layer, in the format of overlayfs, with the workspace as it is now.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, OFlags, Stat};
use rustix::io::Errno;

use super::content::is_same_content;
use super::mode;
use super::side::{entries, file_name, open, open_parent, refuse_unreadable, stat};
use super::since::Since;
use super::staged::stands_beside;
use crate::protect;

/// The limits of the walk: depth, and number of entries.
pub(super) const DEEPEST: usize = 256;
/// The longest path of a directory: with a name of 255 octets it still fits `PATH_MAX`.
const LONGEST: usize = 4096 - 257;
const MOST: usize = 1_000_000;
/// The extended attributes by which overlayfs marks a directory that hides the one below, and a file that was copied up.
const OPAQUE: &std::ffi::CStr = c"user.overlay.opaque";
const ORIGIN: &std::ffi::CStr = c"user.overlay.origin";
/// The reason for leaving out what the caller may not open.
const UNREADABLE: &str = "it cannot be read";

/// One path that changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Relative to the workspace.
    pub path: PathBuf,
    /// How it changed.
    pub what: What,
    /// Why it cannot be applied: the workspace changed as well.
    pub conflict: Option<&'static str>,
    /// Whether this machine would execute or trust it.
    pub protected: bool,
}

/// How a path changed. Modes are those of stat(2): file type and permissions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// It is new.
    Made {
        /// Its mode.
        mode: u32,
    },
    /// Its content or its executable bit is different.
    Changed {
        /// The mode it had.
        from: u32,
        /// The mode it has.
        to: u32,
    },
    /// It is gone.
    Gone {
        /// The mode it had.
        mode: u32,
    },
}

/// Something that was written and cannot be applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// Relative to the workspace.
    pub path: PathBuf,
    /// Why.
    pub why: &'static str,
}

/// The reason for leaving out a repository's index.
const INDEX: &str =
    "git has written the workspace's own meanwhile, which stays; `git reset` makes it anew from the commit";

impl What {
    /// Returns the mode it has; the mode it had if it is gone.
    #[must_use]
    pub fn mode(&self) -> u32 {
        match self {
            Self::Made { mode } | Self::Gone { mode } | Self::Changed { to: mode, .. } => *mode,
        }
    }
}

struct Walk<'a> {
    above: BorrowedFd<'a>,
    below: BorrowedFd<'a>,
    since: &'a Since,
    /// The conflict of a directory around, which is one of everything in it.
    around: Option<&'static str>,
    list: Vec<Change>,
    left_out: Vec<LeftOut>,
    seen: usize,
}

pub(super) fn walk(
    above: BorrowedFd<'_>,
    below: BorrowedFd<'_>,
    since: &Since,
) -> io::Result<(Vec<Change>, Vec<LeftOut>)> {
    let mut walk =
        Walk { above, below, since, around: None, list: Vec::new(), left_out: Vec::new(), seen: 0 };
    walk.directory(Path::new(""), 0)?;
    let Walk { mut list, mut left_out, .. } = walk;
    list.sort_by(|a, b| a.path.cmp(&b.path));
    left_out.sort_by(|a, b| a.path.cmp(&b.path));
    Ok((list, left_out))
}

impl Walk<'_> {
    fn directory(&mut self, path: &Path, depth: usize) -> io::Result<()> {
        if is_too_deep(path, depth) {
            self.leave_out(path, "it lies too deep");
            return Ok(());
        }
        let directory = match open(self.above, path, OFlags::RDONLY | OFlags::DIRECTORY) {
            Ok(directory) => directory,
            Err(Errno::ACCESS) => {
                self.leave_out(path, UNREADABLE);
                return Ok(());
            }
            Err(errno) => return Err(errno.into()),
        };
        let mut names = entries(&directory)?;
        names.sort();
        let mut value = [0; 2];
        let opaque = rustix::fs::fgetxattr(&directory, OPAQUE, &mut value).is_ok_and(|n| value[..n] == *b"y");
        let old = stat(self.below, path)?.filter(|old| is(old, FileType::Directory));
        let conflict = old.and_then(|old| match opaque {
            true => self.removed_wrongly(path, &old),
            false => self.moved_since(path, &old),
        });
        self.within(conflict, |walk| {
            if opaque {
                walk.gone_below(path, depth, &names)?;
            }
            names.iter().try_for_each(|name| walk.entry(&path.join(name), &directory, depth))
        })
    }

    /// Walks on in a directory, whose conflict is one of everything in it: what is there may have come with it.
    fn within(
        &mut self,
        conflict: Option<&'static str>,
        on: impl FnOnce(&mut Self) -> io::Result<()>,
    ) -> io::Result<()> {
        let outer = self.around;
        self.around = outer.or(conflict);
        let walked = on(self);
        self.around = outer;
        walked
    }

    /// Compares one entry. An entry that cannot be read is left out, and the walk goes on.
    fn entry(&mut self, path: &Path, directory: &OwnedFd, depth: usize) -> io::Result<()> {
        let so_far = self.list.len();
        match self.look(path, directory, depth) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                self.list.truncate(so_far);
                self.leave_out(path, UNREADABLE);
                Ok(())
            }
            looked => looked,
        }
    }

    fn look(&mut self, path: &Path, directory: &OwnedFd, depth: usize) -> io::Result<()> {
        self.count()?;
        let name = path.file_name().unwrap_or_default();
        let new = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let old = stat(self.below, path)?;
        let kind = FileType::from_raw_mode(new.st_mode);
        match kind {
            FileType::CharacterDevice if new.st_rdev == 0 => match old {
                Some(old) => self.gone(path, &old, depth),
                None => Ok(()), // removed meanwhile
            },
            FileType::Directory => {
                match &old {
                    // Git does not track modes of directories, and neither does this.
                    Some(old) if is(old, FileType::Directory) => {}
                    Some(old) => {
                        self.gone(path, old, depth)?;
                        self.push(path, What::Made { mode: new.st_mode }, None);
                    }
                    None => self.push(path, What::Made { mode: new.st_mode }, None),
                }
                self.directory(path, depth + 1)
            }
            FileType::RegularFile | FileType::Symlink => self.file(path, &new, old, depth),
            _ => {
                self.leave_out(path, "it is a pipe, a socket or a device");
                Ok(())
            }
        }
    }

    fn file(&mut self, path: &Path, new: &Stat, old: Option<Stat>, depth: usize) -> io::Result<()> {
        let kind = FileType::from_raw_mode(new.st_mode);
        if kind == FileType::RegularFile {
            refuse_unreadable(self.above, path)?;
        }
        let Some(old) = old else {
            // A file that was copied up and whose directory changed below: if the run renamed it, the old name stays.
            let removed = kind == FileType::RegularFile && self.has_origin(path) && self.parent_changed(path);
            let conflict = removed.then_some("it was removed from the workspace meanwhile");
            self.push(path, What::Made { mode: new.st_mode }, conflict);
            return Ok(());
        };
        if !is(&old, kind) {
            self.gone(path, &old, depth)?;
            self.push(path, What::Made { mode: new.st_mode }, None);
            return Ok(());
        }
        let same = if kind == FileType::Symlink {
            let target = |side| rustix::fs::readlinkat(open_parent(side, path)?, file_name(path), Vec::new());
            target(self.above)? == target(self.below)?
        } else {
            refuse_unreadable(self.below, path)?;
            is_same_content(self.above, self.below, path, [new, &old])?
                && mode::is_same(old.st_mode, new.st_mode)
        };
        if !same {
            let conflict = self.changed_since(&old);
            self.push(path, What::Changed { from: old.st_mode, to: new.st_mode }, conflict);
        }
        Ok(())
    }

    /// Records the removal of a path of the workspace, with everything below it.
    fn gone(&mut self, path: &Path, old: &Stat, depth: usize) -> io::Result<()> {
        if is(old, FileType::Directory) {
            let conflict = self.removed_wrongly(path, old);
            self.within(conflict, |walk| walk.gone_below(path, depth, &[]))?;
            self.push(path, What::Gone { mode: old.st_mode }, conflict);
        } else if is(old, FileType::RegularFile) && refuse_unreadable(self.below, path).is_err() {
            // A patch could not show what is lost.
            self.leave_out(path, UNREADABLE);
        } else {
            self.push(path, What::Gone { mode: old.st_mode }, self.changed_since(old));
        }
        Ok(())
    }

    /// Records the removal of everything in a directory of the workspace except some names, which are in order.
    fn gone_below(&mut self, path: &Path, depth: usize, but: &[std::ffi::OsString]) -> io::Result<()> {
        if is_too_deep(path, depth) {
            self.leave_out(path, "it lies too deep");
            return Ok(());
        }
        let directory = match open(self.below, path, OFlags::RDONLY | OFlags::DIRECTORY) {
            Ok(directory) => directory,
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        };
        let mut names = entries(&directory)?;
        names.sort();
        for name in names.iter().filter(|name| but.binary_search(name).is_err() && !stands_beside(name)) {
            self.count()?;
            let old = rustix::fs::statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
            self.gone(&path.join(name), &old, depth + 1)?;
        }
        Ok(())
    }

    /// Whether the directory of a path has changed since the run began, or is gone: one that the run did not make.
    fn parent_changed(&self, path: &Path) -> bool {
        match open_parent(self.below, path).and_then(rustix::fs::fstat) {
            Ok(parent) => self.changed_since(&parent).is_some(),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {
                path.parent().is_some_and(|above| self.has_origin(above))
            }
            Err(_) => false,
        }
    }

    fn changed_since(&self, old: &Stat) -> Option<&'static str> {
        self.since.is_past(old).then_some("it was changed in the workspace meanwhile")
    }

    /// The conflict of a directory that the run removed. One that was renamed to its place brought files that are as old as they were.
    fn removed_wrongly(&self, path: &Path, old: &Stat) -> Option<&'static str> {
        // A name that another run holds is nobody's. Git makes files in a repository on mere reads.
        if protect::is_held(self.below, path) {
            return None;
        }
        if protect::is_git(file_name(path)) { self.moved_since(path, old) } else { self.changed_since(old) }
    }

    /// The conflict of a directory that was itself changed, as by a rename, and not by an entry: that changes both its times. A rename
    /// changes the directory around it as well.
    fn moved_since(&self, path: &Path, old: &Stat) -> Option<&'static str> {
        let by_entry = (old.st_mtime, old.st_mtime_nsec) == (old.st_ctime, old.st_ctime_nsec);
        let around = || open_parent(self.below, path).and_then(|parent| rustix::fs::fstat(&parent));
        self.changed_since(old)
            .filter(|_| !by_entry && around().map_or(true, |around| self.since.is_past(&around)))
    }

    fn has_origin(&self, path: &Path) -> bool {
        let Ok(file) = open(self.above, path, OFlags::RDONLY | OFlags::NONBLOCK) else { return false };
        rustix::fs::fgetxattr(&file, ORIGIN, &mut [0; 256]).is_ok()
    }

    fn push(&mut self, path: &Path, what: What, conflict: Option<&'static str>) {
        let conflict = conflict.or(self.around);
        // Git writes the index on mere reads, inside and outside: that is no reason to refuse everything else.
        if conflict.is_some() && path.ends_with(".git/index") {
            return self.leave_out(path, INDEX);
        }
        self.list.push(Change { path: path.into(), what, conflict, protected: false });
    }

    fn leave_out(&mut self, path: &Path, why: &'static str) {
        self.left_out.push(LeftOut { path: path.into(), why });
    }

    fn count(&mut self) -> io::Result<()> {
        self.seen += 1;
        if self.seen > MOST {
            Err(io::Error::other(format!("it holds more than {MOST} entries")))
        } else {
            Ok(())
        }
    }
}

/// Whether entries of a directory are too deep to be reached by their paths.
fn is_too_deep(path: &Path, depth: usize) -> bool {
    depth > DEEPEST || path.as_os_str().len() > LONGEST
}

fn is(stat: &Stat, kind: FileType) -> bool {
    FileType::from_raw_mode(stat.st_mode) == kind
}
