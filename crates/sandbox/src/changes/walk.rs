//! Compares the upper layer, in the format of overlayfs, with the workspace as it is now.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, FileType, OFlags, Stat};
use rustix::io::Errno;

use super::change::{Change, LeftOut, What};
use super::content::is_same_content;
use super::mode;
use super::moved::Moved;
use super::side::{entries, file_name, is_elsewhere, open, open_file, open_parent, refuse_unreadable, stat};
use super::since::Since;
use super::staged::stands_beside;
use crate::open_file::is_empty;
use crate::protect;

/// The most directories within one another below the workspace.
const DEEPEST: usize = 256;
/// The longest path of a directory: with a name of 255 octets it still fits `PATH_MAX`.
const LONGEST: usize = 4096 - 257;
/// The most entries.
const MOST: usize = 1_000_000;
/// The extended attributes by which overlayfs marks a directory that hides the one below, and a file that was copied up.
const OPAQUE: &std::ffi::CStr = c"user.overlay.opaque";
const ORIGIN: &std::ffi::CStr = c"user.overlay.origin";
/// The conflict of a file that was copied up, but is not at its path in the workspace and was moved from no path that the run removed.
const UNKNOWN: &str = "it was removed from the workspace meanwhile, or the run moved it and wrote in it";
/// The reasons for leaving out what the caller may not open, and what a run that goes on, or somebody else, has taken away.
const UNREADABLE: &str = "it cannot be read";
const ELSEWHERE: &str = "it was removed or replaced while it was looked at";
const TOO_DEEP: &str = "it lies too deep";
/// The reason for leaving out what the run's file system took, and the workspace's, such as an encrypted one, cannot have.
const NO_SUCH_NAME: &str = "the workspace's file system takes no such name";

/// Whether a run has seen the directory of the workspace that is at the place of one of its own.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Below {
    Shown,
    /// The run removed it, and made one in its place.
    Hidden,
}

/// The reason for leaving out a repository's index.
const INDEX: &str =
    "git has written the workspace's own meanwhile, which stays; `git reset` makes it anew from the commit";

struct Walk<'a> {
    above: BorrowedFd<'a>,
    below: BorrowedFd<'a>,
    since: &'a Since,
    /// The conflict of a directory around, which is one of everything in it.
    around: Option<&'static str>,
    list: Vec<Change>,
    left_out: Vec<LeftOut>,
    moved: Moved,
    seen: usize,
}

pub(super) fn walk(
    above: BorrowedFd<'_>,
    below: BorrowedFd<'_>,
    since: &Since,
) -> io::Result<(Vec<Change>, Vec<LeftOut>)> {
    let (list, left_out, moved) = (Vec::new(), Vec::new(), Moved::default());
    let mut walk = Walk { above, below, since, around: None, list, left_out, moved, seen: 0 };
    walk.directory(Path::new(""), Below::Shown)?;
    let gone = walk.list.iter().filter(|change| matches!(change.what, What::Gone { .. }));
    let gone = gone.map(|change| change.path.as_path());
    let unknown = std::mem::take(&mut walk.moved).unknown(gone, above, below)?;
    let of_unknown: Vec<_> = walk.list.extract_if(.., |change| unknown.contains(&change.path)).collect();
    for Change { path, what, conflict, .. } in of_unknown {
        walk.push(&path, what, conflict.or(Some(UNKNOWN)));
    }
    let Walk { mut list, mut left_out, .. } = walk;
    list.sort_by(|a, b| a.path.cmp(&b.path));
    left_out.sort_by(|a, b| a.path.cmp(&b.path));
    Ok((list, left_out))
}

