//! Protected paths: files that the host would later execute or trust are read-only inside, whether they exist or not.
//!
//! A protected name that does not exist is held on the host during the run: `hold` chooses the names, `held_name` holds one, `placeholder`
//! is what occupies it, and `placeholder_cache` keeps placeholders between runs.

mod elsewhere;
mod held;
mod held_name;
mod hold;
mod kind;
mod links;
mod placeholder;
mod placeholder_cache;
mod planted;
mod repository;
mod row;
mod spelling;
mod told;
mod top_names;
mod tree;
mod unheld;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use policy::MountMode;
use rustix::fs::{AtFlags, FileType};
use rustix::io::Errno;
use sys::mount::{self, Depth, Flags};

use self::elsewhere::refuse_repository_inside;
pub(crate) use self::elsewhere::repository_outside;
use self::held::Held;
pub(crate) use self::held_name::{HeldName, release};
pub(crate) use self::hold::{Hold, hold_absent};
use self::links::refuse_links;
use self::placeholder::{is_free, is_placeholder};
pub(crate) use self::placeholder_cache::PlaceholderCache;
use self::planted::refuse_links_within;
pub(crate) use self::planted::take_away as take_planted_links;
pub(crate) use self::repository::{Layout, OpenRepository, Repository};
pub(crate) use self::row::LEFT;
use self::row::{Row, WhenAbsent, rows};
use self::top_names::TopNames;
pub(crate) use self::unheld::Unheld;
use crate::error::Error;
use crate::source;

/// Opens the folder in a protected one that is the command's, if it is one.
fn open_left(root: BorrowedFd<'_>) -> Option<OwnedFd> {
    let found = source::open_beneath(root, Path::new(LEFT)).ok()??;
    is_directory(found.as_fd()).unwrap_or(false).then_some(found)
}

/// Whether a path of a workspace is protected, or is below or above a protected path. A repository contains protected paths. The
/// workspace's own, if it is left to the command, counts only for what else is protected in it.
pub(crate) fn shows_protected(within: &Path, open: &[PathBuf]) -> bool {
    let is_left = |at: &Path| at == Path::new(".git") && open.iter().any(|path| path == at);
    let counts = |row: &Row| !row.is_repository() && row.when_absent != WhenAbsent::HoldOne;
    repositories(within).any(|(at, _)| !is_left(&at))
        || rows_but(open).filter(counts).any(|row| lies_in(within, row.path) || lies_in(row.path, within))
}

/// Whether this machine would execute or trust a path, seen from the top of a workspace or of a repository, or something below it.
#[must_use]
pub fn is_protected(path: &Path) -> bool {
    is_listed(path) && !lies_in(path, Path::new(LEFT))
        || repositories(path).any(|(_, within)| is_listed(&within))
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

/// Returns the paths of the list, and those above them.
pub(crate) fn listed_paths() -> impl Iterator<Item = &'static Path> {
    let paths = rows().flat_map(|row| row.path.ancestors()).filter(|path| !path.as_os_str().is_empty());
    paths.collect::<BTreeSet<_>>().into_iter()
}

fn listed() -> impl Iterator<Item = Row> {
    rows().filter(|row| !row.is_repository() && row.when_absent != WhenAbsent::HoldOne)
}

/// Returns every repository on a path, with the path as it would be if that repository were the workspace's own.
pub(crate) fn repositories(path: &Path) -> impl Iterator<Item = (PathBuf, PathBuf)> {
    let parts: Vec<_> = path.components().collect();
    let found = (0..parts.len()).filter(|at| is_git(parts[*at].as_os_str())).collect::<Vec<_>>();
    found.into_iter().map(move |at| (parts[..=at].iter().collect(), parts[at..].iter().collect()))
}

/// Whether a path of a workspace is a name that a run holds.
pub(crate) fn is_held(workspace: BorrowedFd<'_>, path: &Path) -> rustix::io::Result<bool> {
    is_placeholder(workspace, path)
}

/// Whether a name is that of a repository. Some file systems ignore case.
pub(crate) fn is_git(name: &OsStr) -> bool {
    name.eq_ignore_ascii_case(".git")
}

