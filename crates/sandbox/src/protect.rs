//! Protected paths: files that the host would later execute or trust are read-only inside, whether they exist or not.
//!
//! A protected name that does not exist is held on the host during the run: `hold` chooses the names, `held_name` holds one, `placeholder`
//! is what occupies it, and `placeholder_cache` keeps placeholders between runs.

mod elsewhere;
mod held_name;
mod hold;
mod links;
mod placeholder;
mod placeholder_cache;
mod planted;
mod repository;
mod tree;

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use policy::MountMode;
use rustix::fs::{AtFlags, FileType};
use rustix::io::Errno;
use sys::mount::{self, Depth, Flags};

use self::elsewhere::refuse_repository_inside;
pub(crate) use self::held_name::{HeldName, release};
pub(crate) use self::hold::hold_absent;
use self::links::refuse_links;
use self::placeholder::is_placeholder;
pub(crate) use self::placeholder_cache::PlaceholderCache;
use self::planted::refuse_links_within;
pub(crate) use self::planted::take_away as take_planted_links;
pub(crate) use self::repository::{Layout, OpenRepository, Repository};
use crate::error::Error;
use crate::source;

const DATA: &str = include_str!("../../../profiles/protected.txt");

/// One protected path.
#[derive(Clone, Copy)]
struct Row {
    path: &'static Path,
    when_absent: WhenAbsent,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum WhenAbsent {
    HoldByDirectory,
    HoldByFile,
    HoldByEmptyFile,
    /// Holding one of these rows is enough.
    HoldOne,
    /// Held if one of those is.
    HoldWithOne,
    Leave,
}

fn rows() -> impl Iterator<Item = Row> {
    // Parsed once: a start uses them several times.
    static ROWS: LazyLock<Vec<Row>> = LazyLock::new(read_rows);
    ROWS.iter().copied()
}

fn read_rows() -> Vec<Row> {
    let row = |line: &'static str| {
        let mut words = line.split('#').next()?.split_whitespace();
        let when_absent = match words.next()? {
            "hold" => WhenAbsent::HoldByDirectory,
            "file" => WhenAbsent::HoldByFile,
            "void" => WhenAbsent::HoldByEmptyFile,
            "one" => WhenAbsent::HoldOne,
            "with" => WhenAbsent::HoldWithOne,
            _ => WhenAbsent::Leave,
        };
        Some(Row { path: Path::new(words.next()?), when_absent })
    };
    DATA.lines().filter_map(row).collect()
}

/// Whether a path of a workspace is protected, or is below or above a protected path. A repository contains protected paths. The
/// workspace's own, if it is left to the command, counts only for what else is protected in it.
pub(crate) fn shows_protected(within: &Path, open: &[PathBuf]) -> bool {
    let is_left = |at: &Path| at == Path::new(".git") && open.iter().any(|path| path == at);
    let counts = |row: &Row| row.path != Path::new(".git") && row.when_absent != WhenAbsent::HoldOne;
    repositories(within).any(|(at, _)| !is_left(&at))
        || rows_but(open).filter(counts).any(|row| lies_in(within, row.path) || row.path.starts_with(within))
}

/// Whether this machine would execute or trust a path, seen from the top of a workspace or of a repository, or something below it.
#[must_use]
pub fn is_protected(path: &Path) -> bool {
    is_listed(path) || repositories(path).any(|(_, within)| is_listed(&within))
}

/// Whether a path is one of the list, or below it. A repository as a whole is not: its protected paths have rows of their own.
pub(crate) fn is_listed(path: &Path) -> bool {
    listed().any(|row| lies_in(path, row.path))
}

/// Whether a path is above one of the list. What is no directory there would lead to another place, or to none.
pub(crate) fn leads_to_listed(path: &Path) -> bool {
    listed().any(|row| row.path.components().count() > path.components().count() && lies_in(row.path, path))
}

/// Returns the number of components of the list's longest path.
pub(crate) fn longest_listed() -> usize {
    listed().map(|row| row.path.components().count()).max().unwrap_or_default()
}

fn listed() -> impl Iterator<Item = Row> {
    rows().filter(|row| row.path != Path::new(".git") && row.when_absent != WhenAbsent::HoldOne)
}

