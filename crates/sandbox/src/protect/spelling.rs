//! Refuses a workspace whose file system ignores case. A cover is a mount on one name: by another spelling of the name the command would
//! reach the file beside it.
//!
//! Other spellings need no look. Protected names are ASCII and have no `K`, the only ASCII letter to which another character (U+212A) is
//! normalised. So they have one spelling where a file system tells cases apart, even if it takes all normal forms of a text for one name.

use std::ffi::OsString;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags, RawDir, ResolveFlags};
use rustix::io::Errno;

use crate::error::Error;
use crate::source;

/// Refuses a workspace in which a protected name can be reached in other letters. Each folder with such names is looked at, because a
/// folder may ignore case where the one above does not: `chattr +F`.
pub(super) fn refuse_ignored_case(
    workspace: &Path,
    root: BorrowedFd<'_>,
    covered: &[&Path],
) -> Result<(), Error> {
    let mut known: Vec<&Path> = Vec::new();
    for path in covered.iter().flat_map(|path| path.ancestors()) {
        let Some(folder) = path.parent().filter(|folder| !known.contains(folder)) else { continue };
        known.push(folder);
        if is_reached_otherwise(root, path).map_err(|errno| source::refused(path, errno))? {
            return Err(Error::Refused {
                what: format!(
                    "{} cannot be a writable workspace: its file system ignores case, so `{}` is `{}` as well, which is protected",
                    workspace.display(),
                    otherwise(path).display(),
                    path.display()
                ),
                remedy: Some("use --workspace-mode overlay or ro, or a folder on another file system".into()),
            });
        }
    }
    Ok(())
}

/// Whether an existing name of a folder is reached in other letters as well. A folder that tells cases apart may have both names: then both
/// are in its list. Inode numbers do not tell, because some file systems give each spelling its own.
fn is_reached_otherwise(root: BorrowedFd<'_>, path: &Path) -> rustix::io::Result<bool> {
    let other = otherwise(path);
    match rustix::fs::statat(root, &other, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(_) => {}
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(false),
        Err(errno) => return Err(errno),
    }
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let folder = rustix::fs::openat2(root, folder, flags, Mode::empty(), beneath)?;
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
            refuse_ignored_case(folder.path(), root.as_fd(), &covered).map_err(|error| error.to_string())
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
}
