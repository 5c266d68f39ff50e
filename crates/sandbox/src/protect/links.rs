//! Links, by which what is protected would have another name that is not: a symbolic link leads to where it may be written, and the
//! link itself can be replaced; a file with a second name can be written by that one. A workspace that has such is refused.

use std::ffi::OsStr;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, FileType};
use rustix::io::Errno;

use super::tree::{Shut, Walk};
use super::{Row, is_placeholder, rows_there};
use crate::error::Error;
use crate::source;

/// How much of what is protected is looked through: files and folders.
const MOST: usize = 100_000;

/// The repositories of submodules: of them the objects are not looked at, which nobody executes, and which clones share.
const REPOSITORIES: &str = "modules";
const OBJECTS: &str = "objects";

/// Refuses a workspace in which something that would have to be protected has another name.
pub(super) fn refuse_links(root: BorrowedFd<'_>, open: &[PathBuf]) -> Result<(), Error> {
    for Row { path, .. } in rows_there(root, open) {
        let refused = |why: String| Error::Refused {
            what: format!("`{}` cannot be protected: {why}", path.display()),
            remedy: Some(format!(
                "put a file or folder of its own in its place, or let the command have it as it is: --open {}",
                path.display()
            )),
        };
        let Some(found) = source::open_beneath(root, path).map_err(|error| refused(error.to_string()))?
        else {
            continue;
        };
        // Of a repository as a whole nothing is covered: what matters of it has rows of its own.
        let whole = path == Path::new(".git") && super::is_directory(found.as_fd());
        if whole || is_placeholder(root, path) {
            continue;
        }
        match second_name(root, found.as_fd(), path) {
            Ok(None) => {}
            Ok(Some(Other { path, how })) => {
                let path = path.display().to_string();
                return Err(refused(format!("`{}` {how}", path.escape_debug())));
            }
            Err(error) => return Err(refused(format!("it cannot be looked through: {error}"))),
        }
    }
    Ok(())
}

/// Something that can be written elsewhere.
struct Other {
    /// Its path in the workspace.
    path: PathBuf,
    /// What reads on after it.
    how: &'static str,
}

const NAMES: &str = "is a file with more names than one (hard links), and could be written by another";
const LEADS: &str = "is a symbolic link to what the command could write, or make";

/// A file at or below a path that has another name, or a link there to what is not protected with it.
fn second_name(root: BorrowedFd<'_>, found: BorrowedFd<'_>, path: &Path) -> io::Result<Option<Other>> {
    let stat = rustix::fs::fstat(found)?;
    if !FileType::from_raw_mode(stat.st_mode).is_dir() {
        return Ok((stat.st_nlink > 1).then(|| Other { path: path.to_path_buf(), how: NAMES }));
    }
    // As it is named without links.
    let root = std::fs::read_link(format!("/proc/self/fd/{}", root.as_raw_fd()))?;
    let skips = path.ends_with(REPOSITORIES);
    let leaves = |within: &Path| skips && within.ends_with(OBJECTS);
    let mut other = None;
    Walk { most: MOST, leaves: &leaves, shut: Shut::Refuse }.visit(found, &mut |entry| {
        let how = match entry.kind {
            FileType::Directory => return Ok(ControlFlow::Continue(())),
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(entry.folder, entry.name, Vec::new())?;
                let target = Path::new(OsStr::from_bytes(target.to_bytes()));
                let place = path.join(entry.within);
                leads_to_writable(&root, path, &place, target).then_some(LEADS)
            }
            _ => match rustix::fs::statat(entry.folder, entry.name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => (stat.st_nlink > 1).then_some(NAMES),
                Err(Errno::NOENT) => None,
                Err(errno) => return Err(errno.into()),
            },
        };
        let Some(how) = how else { return Ok(ControlFlow::Continue(())) };
        other = Some(Other { path: path.join(entry.path()), how });
        Ok(ControlFlow::Break(()))
    })?;
    Ok(other)
}