/// Returns every repository on a path, with the path as it would be if that repository were the workspace's own.
pub(crate) fn repositories(path: &Path) -> impl Iterator<Item = (PathBuf, PathBuf)> {
    let parts: Vec<_> = path.components().collect();
    let found = (0..parts.len()).filter(|at| is_git(parts[*at].as_os_str())).collect::<Vec<_>>();
    found.into_iter().map(move |at| (parts[..=at].iter().collect(), parts[at..].iter().collect()))
}

/// Whether a path of a workspace is a name that a run holds.
pub(crate) fn is_held(workspace: BorrowedFd<'_>, path: &Path) -> bool {
    is_placeholder(workspace, path)
}

/// Whether a name is that of a repository. Some file systems ignore case.
pub(crate) fn is_git(name: &OsStr) -> bool {
    name.eq_ignore_ascii_case(".git")
}

/// Whether a path is a row's, or below it. Case is ignored in a repository, as in its name.
fn lies_in(path: &Path, row: &Path) -> bool {
    let within_git = row.components().next().is_some_and(|first| is_git(first.as_os_str()));
    let mut parts = path.components();
    row.components().all(|of_row| {
        parts.next().is_some_and(|part| {
            part == of_row || within_git && part.as_os_str().eq_ignore_ascii_case(of_row.as_os_str())
        })
    })
}

/// Refuses to open a path that is not protected: the user would believe that a misspelled name is open.
pub(crate) fn refuse_unknown(open: &[PathBuf]) -> Result<(), Error> {
    match open.iter().find(|path| !rows().any(|row| row.path == *path)) {
        None => Ok(()),
        Some(unknown) => Err(Error::Unknown {
            what: format!("`{}` is not a protected path, so it cannot be opened", unknown.display()),
            remedy: format!(
                "the protected paths are {}",
                rows().map(|row| row.path.display().to_string()).collect::<Vec<_>>().join(", ")
            ),
        }),
    }
}

/// Returns the rows that apply in a run that opens some paths.
fn rows_but(open: &[PathBuf]) -> impl Iterator<Item = Row> {
    let is_open = |row: &Row| open.iter().any(|path| path == row.path);
    let none_of_them = rows().any(|row| row.when_absent == WhenAbsent::HoldOne && is_open(&row));
    rows().filter(move |row| !(is_open(row) || none_of_them && row.when_absent == WhenAbsent::HoldOne))
}

/// Returns the held name at or above a path of a workspace.
pub(crate) fn held_above(workspace: &Path, open: &[PathBuf], within: &Path) -> Option<&'static Path> {
    let root = source::open(workspace).ok()?;
    let mut held =
        rows_but(open).filter(|row| row.when_absent != WhenAbsent::Leave && within.starts_with(row.path));
    held.find(|row| hold::is_free(root.as_fd(), row.path)).map(|row| row.path)
}

/// Returns the rows that may have something to cover. Of the rows of which one is held, only that one; and none in a folder that is not
/// there, or is a placeholder.
fn rows_there(root: BorrowedFd<'_>, open: &[PathBuf]) -> impl Iterator<Item = Row> {
    let mut folders: Vec<(&Path, bool)> = Vec::new();
    let mut is_within_something = move |path: &'static Path| {
        let Some(folder) = path.ancestors().skip(1).filter(|above| !above.as_os_str().is_empty()).last()
        else {
            return true;
        };
        if let Some((_, is_there)) = folders.iter().find(|(known, _)| *known == folder) {
            return *is_there;
        }
        let found = rustix::fs::statat(root, folder, AtFlags::SYMLINK_NOFOLLOW);
        let is_absent = found.is_err_and(|errno| errno == Errno::NOENT);
        let is_there = !is_absent && !is_placeholder(root, folder);
        folders.push((folder, is_there));
        is_there
    };
    rows_in(root, open).into_iter().filter(move |row| {
        (row.when_absent != WhenAbsent::HoldOne || is_placeholder(root, row.path))
            && is_within_something(row.path)
    })
}

/// Returns the rows that apply in one workspace. In a bare repository, the protected paths of a `.git` are at its top.
fn rows_in(root: BorrowedFd<'_>, open: &[PathBuf]) -> Vec<Row> {
    let bare = is_bare(root) && !open.iter().any(|path| path == Path::new(".git"));
    let at_top = |row: &Row| {
        let path = row.path.strip_prefix(".git").ok().filter(|rest| !rest.as_os_str().is_empty())?;
        Some(Row { path, when_absent: row.when_absent })
    };
    let of_repository: Vec<Row> = rows_but(open).filter(|_| bare).filter_map(|row| at_top(&row)).collect();
    // A bare repository need not be kept from becoming one.
    let is_needless = |row: &Row| matches!(row.when_absent, WhenAbsent::HoldOne | WhenAbsent::HoldWithOne);
    rows_but(open).filter(|row| !(bare && is_needless(row))).chain(of_repository).collect()
}