/// Whether a path is a row's, or below it. Case is ignored, because some file systems do.
fn lies_in(path: &Path, row: &Path) -> bool {
    let mut parts = path.components();
    row.components().all(|of_row| {
        parts.next().is_some_and(|part| part.as_os_str().eq_ignore_ascii_case(of_row.as_os_str()))
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
pub(crate) fn held_above(
    workspace: &Path,
    open: &[PathBuf],
    within: &Path,
) -> Result<Option<&'static Path>, Error> {
    let Some(root) = source::open_if_there(workspace)? else { return Ok(None) };
    for row in rows_but(open) {
        if row.when_absent != WhenAbsent::Leave
            && within.starts_with(row.path)
            && is_free(root.as_fd(), row.path).map_err(|errno| source::refused(row.path, errno))?
        {
            return Ok(Some(row.path));
        }
    }
    Ok(None)
}

/// Returns the rows that may have something to cover. Of the rows of which one is held, only that one; and none in a folder that is not
/// there, or is held.
fn rows_there(root: BorrowedFd<'_>, open: &[PathBuf], held: Held<'_>) -> Result<Vec<Row>, Error> {
    let mut folders: Vec<(&Path, bool)> = Vec::new();
    let mut is_within_something = |path: &'static Path| {
        let Some(folder) = path.ancestors().skip(1).filter(|above| !above.as_os_str().is_empty()).last()
        else {
            return Ok(true);
        };
        if let Some((_, is_there)) = folders.iter().find(|(known, _)| *known == folder) {
            return Ok(*is_there);
        }
        let found = rustix::fs::statat(root, folder, AtFlags::SYMLINK_NOFOLLOW);
        let is_absent = found.is_err_and(|errno| errno == Errno::NOENT);
        let is_there = !is_absent && !held.is(root, folder)?;
        folders.push((folder, is_there));
        Ok(is_there)
    };
    let top = TopNames::of(root);
    let mut there = Vec::new();
    for row in rows_in(root, open, held)? {
        // One that is held must be there.
        if row.when_absent == WhenAbsent::Leave && !top.may_have(row.path) {
            continue;
        }
        if (row.when_absent != WhenAbsent::HoldOne || held.is(root, row.path)?)
            && is_within_something(row.path)?
        {
            there.push(row);
        }
    }
    Ok(there)
}

/// Returns the rows that apply in one workspace. In a bare repository, the protected paths of a `.git` are at its top.
fn rows_in(root: BorrowedFd<'_>, open: &[PathBuf], held: Held<'_>) -> Result<Vec<Row>, Error> {
    let bare = !open.iter().any(|path| path == Path::new(".git")) && is_bare(root, held)?;
    let at_top = |row: &Row| {
        let path = row.path.strip_prefix(".git").ok().filter(|rest| !rest.as_os_str().is_empty())?;
        Some(Row { path, ..*row })
    };
    let of_repository: Vec<Row> = rows_but(open).filter(|_| bare).filter_map(|row| at_top(&row)).collect();
    // A bare repository need not be kept from becoming one.
    let is_needless = |row: &Row| matches!(row.when_absent, WhenAbsent::HoldOne | WhenAbsent::HoldWithOne);
    let needed = rows_but(open).filter(|row| !(bare && is_needless(row)));
    needed.chain(of_repository).map(|row| as_beside(root, row)).collect()
}

/// Returns a row as it applies in a workspace, where what it is held beside may be absent.
fn as_beside(root: BorrowedFd<'_>, row: Row) -> Result<Row, Error> {
    let Some(beside) = row.beside else { return Ok(row) };
    match rustix::fs::statat(root, beside, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(_) => Ok(row),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(Row { when_absent: WhenAbsent::Leave, ..row }),
        Err(errno) => Err(source::refused(beside, errno)),
    }
}

/// Whether git takes a folder for a bare repository.
fn is_bare(root: BorrowedFd<'_>, held: Held<'_>) -> Result<bool, Error> {
    // Git follows links here, except that `HEAD` itself may be one.
    let is = |name: &str, kinds: &[FileType], links: AtFlags| {
        let name = Path::new(name);
        match rustix::fs::statat(root, name, links) {
            Ok(stat) if kinds.contains(&FileType::from_raw_mode(stat.st_mode)) => Ok(!held.is(root, name)?),
            Ok(_) | Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(false),
            Err(errno) => Err(unseen(root, name, errno)),
        }
    };
    let is_folder = |name: &str| is(name, &[FileType::Directory], AtFlags::empty());
    let has_head = is("HEAD", &[FileType::RegularFile, FileType::Symlink], AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(has_head && is_folder("refs")? && is_folder("objects")?)
}

/// The error for a part of what may be a bare repository that cannot be looked at.
fn unseen(root: BorrowedFd<'_>, name: &Path, errno: Errno) -> Error {
    let workspace = std::fs::read_link(format!("/proc/self/fd/{}", root.as_raw_fd())).unwrap_or_default();
    let why = std::io::Error::from(errno);
    Error::Refused {
        what: format!(
            "whether the workspace is a bare repository cannot be told: `{}` cannot be looked at: {why}",
            workspace.join(name).display()
        ),
        remedy: Some(
            "use --workspace-mode overlay or ro, or leave it to the command as it is: --open .git".into(),
        ),
    }
}

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
                return Err(hold::meddled(row.path));
            }
            continue;
        };
        // A file in its place names a repository elsewhere (a linked worktree, a submodule), which the agent must not change.
        let is_repository = row.is_repository()
            && !is_held
            && is_directory(found.as_fd()).map_err(|errno| source::refused(row.path, errno))?;
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

