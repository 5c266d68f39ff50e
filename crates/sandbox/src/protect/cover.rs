//! Covers the protected paths of a workspace, as the command sees it: each becomes a mount point of its own.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use policy::MountMode;
use sys::mount::{self, Depth, Flags};

use super::applying::{open_left, rows_there};
use super::elsewhere::refuse_repository_inside;
use super::held::{Held, meddled};
use super::links::refuse_links;
use super::planted::repositories_without_links;
use super::row::LEFT;
use crate::error::Error;
use crate::source;

/// Makes every protected path of the workspace read-only inside. A held name is, whatever somebody has put there since.
pub(crate) fn protect(workspace: BorrowedFd<'_>, open: &[PathBuf], held: &[PathBuf]) -> Result<(), Error> {
    each_cover(workspace, open, held, &mut |path, found, mode| {
        let flags = if mode == MountMode::ReadOnly { Flags::READ_ONLY } else { Flags::NO_SUID };
        // It was opened before the folder around it was covered, and belongs on that cover.
        let anew = if path == Path::new(LEFT) { source::open_beneath(workspace, path)? } else { None };
        cover(found, anew.as_ref().map_or(found, |anew| anew.as_fd()), flags)
            .map_err(|e| Error::Source { path: path.into(), why: e.to_string() })
    })
}

/// Returns every existing protected path of a workspace, with its mount mode at an engine.
pub(crate) fn present(
    workspace: &Path,
    open: &[PathBuf],
    held: &[PathBuf],
) -> Result<Vec<(PathBuf, MountMode)>, Error> {
    let root = Arc::new(source::open(workspace)?);
    let mut found = Vec::new();
    refuse_links(root.as_fd(), open)?;
    refuse_repository_inside(workspace, open)?;
    repositories_without_links(workspace, &root, open)?;
    each_cover(root.as_fd(), open, held, &mut |path, _, mode| {
        found.push((workspace.join(path), mode));
        Ok(())
    })?;
    Ok(found)
}

