//! Marks the changes that this machine would execute or trust. It compares the workspace as it is with the workspace as it would be,
//! because one change may make another one dangerous. It reads names only, never the content of a file.

use std::collections::{HashMap, HashSet};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use rustix::fs::FileType;

use super::change::{Change, What};
use super::mode::is_directory;
use super::side::{file_name, stat};
use crate::protect;

/// The role of a directory to version control.
#[derive(Clone, Copy)]
struct Place {
    /// It has a `.git`, or another program's repository, so programs look here for the files that they look for at the top of a workspace.
    has_repository: bool,
    bare: Bare,
}

/// Whether git takes the directory itself for a bare repository.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Bare {
    No,
    /// It does now.
    Is,
    /// It would with the changes.
    Becomes,
}

struct Trust<'a> {
    below: BorrowedFd<'a>,
    /// The paths that are new, or of another kind than before.
    made: HashSet<PathBuf>,
    /// The repositories (`.git`, `.hg`, …) that are new, replaced or gone, where a directory that is still one is no change; and what leads to a protected path.
    /// All below them counts.
    replaced: HashSet<PathBuf>,
    /// The directories that contain such a repository.
    homes: HashSet<PathBuf>,
    places: HashMap<PathBuf, Place>,
    /// The directories that were judged.
    marked: HashMap<PathBuf, bool>,
    /// The components of the list's longest path.
    longest: usize,
}

/// Whether a path is itself a directory from which protected paths are looked for.
#[derive(Clone, Copy)]
enum Itself {
    Counts,
    IsNone,
}

/// Marks every change that is applied only if the user names it.
pub(super) fn mark(list: &mut [Change], below: BorrowedFd<'_>) {
    let made = list.iter().filter(|change| matches!(change.what, What::Made { .. }));
    let repositories = list.iter().filter(|change| protect::is_repository(file_name(&change.path)));
    let repositories: HashSet<_> = repositories.map(|change| change.path.clone()).collect();
    let mut trust = Trust {
        below,
        made: made.map(|change| change.path.clone()).collect(),
        homes: repositories.iter().filter_map(|path| path.parent()).map(Path::to_owned).collect(),
        replaced: repositories,
        places: HashMap::new(),
        marked: HashMap::new(),
        longest: protect::longest_listed(),
    };
    // What leads to a protected path counts with all below it, before any of that is judged.
    let leads: Vec<_> = list.iter().filter(|change| trust.leads(change)).map(|it| it.path.clone()).collect();
    trust.replaced.extend(leads);
    for change in list {
        change.protected = trust.outermost(change);
    }
}