fn is_directory(found: BorrowedFd<'_>) -> rustix::io::Result<bool> {
    Ok(FileType::from_raw_mode(rustix::fs::fstat(found)?.st_mode).is_dir())
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

    #[test]
    fn what_is_listed_is_so_in_whatever_letters() {
        for (path, expected) in [
            (".git/config", true),
            (".GIT/Config", true),
            ("sub/.Git/hooks/x", true),
            (".ENVRC", true),
            ("Lockgate.TOML", true),
            (".VSCode/tasks.json", true),
            (".opencode/plugin/x.ts", true),
            (".claude/hooks/x", true),
            (".claude/worktrees/one/x", false),
            (".claude/worktrees/one/.git/hooks/x", true),
            (".git/lazygit.yml", true),
            (".sl/config", true),
            (".sl/store", false),
            (".jj/repo/store/git/hooks/x", true),
            (".jj/repo/store/type", false),
            ("sub/.vscode", false),
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
            (".HG", true),
            (".JJ/Repo", true),
            (".hg/hgrc", false),
            (".envrc", false),
            (".hg/store", false),
            ("src", false),
        ] {
            assert_eq!(leads_to_listed(Path::new(path)), expected, "{path}");
        }
        assert_eq!(longest_listed(), 5);
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
            (".Jj", &[], true),
            (".envrc", &[".envrc".into()], false),
        ] {
            assert_eq!(shows_protected(Path::new(path), open), expected, "{path}");
        }
    }

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
        let of_git = ["hooks", "config.worktree", "commondir"].map(|it| format!(".jj/repo/store/git/{it}"));
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

    #[test]
    fn what_git_tidies_up_leaves_the_held_names_in_a_repository() {
        let folder = tempfile::tempdir().unwrap();
        #[expect(clippy::disallowed_methods, reason = "git itself is to judge")]
        let git = |line: &str| {
            let mut git = std::process::Command::new("git");
            let ended = git.current_dir(folder.path()).args(line.split(' ')).output().unwrap();
            assert!(ended.status.success(), "{line}: {}", String::from_utf8_lossy(&ended.stderr));
            String::from_utf8(ended.stdout).unwrap()
        };
        git("init -q");
        let mut log = crate::undo::UndoLog::in_memory();
        let hold = hold_absent(folder.path(), &[], &mut log).unwrap();
        assert!(hold.names.contains(&".git/worktrees".into()), "{:?}", hold.names);
        for line in ["gc -q", "worktree prune", "status"] {
            git(line);
        }
        assert_eq!(git("worktree list --porcelain").matches("worktree ").count(), 1);
        let kept = |name: &PathBuf| std::fs::symlink_metadata(folder.path().join(name)).is_ok();
        assert!(hold.names.iter().all(kept) && hold.cover_watch.broken().is_empty());
        drop(hold);
        assert_eq!(log.unwind(), Vec::<String>::new());
    }

    #[test]
    fn a_bare_repository_is_one_also_by_links_and_what_is_held_in_it_is_known() {
        let folder = tempfile::tempdir().unwrap();
        let (workspace, elsewhere) = (folder.path().join("w"), folder.path().join("e"));
        for made in [&workspace, &elsewhere, &elsewhere.join("objects"), &elsewhere.join("refs")] {
            std::fs::create_dir(made).unwrap();
        }
        let bare = || is_bare(source::open(&workspace).unwrap().as_fd(), Held::Any).unwrap();
        let held = |within: &str| held_above(&workspace, &[], Path::new(within)).unwrap();
        assert!(!bare() && held("src/x").is_none());
        assert_eq!((held(".git/info/x"), held("refs")), (Some(Path::new(".git")), Some(Path::new("refs"))));
        assert!(held_above(&workspace, &[".git".into()], Path::new(".git/info")).unwrap().is_none());
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