/// Does something with each path that is to be a mount point of its own, outermost first: read-only what is protected; writable the folders
/// above it, and a repository, which must not be renamed away.
fn each_cover(
    root: BorrowedFd<'_>,
    open: &[PathBuf],
    held: &[PathBuf],
    act: &mut dyn FnMut(&Path, BorrowedFd<'_>, MountMode) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut pinned = Vec::new();
    for row in rows_there(root, open, Held::These(held))? {
        for folder in folders_to_pin(row.path, &mut pinned) {
            if let Some(found) = source::open_beneath(root, folder)? {
                act(folder, found.as_fd(), MountMode::ReadWrite)?;
            }
        }
        let is_held = Held::These(held).is(root, row.path)?;
        let Some(found) = source::open_beneath(root, row.path)? else {
            if is_held {
                return Err(meddled(row.path));
            }
            continue;
        };
        // A file in its place names a repository elsewhere (a linked worktree, a submodule), which the agent must not change.
        let is_repository = row.is_repository()
            && !is_held
            && source::is_directory(found.as_fd()).map_err(|errno| source::refused(row.path, errno))?;
        let mode = if is_repository { MountMode::ReadWrite } else { MountMode::ReadOnly };
        let left =
            Path::new(LEFT).parent().filter(|around| *around == row.path).and_then(|_| open_left(root));
        act(row.path, found.as_fd(), mode)?;
        if let Some(left) = left {
            act(Path::new(LEFT), left.as_fd(), MountMode::ReadWrite)?;
        }
        pinned.push(row.path);
    }
    Ok(())
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

/// Mounts a file or directory over itself, where it is seen, with further flags.
fn cover(found: BorrowedFd<'_>, seen: BorrowedFd<'_>, flags: Flags) -> std::io::Result<()> {
    let tree = mount::clone_tree(found, c"", Depth::Recursive)?;
    mount::set_flags(tree.as_fd(), flags.and(Flags::NO_SUID).and(Flags::NO_DEV))?;
    mount::attach(tree.as_fd(), seen, c"")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protect::hold_absent;

    #[test]
    fn a_held_name_is_covered_whatever_is_in_it_and_must_be_there() {
        let folder = tempfile::tempdir().unwrap();
        for made in [".git/hooks", "refs/heads", "objects"] {
            std::fs::create_dir_all(folder.path().join(made)).unwrap();
        }
        std::fs::write(folder.path().join("HEAD"), "").unwrap();
        let root = source::open(folder.path()).unwrap();
        let covers = |held: &[&str]| {
            let held: Vec<PathBuf> = held.iter().map(PathBuf::from).collect();
            let mut covers = Vec::new();
            let mut act = |path: &Path, _: BorrowedFd<'_>, mode| {
                covers.push((path.display().to_string(), mode));
                Ok(())
            };
            each_cover(root.as_fd(), &[], &held, &mut act).map(|()| covers)
        };
        let of = |path: &str, mode| (path.to_owned(), mode);
        let (writable, read_only) = (MountMode::ReadWrite, MountMode::ReadOnly);
        assert_eq!(covers(&[".git", "refs"]).unwrap(), [of(".git", read_only), of("refs", read_only)]);
        let covers_own = covers(&["refs"]).unwrap();
        assert_eq!(covers_own, [of(".git", writable), of(".git/hooks", read_only), of("refs", read_only)]);
        let error = covers(&[".git", "refs", ".envrc"]).unwrap_err().to_string();
        assert!(error.contains("`.envrc`"), "{error}");
    }

    #[test]
    fn what_jujutsu_runs_by_is_held_where_it_would_be_looked_at() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir_all(at(".jj/repo/store/git/refs")).unwrap();
        for file in [".jj/repo/store/git_target", ".jj/repo/store/git/config"] {
            std::fs::write(at(file), "").unwrap();
        }
        let held_and_covered = || {
            let mut log = crate::undo::UndoLog::in_memory();
            let hold = hold_absent(folder.path(), &[], &mut log).unwrap();
            let mut covers = Vec::new();
            let mut act = |path: &Path, _: BorrowedFd<'_>, mode| {
                covers.extend((path.starts_with(".jj")).then(|| format!("{mode:?} {}", path.display())));
                Ok(())
            };
            each_cover(hold.workspace.as_fd(), &[], &hold.names, &mut act).unwrap();
            let held = hold.names.iter().filter(|name| name.starts_with(".jj"));
            let held: Vec<_> = held.map(|name| name.display().to_string()).collect();
            drop(hold);
            assert_eq!(log.unwind(), Vec::<String>::new());
            (held, covers)
        };
        let of_git = ["hooks", "config.worktree", "commondir", "remotes", "branches"];
        let of_git = of_git.map(|it| format!(".jj/repo/store/git/{it}"));
        let (held, covers) = held_and_covered();
        assert_eq!(held, of_git);
        let expected = [
            "ReadWrite .jj",
            "ReadWrite .jj/repo",
            "ReadWrite .jj/repo/store",
            "ReadOnly .jj/repo/store/git_target",
            "ReadWrite .jj/repo/store/git",
            "ReadOnly .jj/repo/store/git/hooks",
            "ReadOnly .jj/repo/store/git/config",
            "ReadOnly .jj/repo/store/git/config.worktree",
            "ReadOnly .jj/repo/store/git/commondir",
            "ReadOnly .jj/repo/store/git/remotes",
            "ReadOnly .jj/repo/store/git/branches",
        ];
        assert_eq!(covers, expected);
        // Beside an id Jujutsu does not look at what holds the name. Without one it would move that into the user's home.
        for id in [".jj/repo/config-id", ".jj/workspace-config-id"] {
            std::fs::write(at(id), "").unwrap();
        }
        let of_jj = [".jj/repo/config.toml", ".jj/workspace-config.toml"].map(String::from);
        assert_eq!(held_and_covered().0, [&of_jj[..], &of_git[..]].concat());
        // A workspace beside the first one has a file in the place of the repository.
        std::fs::remove_dir_all(at(".jj/repo")).unwrap();
        std::fs::write(at(".jj/repo"), "../../first/.jj/repo").unwrap();
        let (held, covers) = held_and_covered();
        assert_eq!(held, of_jj[1..]);
        assert_eq!(covers, ["ReadWrite .jj", "ReadOnly .jj/repo", "ReadOnly .jj/workspace-config.toml"]);
    }

    #[test]
    fn checkouts_in_a_protected_folder_are_the_commands() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join(".claude/worktrees/one")).unwrap();
        let covers = || {
            let root = source::open(folder.path()).unwrap();
            let mut covers = Vec::new();
            let mut act = |path: &Path, _: BorrowedFd<'_>, mode| {
                covers.push((path.display().to_string(), mode));
                Ok(())
            };
            each_cover(root.as_fd(), &[], &[], &mut act).unwrap();
            covers
        };
        let around = (".claude".to_owned(), MountMode::ReadOnly);
        assert_eq!(covers(), [around.clone(), (LEFT.to_owned(), MountMode::ReadWrite)]);
        // A link would lead to somebody else's folder.
        std::fs::rename(folder.path().join(LEFT), folder.path().join("moved")).unwrap();
        std::os::unix::fs::symlink("/usr", folder.path().join(LEFT)).unwrap();
        assert_eq!(covers(), [around]);
    }
}