impl Trust<'_> {
    /// Returns the outermost protected path at or above a change.
    fn outermost(&mut self, change: &Change) -> Option<PathBuf> {
        let path = &change.path;
        // Only a directory can contain further protected paths.
        let itself = if is_directory(change.what.mode()) { Itself::Counts } else { Itself::IsNone };
        // Git writes wherever a link leads: nobody takes one over who has named its folder alone.
        if is_link_of_a_repository(change) {
            return Some(path.clone());
        }
        let around = path.ancestors().skip(1).take_while(|above| self.marks_below(above)).last();
        around.or_else(|| self.is_marked(path, itself).then_some(path)).map(Path::to_owned)
    }

    /// Whether everything below a directory is protected. A directory is judged once.
    fn marks_below(&mut self, directory: &Path) -> bool {
        if let Some(known) = self.marked.get(directory) {
            return *known;
        }
        let inherits = directory.parent().is_some_and(|parent| self.marks_below(parent));
        let marks = inherits && !self.is_left_of_one(directory) || self.is_marked(directory, Itself::Counts);
        self.marked.insert(directory.into(), marks);
        marks
    }

    /// Whether a directory is left to the command within a protected one, around which no other directory is protected.
    fn is_left_of_one(&mut self, directory: &Path) -> bool {
        let Some(home) = directory.ancestors().nth(2).filter(|_| directory.ends_with(protect::LEFT)) else {
            return false;
        };
        !self.marks_below(home) && self.is_left(home, Path::new(protect::LEFT))
    }

    /// Whether a path, seen from `home`, is in the directory that is the command's. As in a run that writes to the workspace itself, that
    /// is so only if it was there before.
    fn is_left(&self, home: &Path, within: &Path) -> bool {
        let at = home.join(protect::LEFT);
        let is_new = |path: &Path| self.made.contains(path) || self.replaced.contains(path);
        within.starts_with(protect::LEFT) && !at.ancestors().take(2).any(is_new)
    }

    /// Whether a path is protected in itself, and not only because a directory above it is. A row can begin at each directory above
    /// the path that is no farther away than the longest row is long.
    fn is_marked(&mut self, path: &Path, itself: Itself) -> bool {
        let first = match itself {
            Itself::Counts => 0,
            Itself::IsNone => 1,
        };
        let mut near = path.ancestors().take(self.longest + 1).skip(first);
        // Nobody on this machine has set up a new repository, and a `.git` file can lead to one anywhere.
        self.replaced.contains(path) || near.any(|directory| self.counts_in(directory, path))
    }

    /// Whether a change puts something in the place of a directory with a protected path, which would be another one then.
    fn leads(&mut self, change: &Change) -> bool {
        if is_directory(change.what.mode()) || matches!(change.what, What::Gone { .. }) {
            return false;
        }
        let path = &change.path;
        path.ancestors().take(self.longest).skip(1).any(|directory| {
            let within = path.strip_prefix(directory).unwrap_or(path);
            let place = self.place(directory);
            let in_one = within.iter().next().is_some_and(protect::is_repository);
            let looked_at = directory.as_os_str().is_empty() || place.has_repository || in_one;
            let of_bare = || protect::leads_to_listed(&Path::new(".git").join(within));
            looked_at && protect::leads_to_listed(within) || place.bare != Bare::No && of_bare()
        })
    }

    /// Whether a path is protected as seen from `directory`, which is above it or the path itself.
    fn counts_in(&mut self, directory: &Path, path: &Path) -> bool {
        let Ok(within) = path.strip_prefix(directory) else { return false };
        let place = self.place(directory);
        let top = directory.as_os_str().is_empty();
        let first = within.iter().next();
        let of_git = || {
            // The names that make a directory a repository, and the protected names in a repository.
            first.is_some_and(|first| MARKS.iter().any(|mark| first == *mark))
                || protect::is_listed(&Path::new(".git").join(within))
        };
        let for_bare = match place.bare {
            Bare::No => false,
            Bare::Is => protect::is_listed(&Path::new(".git").join(within)),
            // Of the workspace's own top only the names that make it a repository: the rest is the purpose of the run.
            Bare::Becomes => !top || of_git(),
        };
        let looked_at = top || place.has_repository || first.is_some_and(protect::is_repository);
        for_bare || looked_at && protect::is_listed(within) && !self.is_left(directory, within)
    }

    fn place(&mut self, directory: &Path) -> Place {
        if let Some(known) = self.places.get(directory) {
            return *known;
        }
        let names = |has: &dyn Fn(&str) -> bool| {
            // With `commondir`, git looks for objects and refs at its target.
            has("HEAD") && (has("commondir") || has("objects") && has("refs"))
        };
        // What cannot be looked at counts as there.
        let is = |name: &str| stat(self.below, &directory.join(name)).map_or(true, |found| found.is_some());
        let may_be = |name: &str| self.made.contains(&directory.join(name)) || is(name);
        let bare = match (names(&is), names(&may_be)) {
            (true, _) => Bare::Is,
            (false, true) => Bare::Becomes,
            (false, false) => Bare::No,
        };
        let has_repository =
            protect::REPOSITORY_NAMES.iter().any(|name| is(name)) || self.homes.contains(directory);
        let place = Place { has_repository, bare };
        self.places.insert(directory.into(), place);
        place
    }
}

/// Whether a change is a link in a repository, through which git would write.
fn is_link_of_a_repository(change: &Change) -> bool {
    let is_link = FileType::from_raw_mode(change.what.mode()) == FileType::Symlink;
    is_link && change.path.iter().any(protect::is_git)
}

/// The names that git looks for in a directory to decide whether it is a repository.
const MARKS: [&str; 4] = ["HEAD", "objects", "refs", "commondir"];

#[cfg(test)]
mod tests {
    use super::super::Changes;
    use super::super::fixture::Kept;