/// Whether a link in a folder of the workspace leads into the workspace, and not to what is protected together with it. What is not there
/// is judged by where it would be made.
fn leads_to_writable(root: &Path, covered: &Path, place: &Path, target: &Path) -> bool {
    let mut named = root.join(place);
    let mut is_plain = true;
    for part in target.components() {
        match part {
            Component::RootDir | Component::Prefix(_) => named = PathBuf::from("/"),
            Component::CurDir => {}
            Component::ParentDir => {
                // Above what is named before may be somewhere else, if that is a link.
                is_plain &= root.join(place).starts_with(&named);
                named.pop();
            }
            Component::Normal(name) => named.push(name),
        }
    }
    let there = named.ancestors().find_map(|above| above.canonicalize().ok().map(|real| (above, real)));
    let Some((above, real)) = there else { return true };
    let real = real.join(named.strip_prefix(above).unwrap_or(Path::new("")));
    let within = root.join(covered);
    match is_plain {
        true if named.starts_with(&within) => real != named,
        true => named.starts_with(root) || real.starts_with(root),
        false => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(make: impl FnOnce(&Path)) -> Option<String> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join(".git/hooks/deep")).unwrap();
        std::fs::create_dir_all(folder.path().join(".git/modules/sub/objects/aa")).unwrap();
        for file in [".git/config", ".git/hooks/deep/hook", ".git/modules/sub/config", "plain"] {
            std::fs::write(folder.path().join(file), "x").unwrap();
        }
        std::fs::write(folder.path().join(".git/modules/sub/objects/aa/bb"), "x").unwrap();
        make(folder.path());
        let root = source::open(folder.path()).unwrap();
        match refuse_links(root.as_fd(), &[]) {
            Err(Error::Refused { what, .. }) => Some(what),
            Err(other) => panic!("{other}"),
            Ok(()) => None,
        }
    }

    #[test]
    fn a_second_name_of_what_is_protected_is_refused() {
        let link = |from: &'static str, to: &'static str| {
            refused(move |folder| std::fs::hard_link(folder.join(from), folder.join(to)).unwrap())
        };
        assert_eq!(refused(|_| ()), None);
        for file in [".git/config", ".git/hooks/deep/hook", ".git/modules/sub/config"] {
            let why = link(file, "other").unwrap_or_default();
            assert!(why.contains(file) && why.contains("more names than one"), "{file}: {why}");
        }
        // What is not protected may have as many as it likes, and what clones share is not executed.
        assert_eq!(link("plain", "other"), None);
        assert_eq!(link(".git/modules/sub/objects/aa/bb", "other"), None);
        assert!(link("plain", ".envrc").is_some());
    }

    #[test]
    fn a_link_to_what_can_be_written_is_refused() {
        let link = |target: &str| {
            let why = refused(|folder| {
                let target = target.replace("{top}", folder.to_str().unwrap());
                std::os::unix::fs::symlink(target, folder.join(".git/hooks/deep/pre-commit")).unwrap();
            });
            assert!(
                why.iter().all(|why| why.contains("`.git/hooks/deep/pre-commit` is a symbolic link")),
                "{why:?}"
            );
            why.is_some()
        };
        for target in [
            "../../../plain",
            "../../../absent",
            "{top}/plain",
            "../../config",
            "../../..",
            "hook/../../../../plain",
            "sub/../../../../../etc/passwd",
        ] {
            assert!(link(target), "{target}");
        }
        // StagedFile it, where nothing is made either; and outside.
        for target in [
            "hook",
            "./hook",
            "../deep/hook",
            "absent",
            "{top}/.git/hooks/deep/hook",
            "/etc/passwd",
            "/nonesuch/hook",
        ] {
            assert!(!link(target), "{target}");
        }
    }

    #[test]
    fn more_folders_than_may_be_open_are_looked_through() {
        let why = refused(|folder| {
            (0..3_000).for_each(|n| std::fs::create_dir(folder.join(format!(".git/hooks/{n:04}"))).unwrap());
            std::fs::hard_link(folder.join("plain"), folder.join(".git/hooks/0000/hook")).unwrap();
        });
        assert!(why.is_some_and(|why| why.contains(".git/hooks/0000/hook")));
    }

    #[test]
    fn a_link_in_the_place_of_what_is_protected_is_refused() {
        let why = refused(|folder| std::os::unix::fs::symlink("plain", folder.join(".envrc")).unwrap());
        assert!(why.is_some_and(|why| why.contains(".envrc")));
    }
}