impl Walk<'_> {
    fn directory(&mut self, path: &Path, below: Below) -> io::Result<()> {
        let directory = open(self.above, path, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let mut names = entries(&directory)?;
        names.sort();
        // A directory that is made in one that hides the one below does so as well, without the mark.
        let below = if is_opaque(&directory)? { Below::Hidden } else { below };
        let old = stat(self.below, path)?.filter(|old| is(old, FileType::Directory));
        let conflict = old.and_then(|old| match below {
            // Nothing is lost with one that is empty, such as a killed apply has made.
            Below::Hidden if self.is_empty(path) => None,
            Below::Hidden => self.removed_wrongly(path, &old),
            Below::Shown => self.moved_since(path, &old),
        });
        self.within(conflict, |walk| {
            if below == Below::Hidden && old.is_some() {
                walk.gone_below(path, &names)?;
            }
            names.iter().try_for_each(|name| walk.entry(&path.join(name), &directory, below))
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

    /// Compares one entry. An entry that cannot be read, or is gone by then, is left out, and the walk goes on.
    fn entry(&mut self, path: &Path, directory: &OwnedFd, around: Below) -> io::Result<()> {
        let so_far = self.list.len();
        let Err(error) = self.look(path, directory, around) else { return Ok(()) };
        let Some(why) = reason(&error) else {
            // Without a system's number it has its path already.
            return Err(match error.raw_os_error() {
                Some(_) => io::Error::new(error.kind(), format!("{}: {error}", path.display())),
                None => error,
            });
        };
        self.list.truncate(so_far);
        self.leave_out(path, why);
        Ok(())
    }

    fn look(&mut self, path: &Path, directory: &OwnedFd, around: Below) -> io::Result<()> {
        self.count()?;
        let name = path.file_name().unwrap_or_default();
        let new = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let old = stat(self.below, path)?;
        let kind = FileType::from_raw_mode(new.st_mode);
        match kind {
            FileType::CharacterDevice if new.st_rdev == 0 => match old {
                Some(old) => self.gone(path, &old).map(drop),
                None => Ok(()), // removed meanwhile
            },
            FileType::Directory if is_too_deep(path) => {
                self.leave_out(path, TOO_DEEP);
                Ok(())
            }
            FileType::Directory => match old {
                // Git does not track modes of directories, and neither does this.
                Some(old) if is(&old, FileType::Directory) => self.directory(path, around),
                Some(old) if !self.gone(path, &old)? => Ok(()),
                _ => {
                    self.push(path, What::Made { mode: new.st_mode }, None);
                    let so_far = self.list.len();
                    self.directory(path, around)?;
                    // Somebody removed it, and the run made nothing in it.
                    if old.is_none() && self.list.len() == so_far && self.has_origin(path)? {
                        self.list.truncate(so_far - 1);
                    }
                    Ok(())
                }
            },
            FileType::RegularFile | FileType::Symlink => self.file(path, &new, old),
            _ => {
                self.leave_out(path, "it is a pipe, a socket or a device");
                Ok(())
            }
        }
    }

    fn file(&mut self, path: &Path, new: &Stat, old: Option<Stat>) -> io::Result<()> {
        let kind = FileType::from_raw_mode(new.st_mode);
        if kind == FileType::RegularFile {
            refuse_unreadable(self.above, path)?;
        }
        let Some(old) = old else {
            if kind == FileType::RegularFile && self.has_origin(path)? && self.parent_changed(path)? {
                self.moved.note(path, *new);
            }
            self.push(path, What::Made { mode: new.st_mode }, None);
            return Ok(());
        };
        if !is(&old, kind) {
            if self.gone(path, &old)? {
                self.push(path, What::Made { mode: new.st_mode }, None);
            }
            return Ok(());
        }
        if kind == FileType::RegularFile {
            self.moved.note_known(new);
        }
        let same = if kind == FileType::Symlink {
            let target = |side| rustix::fs::readlinkat(open_parent(side, path)?, file_name(path), Vec::new());
            target(self.above)? == target(self.below)?
        } else {
            refuse_unreadable(self.below, path)?;
            new.st_size == old.st_size
                && is_same_content(&open_file(self.above, path)?, &open_file(self.below, path)?)?
                && mode::is_same(old.st_mode, new.st_mode)
        };
        if !same {
            let conflict = self.changed_since(&old);
            self.push(path, What::Changed { from: old.st_mode, to: new.st_mode }, conflict);
        }
        Ok(())
    }

    /// Records the removal of a path of the workspace, with everything below it. Returns false if the path itself is left out, and stays.
    fn gone(&mut self, path: &Path, old: &Stat) -> io::Result<bool> {
        if is(old, FileType::Directory) {
            let conflict = self.removed_wrongly(path, old);
            self.within(conflict, |walk| walk.gone_below(path, &[]))?;
            self.push(path, What::Gone { mode: old.st_mode }, conflict);
        } else if is(old, FileType::RegularFile) && refuse_unreadable(self.below, path).is_err() {
            // A patch could not show what is lost.
            self.leave_out(path, UNREADABLE);
            return Ok(false);
        } else {
            self.push(path, What::Gone { mode: old.st_mode }, self.changed_since(old));
        }
        Ok(true)
    }

    /// Records the removal of everything in a directory of the workspace except some names, which are in order.
    fn gone_below(&mut self, path: &Path, but: &[std::ffi::OsString]) -> io::Result<()> {
        if is_too_deep(path) {
            self.leave_out(path, TOO_DEEP);
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
            self.gone(&path.join(name), &old)?;
        }
        Ok(())
    }

    /// Whether the directory of a path has changed since the run began, or is gone: one that the run did not make.
    fn parent_changed(&self, path: &Path) -> io::Result<bool> {
        match open_parent(self.below, path).and_then(rustix::fs::fstat) {
            Ok(parent) => Ok(self.changed_since(&parent).is_some()),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {
                path.parent().map_or(Ok(false), |above| self.has_origin(above))
            }
            Err(errno) => Err(errno.into()),
        }
    }

    fn changed_since(&self, old: &Stat) -> Option<&'static str> {
        self.since.is_past(old).then_some("it was changed in the workspace meanwhile")
    }

    /// The conflict of a directory that the run removed. One that was renamed to its place brought files that are as old as they were.
    fn removed_wrongly(&self, path: &Path, old: &Stat) -> Option<&'static str> {
        // A name that another run holds is nobody's. Git makes files in a repository on mere reads.
        if protect::is_held(self.below, path).unwrap_or(false) {
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

    /// Whether nothing is in a directory of the workspace.
    fn is_empty(&self, path: &Path) -> bool {
        let directory = open(self.below, path, OFlags::RDONLY | OFlags::DIRECTORY);
        directory.is_ok_and(|directory| is_empty(&directory).unwrap_or(false))
    }

    fn has_origin(&self, path: &Path) -> io::Result<bool> {
        match open(self.above, path, OFlags::RDONLY | OFlags::NONBLOCK) {
            Ok(file) => Ok(attribute(&file, ORIGIN, &mut [0; 256])?.is_some()),
            // What may not be read is left out by whoever would take it over.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::ACCESS) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    fn push(&mut self, path: &Path, what: What, conflict: Option<&'static str>) {
        let conflict = conflict.or(self.around);
        // Git writes the index on mere reads, inside and outside: that is no reason to refuse everything else.
        if conflict.is_some() && path.ends_with(".git/index") {
            return self.leave_out(path, INDEX);
        }
        self.list.push(Change { path: path.into(), what, conflict, protected: None });
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

/// Returns why an entry that met an error is left out, if the walk can go on without it.
fn reason(error: &io::Error) -> Option<&'static str> {
    match error.kind() {
        io::ErrorKind::PermissionDenied => Some(UNREADABLE),
        // Exchanged for a file of another kind between two looks.
        io::ErrorKind::InvalidInput => Some(ELSEWHERE),
        _ if is_elsewhere(error) => Some(ELSEWHERE),
        _ if matches!(Errno::from_io_error(error), Some(Errno::NAMETOOLONG | Errno::ILSEQ)) => {
            Some(NO_SUCH_NAME)
        }
        _ => None,
    }
}

/// Whether a directory is too deep for its entries to be reached by their paths.
fn is_too_deep(path: &Path) -> bool {
    path.components().count() > DEEPEST || path.as_os_str().len() > LONGEST
}

/// Whether a directory of the upper layer hides the one below.
fn is_opaque(directory: &OwnedFd) -> io::Result<bool> {
    let mut value = [0; 2];
    Ok(attribute(directory, OPAQUE, &mut value)?.is_some_and(|n| value[..n] == *b"y"))
}

/// Returns the length of an extended attribute's value, if there is one that fits.
fn attribute(of: &OwnedFd, name: &std::ffi::CStr, value: &mut [u8]) -> io::Result<Option<usize>> {
    match rustix::fs::fgetxattr(of, name, value) {
        Ok(length) => Ok(Some(length)),
        Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::RANGE) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

fn is(stat: &Stat, kind: FileType) -> bool {
    FileType::from_raw_mode(stat.st_mode) == kind
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::changes::fixture::{Kept, copied_up, made_anew, write};

    #[test]
    fn a_name_that_the_workspace_cannot_have_hides_nothing_else() {
        for (errno, why) in [
            (Errno::NAMETOOLONG, Some(NO_SUCH_NAME)),
            (Errno::ILSEQ, Some(NO_SUCH_NAME)),
            (Errno::NOENT, Some(ELSEWHERE)),
            (Errno::XDEV, Some(ELSEWHERE)),
            (Errno::IO, None),
        ] {
            assert_eq!(reason(&errno.into()), why, "{errno}");
        }
    }

    #[test]
    fn a_folder_that_the_run_only_touched_does_not_come_back() {
        let kept = Kept::new();
        for folder in ["touched/in it", "filled", "new"] {
            std::fs::create_dir_all(kept.written(folder)).unwrap();
        }
        for folder in ["touched", "touched/in it", "filled"] {
            copied_up(&kept.written(folder));
        }
        write(&kept.written("filled/file"), "it", 0o644);
        let made: Vec<_> = kept.changes().list.into_iter().map(|it| it.path).collect();
        assert_eq!(made, ["filled", "filled/file", "new"].map(PathBuf::from));
    }

    #[test]
    fn what_was_in_a_folder_in_one_that_was_made_anew_is_gone() {
        let kept = Kept::new();
        for path in ["dist/assets/old", "dist/assets/deep/old", "dist/assets/same", "other/old"] {
            std::fs::create_dir_all(kept.workspace(path).parent().unwrap()).unwrap();
            write(&kept.workspace(path), "it", 0o644);
        }
        std::os::unix::fs::symlink("other", kept.workspace("link")).unwrap();
        kept.begin_now();
        // Overlayfs marks the topmost ones alone.
        for path in ["dist/assets/new", "dist/assets/same", "link/sub/new"] {
            std::fs::create_dir_all(kept.written(path).parent().unwrap()).unwrap();
            write(&kept.written(path), "it", 0o644);
        }
        made_anew(&kept.written("dist"));
        made_anew(&kept.written("link"));
        let gone = kept.read().list.into_iter().filter(|it| matches!(it.what, What::Gone { .. }));
        let gone: Vec<_> = gone.map(|it| it.path).collect();
        assert_eq!(
            gone,
            ["dist/assets/deep", "dist/assets/deep/old", "dist/assets/old", "link"].map(PathBuf::from)
        );
        assert!(kept.conflicts().is_empty());
        write(&kept.workspace("dist/assets/deep/mine"), "mine", 0o644);
        assert!(kept.conflicts().contains(&"dist/assets/deep/mine".to_owned()));
        std::fs::remove_file(kept.workspace("dist/assets/deep/mine")).unwrap();
        kept.changes().apply(&[], &|| false).unwrap();
        for (path, there) in
            [("dist/assets/old", false), ("dist/assets/deep", false), ("dist/assets/same", true)]
        {
            assert_eq!(kept.workspace(path).exists(), there, "{path}");
        }
        assert!(kept.workspace("link/sub/new").exists() && kept.workspace("other/old").exists());
        assert!(kept.changes().list.is_empty());
    }
}