    /// Returns the protected paths among those that a run wrote, each a file with its path as content.
    fn protected(there: &[&str], written: &[&str]) -> Vec<String> {
        let state = tempfile::tempdir().unwrap();
        let (kept, workspace) = (state.path().join("kept"), state.path().join("workspace"));
        std::fs::create_dir(&workspace).unwrap();
        Changes::prepare(&kept, &workspace).unwrap();
        for (side, paths) in [(&workspace, there), (&kept.join("written"), written)] {
            for path in paths {
                let at = side.join(path.trim_end_matches('/'));
                std::fs::create_dir_all(at.parent().unwrap()).unwrap();
                if path.ends_with('/') {
                    std::fs::create_dir_all(&at).unwrap();
                } else {
                    std::fs::write(&at, format!("{}{path}", side.display())).unwrap();
                }
            }
        }
        let changes = Changes::read(&kept, &workspace).unwrap();
        let marked = changes.list.iter().filter(|change| change.protected.is_some());
        marked.map(|change| change.path.to_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn a_file_that_leads_to_a_repository_is_to_be_named() {
        assert_eq!(protected(&[".git"], &[".git", "plain"]), [".git"]);
        assert_eq!(protected(&["sub/.git"], &["sub/.git", "sub/plain"]), ["sub/.git"]);
        assert_eq!(protected(&[], &["sub/.GIT", "plain"]), ["sub/.GIT"]);
        assert_eq!(protected(&[".git"], &[".git/x"]), [".git", ".git", ".git/x"]);
        // An existing repository accepts objects, and nothing else.
        assert_eq!(protected(&[".git/"], &[".git/objects/x", ".git/config", "plain"]), [".git/config"]);
        let remotes = [".git/branches", ".git/branches/up", ".git/remotes", ".git/remotes/origin"];
        assert_eq!(protected(&[".git/"], &[remotes[1], remotes[3], ".git/refs/x"]), remotes);
    }

    #[test]
    fn a_named_folder_takes_what_is_below_it_if_this_machine_trusts_the_folder() {
        let kept = Kept::new();
        for folder in [".husky/_", ".hg", "sub/.git"] {
            std::fs::create_dir_all(kept.written(folder)).unwrap();
        }
        let files = [".husky/pre-commit", ".husky/_/x", ".hg/hgrc", ".hg/x", "sub/.git/config", "sub/y"];
        for file in files {
            std::fs::write(kept.written(file), "x").unwrap();
        }
        std::os::unix::fs::symlink("/etc/passwd", kept.written("sub/.git/link")).unwrap();
        let taken = |named: &[&str]| {
            let named: Vec<_> = named.iter().map(std::path::PathBuf::from).collect();
            let mut taken = Vec::new();
            for change in kept.changes().list {
                if change.is_chosen(&named) && !change.is_withheld(&named) {
                    taken.push(change.path.display().to_string());
                }
            }
            taken
        };
        assert_eq!(taken(&[]), ["sub", "sub/y"]);
        assert_eq!(taken(&[".husky"]), [".husky", ".husky/_", ".husky/_/x", ".husky/pre-commit"]);
        assert_eq!(taken(&[".husky/_"]), [".husky/_", ".husky/_/x"]);
        // What is above it is not it; and git writes wherever a link leads.
        assert_eq!(taken(&[".hg", "sub"]), [".hg", ".hg/hgrc", ".hg/x", "sub", "sub/y"]);
        assert_eq!(taken(&["sub/.git"]), ["sub/.git", "sub/.git/config"]);
        assert_eq!(taken(&["sub/.git/link"]), ["sub/.git/link"]);
    }

    #[test]
    fn the_checkouts_of_an_agent_are_the_commands_where_their_folder_was_there() {
        let written = [".claude/worktrees/a/b/c/d/e/f", ".claude/settings.json", ".claude/worktrees/w/.git"];
        let there = [".claude/worktrees/"];
        assert_eq!(protected(&there, &written), [".claude/settings.json", ".claude/worktrees/w/.git"]);
        let all = protected(&[], &written[..2]);
        assert!(all.contains(&".claude/worktrees/a/b/c/d/e/f".to_owned()) && all.len() == 9, "{all:?}");
        // What this machine would execute in one of them, and such a folder in another that is protected.
        let checkout = [".claude/worktrees/w/.git/"];
        let written = [".claude/worktrees/w/.vscode/tasks.json", ".claude/worktrees/w/x"];
        let vscode = ".claude/worktrees/w/.vscode";
        assert_eq!(protected(&checkout, &written), [vscode.to_owned(), format!("{vscode}/tasks.json")]);
        let deep = [".vscode/a/b/c/d/.claude/worktrees/"];
        assert_eq!(protected(&deep, &[&format!("{}x", deep[0])]), [format!("{}x", deep[0])]);
    }

    #[test]
    fn what_other_version_control_runs_by_is_to_be_named_wherever_its_repository_is() {
        let there = ["a/sub/.hg/store/", "_darcs/prefs/", "b/.jj/repo/store/"];
        let written =
            ["a/sub/.hg/hgrc", "a/sub/.hg/store/x", "a/sub/.envrc", "_darcs/prefs/defaults", "b/.vscode"];
        let named = ["_darcs/prefs/defaults", "a/sub/.envrc", "a/sub/.hg/hgrc", "b/.vscode"];
        assert_eq!(protected(&there, &written), named);
        // A new one is withheld whole: half of one would be none.
        let new = ["sub/.hg/requires", "sub/.hg/store/x", "sub/x"];
        assert_eq!(
            protected(&["sub/"], &new),
            ["sub/.hg", "sub/.hg/requires", "sub/.hg/store", "sub/.hg/store/x"]
        );
    }

    #[test]
    fn a_directory_that_becomes_a_repository_is_to_be_named() {
        let bare = ["a/g/HEAD", "a/g/objects/", "a/g/refs/", "a/g/config", "a/plain"];
        let named = ["a/g", "a/g/HEAD", "a/g/config", "a/g/objects", "a/g/refs"];
        assert_eq!(protected(&[], &bare), named);
        assert_eq!(protected(&["a/g/objects/", "a/g/refs/"], &["a/g/HEAD", "a/x"]), ["a/g/HEAD"]);
        assert_eq!(protected(&bare[..3], &["a/g/config", "a/g/objects/x"]), ["a/g/config"]);
        assert_eq!(protected(&bare[..3], &["a/g/remotes/up"]), ["a/g/remotes", "a/g/remotes/up"]);
        assert_eq!(protected(&[], &["g/HEAD", "g/commondir", "x"]), ["g", "g/HEAD", "g/commondir"]);
        assert_eq!(protected(&["HEAD", "refs/"], &["objects/", "config", "x"]), ["config", "objects"]);
        assert!(protected(&[], &["a/g/HEAD", "a/g/objects/"]).is_empty());
    }

    #[test]
    fn below_a_repository_the_rows_hold_as_at_the_top() {
        for there in ["sub/.git/", "sub/.git"] {
            let written = ["sub/.envrc", "sub/.vscode/tasks.json", "sub/x", "other/.envrc"];
            let named = ["sub/.envrc", "sub/.vscode", "sub/.vscode/tasks.json"];
            assert_eq!(protected(&[there], &written), named, "{there}");
        }
        let made = protected(&[], &["sub/.git/x", "sub/deep/y", "sub/.envrc"]);
        assert_eq!(made, ["sub/.envrc", "sub/.git", "sub/.git/x"]);
    }

    #[test]
    fn what_leads_to_a_protected_path_is_to_be_named_with_all_below_it() {
        let kept = Kept::new();
        for folder in [".hg/store", "sub/.git", "sub/.jj", "plain"] {
            std::fs::create_dir_all(kept.workspace(folder)).unwrap();
        }
        std::fs::write(kept.workspace(".hg/store/data"), "mine").unwrap();
        for folder in ["vendor/h", "sub", "plain", "other"] {
            std::fs::create_dir_all(kept.written(folder)).unwrap();
        }
        std::fs::write(kept.written("vendor/h/hgrc"), "[hooks]").unwrap();
        for link in [".hg", "sub/.jj", "plain/.jj", "other/.hg", "plain/link"] {
            std::os::unix::fs::symlink("vendor/h", kept.written(link)).unwrap();
        }
        let changes = kept.changes();
        let marked = changes.list.iter().filter(|change| change.protected.is_some());
        let marked: Vec<_> = marked.map(|change| change.path.to_str().unwrap()).collect();
        let of_hg = [".hg", ".hg", ".hg/store", ".hg/store/data", "other/.hg"];
        assert_eq!(marked, [&of_hg[..], &["plain/.jj", "sub/.jj", "sub/.jj"]].concat());
        let applied = changes.apply(&[], &|| false).unwrap();
        assert!(applied.done.contains(&"plain/link".into()), "{applied:?}");
        assert_eq!(std::fs::read_to_string(kept.workspace(".hg/store/data")).unwrap(), "mine");
        changes.apply(&[".hg/store/data".into(), ".hg/store".into(), ".hg".into()], &|| false).unwrap();
        assert!(kept.workspace(".hg").is_symlink());
    }
}
