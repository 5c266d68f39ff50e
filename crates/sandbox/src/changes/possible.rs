//! What an apply can take over: leaves out the rest before anything is written, so that it does not end half-way.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::os::fd::BorrowedFd;
use std::path::Path;

use rustix::fs::{Access, AtFlags, OFlags, StatxAttributes, StatxFlags};
use rustix::io::Errno;

use super::LeftOut;
use super::change::{Change, What};
use super::mode::is_directory;
use super::side::{open, stat};

const SHUT: &str = "its folder may not be written";
const FIXED: &str = "it, or its folder, is marked to be kept (chattr +i or +a); lsattr -d shows it";
const BLOCKED: &str =
    "a file or link stands where its folder would be; name that folder with `--path` as well";
const STAYS: &str = "the folder there stays, with something in it that is left out";

/// Takes out of the order what cannot be taken over, and adds it to what is left out.
pub(super) fn leave_impossible(order: &mut Vec<&Change>, left_out: &mut Vec<LeftOut>, below: BorrowedFd<'_>) {
    let gone: BTreeSet<&Path> = order.iter().filter(|it| is_gone(it)).map(|it| it.path.as_path()).collect();
    order.retain(|change| {
        let why = hindrance(&change.path, &gone, below).or_else(|| fixed(&change.path, below));
        left_out.extend(why.map(|why| LeftOut { path: change.path.clone(), why }));
        why.is_none()
    });
    let of_folders = leave_folders(order, left_out);
    left_out.extend(of_folders);
}