/// Whether git takes a folder for a bare repository.
fn is_bare(root: BorrowedFd<'_>) -> bool {
    // Git follows links here, except that `HEAD` itself may be one.
    let is = |name: &str, kinds: &[FileType], links: AtFlags| {
        let stat = rustix::fs::statat(root, name, links);
        stat.is_ok_and(|stat| kinds.contains(&FileType::from_raw_mode(stat.st_mode)))
            && !is_placeholder(root, Path::new(name))
    };
    let is_folder = |name: &str| is(name, &[FileType::Directory], AtFlags::empty());
    is("HEAD", &[FileType::RegularFile, FileType::Symlink], AtFlags::SYMLINK_NOFOLLOW)
        && is_folder("objects")
        && is_folder("refs")
}

/// Makes every protected path of the workspace read-only inside.
pub(crate) fn protect(workspace: BorrowedFd<'_>, open: &[PathBuf]) -> Result<(), (PathBuf, std::io::Error)> {
    if !open.iter().any(|path| path == Path::new(".git")) {
        pin_git(workspace).map_err(|e| (".git".into(), e))?;
    }
    let mut pinned = Vec::new();
    for row in rows_there(workspace, open) {
        if row.path == Path::new(".git") {
            continue;
        }
        for folder in folders_to_pin(row.path, &mut pinned) {
            let at = |e| (folder.to_path_buf(), e);
            let found = source::open_beneath(workspace, folder)
                .map_err(|e| at(std::io::Error::other(e.to_string())))?;
            found.map_or(Ok(()), |found| cover(found.as_fd(), Flags::NO_SUID)).map_err(at)?;
        }
        let found = match source::open_beneath(workspace, row.path) {
            Ok(Some(found)) => found,
            Ok(None) => continue,
            Err(error) => return Err((row.path.to_path_buf(), std::io::Error::other(error.to_string()))),
        };
        cover(found.as_fd(), Flags::READ_ONLY).map_err(|e| (row.path.to_path_buf(), e))?;
    }
    Ok(())
}

/// Opens the repositories of a workspace. Refuses one that contains a symbolic link.
fn repositories_without_links(
    workspace: &Path,
    root: &Arc<OwnedFd>,
    open: &[PathBuf],
) -> Result<Vec<OpenRepository>, Error> {
    let all = OpenRepository::all(workspace, root, open)
        .map_err(|error| planted::refused(Layout::Whole, error.to_string()))?;
    refuse_links_within(&all)?;
    Ok(all)
}

