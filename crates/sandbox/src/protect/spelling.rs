//! Refuses a workspace whose file system takes another spelling for a name. A cover is a mount on one name: by the other spelling the
//! command would reach the file beside it. Some ignore case, some take what Windows puts after a name, and some have a short name for each.
//!
//! Others need no look. Protected names are ASCII and have no `K`, the only ASCII letter to which another character (U+212A) is
//! normalised. So they have one spelling where a file system tells cases apart, even if it takes all normal forms of a text for one name.

use std::ffi::OsString;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, OFlags, RawDir};
use rustix::io::Errno;

use crate::error::Error;
use crate::file_system::has_short_names;
use crate::open_file::lookup;
use crate::source;

/// What Windows takes for nothing at the end of a name: the unnamed stream, a dot, a blank.
const ENDS: [&str; 4] = [":", "::$DATA", ".", " "];

const REMEDY: &str = "use --workspace-mode overlay or ro, or a folder on another file system";

/// Refuses a workspace in which a protected name can be reached in another spelling. Each folder with such names is looked at, because a
/// folder may ignore case where the one above does not: `chattr +F`.
pub(super) fn refuse_other_spellings(
    workspace: &Path,
    root: BorrowedFd<'_>,
    covered: &[&Path],
) -> Result<(), Error> {
    let refused = |path: &Path, other: &Path, why: &str| Error::Refused {
        what: format!(
            "{} cannot be a writable workspace: its file system {why}, so `{}` is `{}` as well, which is protected",
            workspace.display(),
            other.display(),
            path.display()
        ),
        remedy: Some(REMEDY.into()),
    };
    let mut known: Vec<&Path> = Vec::new();
    for path in covered.iter().flat_map(|path| path.ancestors()) {
        let Some(folder) = path.parent().filter(|folder| !known.contains(folder)) else { continue };
        known.push(folder);
        let other = otherwise(path);
        if is_reached_as(root, path, &other).map_err(|errno| source::refused(path, errno))? {
            return Err(refused(path, &other, "ignores case"));
        }
    }
    // One of each kind in each folder: to some, only files have such names.
    let mut known: Vec<(&Path, FileType)> = Vec::new();
    for path in covered {
        let Some((folder, kind)) = path.parent().zip(kind_of(root, path)) else { continue };
        if known.contains(&(folder, kind)) {
            continue;
        }
        known.push((folder, kind));
        if let Some(other) = other_end(root, path).map_err(|errno| source::refused(path, errno))? {
            return Err(refused(path, &other, "ignores the end of a name"));
        }
    }
    Ok(())
}

/// Refuses a workspace where the command could give what is protected a short name, if one of these directories is of such a file system.
pub(super) fn refuse_short_names(workspace: &Path, directories: &[OwnedFd]) -> Result<(), Error> {
    if !directories.iter().any(has_short_names) {
        return Ok(());
    }
    Err(Error::Refused {
        what: format!(
            "{} cannot be a writable workspace: its file system gives files short names too, as `GIT~1`, and what is protected has one or \
             could get it",
            workspace.display()
        ),
        remedy: Some(REMEDY.into()),
    })
}

fn kind_of(root: BorrowedFd<'_>, path: &Path) -> Option<FileType> {
    let about = rustix::fs::statat(root, path, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    Some(FileType::from_raw_mode(about.st_mode))
}

/// Returns the first name with something at its end by which what exists is reached as well.
fn other_end(root: BorrowedFd<'_>, path: &Path) -> rustix::io::Result<Option<PathBuf>> {
    for end in ENDS {
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(end);
        let other = path.with_file_name(name);
        if is_reached_as(root, path, &other)? {
            return Ok(Some(other));
        }
    }
    Ok(None)
}

/// Whether an existing name of a folder is reached by another as well. A folder that tells them apart may have both names: then both
/// are in its list. Inode numbers do not tell, because some file systems give each spelling its own.
fn is_reached_as(root: BorrowedFd<'_>, path: &Path, other: &Path) -> rustix::io::Result<bool> {
    match rustix::fs::statat(root, other, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(_) => {}
        // Some refuse such names.
        Err(Errno::NOENT | Errno::NOTDIR | Errno::INVAL | Errno::ILSEQ | Errno::NAMETOOLONG) => {
            return Ok(false);
        }
        Err(errno) => return Err(errno),
    }
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = lookup(root, folder, flags)?;
    let mut buffer = [MaybeUninit::uninit(); 8 * 1024];
    let mut entries = RawDir::new(&folder, &mut buffer);
    let (mut is_listed, mut is_other_listed) = (false, false);
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let name = Some(std::ffi::OsStr::from_bytes(entry.file_name().to_bytes()));
        is_listed |= name == path.file_name();
        is_other_listed |= name == other.file_name();
    }
    Ok(!(is_listed && is_other_listed))
}

/// Returns a path with the case of its last letter changed. That spelling is rarer than one in capitals.
fn otherwise(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().as_bytes().to_vec();
    if let Some(letter) = name.iter_mut().rev().find(|octet| octet.is_ascii_alphabetic()) {
        *letter ^= 0x20;
    }
    path.with_file_name(OsString::from_vec(name))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn every_listed_name_has_other_letters_and_none_that_a_normal_form_makes() {
        for row in super::super::row::rows() {
            let (path, other) = (row.path.to_str().unwrap(), otherwise(row.path));
            assert!(path.is_ascii() && !path.contains('K'), "{path}");
            assert!(row.path != other && path.eq_ignore_ascii_case(other.to_str().unwrap()), "{path}");
        }
    }

    #[test]
    fn a_name_in_other_letters_is_another_only_if_both_are_listed() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let root = std::fs::File::open(folder.path()).unwrap();
        let refused = || {
            let covered = [".envrc", ".git/config"].map(Path::new);
            refuse_other_spellings(folder.path(), root.as_fd(), &covered).map_err(|error| error.to_string())
        };
        std::fs::create_dir(at(".git")).unwrap();
        std::fs::write(at(".envrc"), "").unwrap();
        std::fs::write(at(".git/config"), "").unwrap();
        std::fs::write(at(".envrC"), "").unwrap();
        std::fs::write(at(".git/confiG"), "").unwrap();
        assert_eq!(refused(), Ok(()));
        // What stands in the list in one spelling and is reached by two: here it is a name that somebody took away.
        std::fs::remove_file(at(".git/config")).unwrap();
        let why = refused().unwrap_err();
        assert!(why.contains("ignores case") && why.contains("`.git/confiG`"), "{why}");
        std::fs::remove_file(at(".git/confiG")).unwrap();
        assert_eq!(refused(), Ok(()));
    }

    #[test]
    fn a_name_with_another_end_is_another_only_if_both_are_listed() {
        let folder = tempfile::tempdir().unwrap();
        let root = std::fs::File::open(folder.path()).unwrap();
        let path = Path::new(".envrc");
        for end in ENDS {
            let other = format!(".envrc{end}");
            std::fs::write(folder.path().join(path), "").unwrap();
            std::fs::write(folder.path().join(&other), "").unwrap();
            let told =
                || refuse_other_spellings(folder.path(), root.as_fd(), &[path]).map_err(|it| it.to_string());
            assert_eq!((told(), other_end(root.as_fd(), path)), (Ok(()), Ok(None)), "{end}");
            // Reached, and not in the list beside the other: here somebody took the one of them away.
            std::fs::remove_file(folder.path().join(path)).unwrap();
            assert_eq!(other_end(root.as_fd(), path), Ok(Some(PathBuf::from(&other))), "{end}");
            std::fs::remove_file(folder.path().join(&other)).unwrap();
        }
    }
}
