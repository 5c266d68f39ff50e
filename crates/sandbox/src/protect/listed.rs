//! What the list of protected paths says of a path, by its name alone: nothing is looked at.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use super::row::{LEFT, Row, WhenAbsent, rows};
use crate::error::Error;

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
#[must_use]
pub fn leads_to_listed(path: &Path) -> bool {
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

/// The folders in which version control looks for its own settings. What is not git's is protected in them by the same list.
pub(crate) const REPOSITORY_NAMES: [&str; 5] = [".git", ".hg", ".sl", ".jj", "_darcs"];

/// Whether a name is that of a repository, whichever program's. Some file systems ignore case.
pub(crate) fn is_repository(name: &OsStr) -> bool {
    REPOSITORY_NAMES.iter().any(|repository| name.eq_ignore_ascii_case(repository))
}

/// Whether a name is that of a repository of git's. Some file systems ignore case.
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
pub(super) fn rows_but(open: &[PathBuf]) -> impl Iterator<Item = Row> {
    let is_open = |row: &Row| open.iter().any(|path| path == row.path);
    let none_of_them = rows().any(|row| row.when_absent == WhenAbsent::HoldOne && is_open(&row));
    rows().filter(move |row| !(is_open(row) || none_of_them && row.when_absent == WhenAbsent::HoldOne))
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
            (".git/remotes/origin", true),
            ("sub/.git/branches/up", true),
            (".sl/config", true),
            (".sl/store", false),
            (".jj/repo/store/git/hooks/x", true),
            (".jj/repo/store/git/remotes/x", true),
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
}