/// Returns every existing protected path of a workspace, with its mount mode at an engine.
pub(crate) fn present(workspace: &Path, open: &[PathBuf]) -> Result<Vec<(PathBuf, MountMode)>, Error> {
    let root = Arc::new(source::open(workspace)?);
    let mut found = Vec::new();
    refuse_links(root.as_fd(), open)?;
    refuse_repository_inside(workspace, open)?;
    repositories_without_links(workspace, &root, open)?;
    let mut pinned = Vec::new();
    for row in rows_there(root.as_fd(), open) {
        for folder in folders_to_pin(row.path, &mut pinned) {
            if source::open_beneath(root.as_fd(), folder)?.is_some_and(|found| is_directory(found.as_fd())) {
                found.push((workspace.join(folder), MountMode::ReadWrite));
            }
        }
        let whole_repository = row.path == Path::new(".git");
        match source::open_beneath(root.as_fd(), row.path) {
            // As in `pin_git`: writable, but a mount point, so that it cannot be renamed away.
            Ok(Some(git))
                if whole_repository
                    && is_directory(git.as_fd())
                    && !is_placeholder(root.as_fd(), row.path) =>
            {
                found.push((workspace.join(row.path), MountMode::ReadWrite));
            }
            Ok(Some(_)) => found.push((workspace.join(row.path), MountMode::ReadOnly)),
            Ok(None) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// Returns the folders above a protected path, except the repository, outermost first. Each must be a mount point of its own, or it
/// could be renamed away with its content. Leaves out those that were returned before.
fn folders_to_pin<'a>(path: &'a Path, pinned: &mut Vec<&'a Path>) -> Vec<&'a Path> {
    let above =
        path.ancestors().skip(1).filter(|above| !above.as_os_str().is_empty() && *above != Path::new(".git"));
    let mut folders: Vec<&Path> = above.filter(|above| !pinned.contains(above)).collect();
    folders.reverse();
    pinned.extend(&folders);
    folders
}

/// Makes an existing repository a mount point, so that it stays writable but cannot be renamed away. A placeholder is made read-only.
fn pin_git(workspace: BorrowedFd<'_>) -> std::io::Result<()> {
    let git = Path::new(".git");
    match source::open_beneath(workspace, git) {
        // A `.git` file names a repository elsewhere (a linked worktree, a submodule), which the agent must not change.
        Ok(Some(found)) if is_placeholder(workspace, git) || !is_directory(found.as_fd()) => {
            cover(found.as_fd(), Flags::READ_ONLY)
        }
        Ok(Some(found)) => cover(found.as_fd(), Flags::NO_SUID),
        _ => Ok(()),
    }
}

fn is_directory(found: BorrowedFd<'_>) -> bool {
    rustix::fs::fstat(found).is_ok_and(|s| FileType::from_raw_mode(s.st_mode).is_dir())
}

/// Mounts a file or directory over itself with further flags.
fn cover(found: BorrowedFd<'_>, flags: Flags) -> std::io::Result<()> {
    let tree = mount::clone_tree(found, c"", Depth::Recursive)?;
    mount::set_flags(tree.as_fd(), flags.and(Flags::NO_SUID).and(Flags::NO_DEV))?;
    mount::attach(tree.as_fd(), found, c"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repository_is_one_whatever_its_letters() {
        for (path, expected) in [
            (".git/config", true),
            (".GIT/Config", true),
            ("sub/.Git/hooks/x", true),
            (".git/objects/x", false),
            ("head", false),
        ] {
            assert_eq!(is_protected(Path::new(path)), expected, "{path}");
        }
    }

    #[test]
    fn what_leads_to_a_listed_path_is_above_it() {
        for (path, expected) in [
            (".hg", true),
            (".jj", true),
            (".jj/repo", true),
            (".GIT/Info", true),
            (".hg/hgrc", false),
            (".envrc", false),
            (".hg/store", false),
            ("src", false),
        ] {
            assert_eq!(leads_to_listed(Path::new(path)), expected, "{path}");
        }
        assert_eq!(longest_listed(), 3);
    }

    #[test]
    fn what_is_left_to_the_command_may_be_shown_once_more_and_the_rest_may_not() {
        let git = [PathBuf::from(".git")];
        for (path, open, expected) in [
            (".git/annex", &[][..], true),
            (".git/annex", &git[..], false),
            (".git", &git, true),
            (".git/hooks/x", &git, true),
            (".git/modules/sub/.git", &git, true),
            ("sub/.git/annex", &git, true),
            ("src", &git, false),
            (".jj", &[], true),
            (".envrc", &[".envrc".into()], false),
        ] {
            assert_eq!(shows_protected(Path::new(path), open), expected, "{path}");
        }
    }

    #[test]
    fn a_bare_repository_is_one_also_by_links_and_what_is_held_in_it_is_known() {
        let folder = tempfile::tempdir().unwrap();
        let (workspace, elsewhere) = (folder.path().join("w"), folder.path().join("e"));
        for made in [&workspace, &elsewhere, &elsewhere.join("objects"), &elsewhere.join("refs")] {
            std::fs::create_dir(made).unwrap();
        }
        let bare = || is_bare(source::open(&workspace).unwrap().as_fd());
        let held = |within: &str| held_above(&workspace, &[], Path::new(within));
        assert!(!bare() && held("src/x").is_none());
        assert_eq!((held(".git/info/x"), held("refs")), (Some(Path::new(".git")), Some(Path::new("refs"))));
        assert!(held_above(&workspace, &[".git".into()], Path::new(".git/info")).is_none());
        for (name, target) in
            [("HEAD", "refs/heads/main"), ("objects", "../e/objects"), ("refs", "../e/refs")]
        {
            assert!(!bare());
            std::os::unix::fs::symlink(target, workspace.join(name)).unwrap();
        }
        assert!(bare());
        std::fs::create_dir(workspace.join(".git")).unwrap();
        assert!(held(".git/info/x").is_none() && held(".git/hooks/x") == Some(Path::new(".git/hooks")));
    }
}