/// Returns what hinders a change of a path, in the next folder above it that is there already.
fn hindrance(path: &Path, gone: &BTreeSet<&Path>, below: BorrowedFd<'_>) -> Option<&'static str> {
    for above in path.ancestors().skip(1) {
        match open(below, above, OFlags::PATH | OFlags::DIRECTORY) {
            Ok(folder) => {
                let needed = Access::WRITE_OK | Access::EXEC_OK;
                let may = rustix::fs::accessat(&folder, c".", needed, AtFlags::EACCESS);
                return matches!(may, Err(Errno::ACCESS | Errno::PERM | Errno::ROFS)).then_some(SHUT);
            }
            Err(Errno::NOTDIR | Errno::LOOP) => {
                let is_there = stat(below, above).is_ok_and(|found| found.is_some());
                if is_there && !gone.contains(above) {
                    return Some(BLOCKED);
                }
            }
            Err(Errno::NOENT) => {}
            // It is told as the change is written.
            Err(_) => return None,
        }
    }
    None
}

/// Returns what hinders a file's or folder's replacement that its modes allow: inode attributes, ioctl_iflags(2).
fn fixed(path: &Path, below: BorrowedFd<'_>) -> Option<&'static str> {
    let kept = StatxAttributes::IMMUTABLE | StatxAttributes::APPEND;
    let is_fixed = |path: &Path| {
        let there = open(below, path, OFlags::PATH | OFlags::NOFOLLOW).ok()?;
        let found = rustix::fs::statx(there, c"", AtFlags::EMPTY_PATH, StatxFlags::empty()).ok()?;
        Some(found.stx_attributes.intersects(kept))
    };
    let is_any = [Some(path), path.parent()].into_iter().flatten().filter_map(is_fixed).any(|it| it);
    is_any.then_some(FIXED)
}

/// A folder stays if something below it is left out. Then what was to take its place is taken out of the order, and the removals below it
/// as well.
fn leave_folders(order: &mut Vec<&Change>, left_out: &[LeftOut]) -> Vec<LeftOut> {
    let left: BTreeSet<&Path> = left_out.iter().map(|it| it.path.as_path()).collect();
    let has_left = |path: &Path| {
        left.range::<Path, _>((Bound::Included(path), Bound::Unbounded))
            .next()
            .is_some_and(|it| it.starts_with(path))
    };
    let stay: BTreeSet<&Path> = order
        .iter()
        .filter(|change| matches!(change.what, What::Made { mode } if !is_directory(mode)))
        .map(|it| it.path.as_path())
        .filter(|path| has_left(path))
        .collect();
    let is_of_one = |change: &&Change| change.path.ancestors().any(|path| stay.contains(path));
    order
        .extract_if(.., |change| is_of_one(change))
        .map(|it| LeftOut { path: it.path.clone(), why: STAYS })
        .collect()
}

fn is_gone(change: &Change) -> bool {
    matches!(change.what, What::Gone { .. })
}

#[cfg(test)]
mod tests {
    use std::fs::{create_dir, create_dir_all, set_permissions, write};
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;

    use super::super::{Changes, WRITTEN};
    use super::*;
    use crate::changes::fixture::{Kept, unprivileged};

    #[test]
    fn what_lies_in_a_folder_that_may_not_be_written_is_left_out_first() {
        unprivileged(|state| {
            let (kept, workspace) = (state.join("kept"), state.join("workspace"));
            let written = kept.join(WRITTEN);
            create_dir(&workspace).unwrap();
            Changes::prepare(&kept, &workspace).unwrap();
            for path in ["shut/file", "instead/shut/file"] {
                create_dir_all(workspace.join(path).parent().unwrap()).unwrap();
                write(workspace.join(path), "mine").unwrap();
            }
            create_dir_all(written.join("shut/new/deep")).unwrap();
            for path in ["shut/file", "shut/new/deep/file", "instead", "first", "last"] {
                write(written.join(path), "the run's").unwrap();
            }
            let mode = |path: &str, mode| {
                set_permissions(workspace.join(path), std::fs::Permissions::from_mode(mode)).unwrap();
            };
            mode("shut", 0o555);
            mode("instead/shut", 0o555);
            let mut changes = Changes::read(&kept, &workspace).unwrap();
            changes.since = changes.since.never();
            let applied = changes.apply(&[], &|| false).unwrap();
            mode("shut", 0o755);
            mode("instead/shut", 0o755);
            assert_eq!(applied.done, ["first", "last"].map(PathBuf::from), "{applied:?}");
            for path in ["shut/file", "shut/new", "shut/new/deep", "shut/new/deep/file"] {
                let left = applied.left_out.iter().find(|it| it.path == Path::new(path));
                assert!(left.is_some_and(|it| it.why == SHUT), "{path}: {applied:?}");
            }
            assert_eq!(std::fs::read_to_string(workspace.join("instead/shut/file")).unwrap(), "mine");
        });
    }

    #[test]
    fn what_is_marked_to_be_kept_is_left_out_first() {
        let kept = Kept::new();
        for path in ["log", "before"] {
            write(kept.workspace(path), "mine").unwrap();
            write(kept.written(path), "the run's").unwrap();
        }
        let log = std::fs::File::open(kept.workspace("log")).unwrap();
        let mark = |flags| rustix::fs::ioctl_setflags(&log, flags);
        if let Err(errno) = mark(rustix::fs::IFlags::APPEND) {
            return lockgate_needs::missing(&format!("no file can be marked here: {errno}"));
        }
        let mut changes = kept.changes();
        changes.since = changes.since.never();
        let applied = changes.apply(&[], &|| false);
        mark(rustix::fs::IFlags::empty()).unwrap();
        let applied = applied.unwrap();
        assert_eq!(applied.done, [Path::new("before")], "{applied:?}");
        let left: Vec<_> = applied.left_out.iter().map(|it| (it.path.as_path(), it.why)).collect();
        assert_eq!(left, [(Path::new("log"), FIXED)]);
    }

    #[test]
    fn what_lies_in_a_folder_that_a_file_became_needs_that_named_as_well() {
        let kept = Kept::new();
        write(kept.workspace("f"), "mine").unwrap();
        std::os::unix::fs::symlink("f", kept.workspace("link")).unwrap();
        create_dir_all(kept.written("f/deep")).unwrap();
        create_dir(kept.written("link")).unwrap();
        for path in ["f/x", "f/deep/y", "link/x", "plain"] {
            write(kept.written(path), "the run's").unwrap();
        }
        let paths = ["f/x", "f/deep", "link/x", "plain"].map(PathBuf::from);
        let applied = kept.changes().apply(&paths, &|| false).unwrap();
        assert_eq!(applied.done, [Path::new("plain")], "{applied:?}");
        assert_eq!(applied.left_out.len(), 4, "{applied:?}");
        assert!(applied.left_out.iter().all(|it| it.why == BLOCKED), "{applied:?}");
        assert_eq!(std::fs::read_to_string(kept.workspace("f")).unwrap(), "mine");
        assert!(kept.changes().apply(&[], &|| false).unwrap().left_out.is_empty());
        assert!(kept.workspace("f/deep/y").exists() && kept.workspace("link/x").exists());
    }
}
