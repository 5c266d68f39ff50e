//! The names of the list that did not exist when a run began, and that nothing held: the command may make them. Which of them were made is
//! told at the end. Removes nothing: that the command made one may be what it was run for.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::applying::rows_in;
use super::held::Held;
use super::placeholder::is_placeholder;
use super::row::{Row, rows};
use super::told::shown;
use super::top_names::TopNames;
use crate::error::Error;
use crate::source;

/// The names of one workspace that nothing holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unheld {
    /// The workspace.
    pub(crate) workspace: PathBuf,
    /// The names in it.
    pub(crate) names: Vec<&'static Path>,
}

impl Unheld {
    /// Returns the names that do not exist, are not left to the command, and are not among those that are to be held.
    pub(super) fn of(
        workspace: &Path,
        root: BorrowedFd<'_>,
        open: &[PathBuf],
        to_hold: &[Row],
    ) -> Result<Self, Error> {
        let is_open = |path: &Path| open.iter().any(|open| path.starts_with(open));
        let is_held = |path: &Path| to_hold.iter().any(|row| path.starts_with(row.path));
        let top = TopNames::of(root);
        let is_absent = |path: &Path| !top.may_have(path) || look(root, path) == Look::Absent;
        let mut names = Vec::new();
        for row in rows_in(root, open, Held::Any)? {
            if row.when_absent.counts_alone()
                && !is_open(row.path)
                && !is_held(row.path)
                && is_absent(row.path)
            {
                names.push(row.path);
            }
        }
        Ok(Self { workspace: workspace.into(), names })
    }

    /// Returns the names as one word of a log. Those of the list have neither blanks nor commas.
    pub(crate) fn word(&self) -> String {
        self.names.iter().map(|name| name.display().to_string()).collect::<Vec<_>>().join(",")
    }

    /// Reads that word. What is not on the list is left out.
    pub(crate) fn read(word: &str, workspace: PathBuf) -> Self {
        let listed = |name: &str| {
            let mut all =
                rows().flat_map(|row| [Some(row.path), row.path.strip_prefix(".git").ok()]).flatten();
            all.find(|path| !name.is_empty() && *path == Path::new(name))
        };
        Self { workspace, names: word.split(',').filter_map(listed).collect() }
    }

    /// Returns sentences about those that exist now.
    pub(crate) fn made(&self) -> Vec<String> {
        let Ok(root) = source::open(&self.workspace) else { return Vec::new() };
        let top = TopNames::of(root.as_fd());
        let looked_at = self.names.iter().copied().filter(|name| top.may_have(name));
        let looks: Vec<_> = looked_at.map(|name| (name, look(root.as_fd(), name))).collect();
        let which = |wanted: Look| {
            let mut found: Vec<&Path> = Vec::new();
            for (name, look) in &looks {
                let told = match look {
                    Look::Link if wanted == Look::There => first_link(root.as_fd(), name),
                    look if *look == wanted => *name,
                    _ => continue,
                };
                if !found.contains(&told) {
                    found.push(told);
                }
            }
            // One name tells of all below it.
            let is_told = |name: &Path| found.iter().any(|other| *other != name && name.starts_with(other));
            let names = found.iter().filter(|name| !is_told(name));
            let names: Vec<_> = names.map(|name| format!("`{}`", name.display())).collect();
            (!names.is_empty()).then(|| names.join(", "))
        };
        let workspace = shown(self.workspace.as_os_str());
        let made = which(Look::There).map(|names| {
            format!("made in `{workspace}` meanwhile: {names}. This machine would execute or trust that: look at it before you use it")
        });
        let unseen = which(Look::Unseen).map(|names| {
            format!(
                "whether any of these was made in `{workspace}` meanwhile cannot be seen: {names}. This machine would execute or trust \
                 them: open the folder (`chmod u+rwx`) and look"
            )
        });
        made.into_iter().chain(unseen).collect()
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Look {
    Absent,
    There,
    /// A link on the way leads out of the workspace, or nowhere.
    Link,
    Unseen,
}

/// Looks at a name. A link on the way to it is followed within the workspace only: elsewhere a look may have an effect.
fn look(root: BorrowedFd<'_>, path: &Path) -> Look {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let found = |links: ResolveFlags| {
        rustix::fs::openat2(root, path, flags, Mode::empty(), ResolveFlags::BENEATH | links)
    };
    let (is_linked, found) = match found(ResolveFlags::NO_SYMLINKS) {
        Err(Errno::LOOP) => (true, found(ResolveFlags::NO_MAGICLINKS)),
        found => (false, found),
    };
    match found {
        Err(Errno::NOENT | Errno::NOTDIR) => Look::Absent,
        // Another run's placeholder.
        Ok(_) if is_placeholder(root, path).is_ok_and(|is_one| is_one) => Look::Absent,
        Ok(_) => Look::There,
        Err(Errno::LOOP | Errno::XDEV) if is_linked => Look::Link,
        Err(_) => Look::Unseen,
    }
}

/// Returns the first link on the way to a path.
fn first_link<'a>(root: BorrowedFd<'_>, path: &'a Path) -> &'a Path {
    let mut above: Vec<&Path> = path.ancestors().filter(|above| !above.as_os_str().is_empty()).collect();
    above.reverse();
    let is_link = |above: &&Path| rustix::fs::readlinkat(root, *above, Vec::new()).is_ok();
    above.into_iter().find(is_link).unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::super::hold_absent;
    use crate::undo::UndoLog;

    #[test]
    fn what_was_made_and_nothing_held_is_told_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir(at(".claude")).unwrap();
        let run = |open: &str, make: &dyn Fn()| {
            let mut log = UndoLog::in_memory();
            let held = hold_absent(folder.path(), &[open.into()], &mut log).unwrap();
            make();
            drop(held);
            assert_eq!(log.unwind(), Vec::<String>::new());
            log.told()
        };
        assert_eq!(run(".exrc", &|| ()), Vec::<String>::new());
        let told = run(".vimrc", &|| {
            for name in [".husky", ".hg", ".mcp", "sub", ".claude/x", "sub/.cursor"] {
                std::fs::create_dir(at(name)).unwrap();
            }
            for name in [".bashrc", ".vimrc", ".hg/hgrc"] {
                std::fs::write(at(name), "").unwrap();
            }
            symlink("/nowhere", at(".gitconfig")).unwrap();
            symlink("/nowhere", at(".jj")).unwrap();
        });
        let [told] = &told[..] else { panic!("{told:?}") };
        let names = told.split_once(": ").unwrap().1.split_once(". ").unwrap().0;
        assert_eq!(names, "`.hg/hgrc`, `.jj`, `.husky`, `.bashrc`, `.gitconfig`", "{told}");
        // They were there already: what is a link is refused from now on, and the rest is covered.
        for link in [".gitconfig", ".jj"] {
            std::fs::remove_file(at(link)).unwrap();
        }
        assert_eq!(run(".exrc", &|| ()), Vec::<String>::new());
        // What is left to the command is no news.
        let left = run(".git", &|| {
            std::fs::create_dir_all(at(".git/hooks")).unwrap();
            std::fs::write(at(".git/config"), "").unwrap();
        });
        assert_eq!(left, Vec::<String>::new());
    }

    #[test]
    fn what_was_made_behind_a_link_within_the_workspace_is_told_and_what_was_not_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir(at("configs")).unwrap();
        symlink("configs", at(".config")).unwrap();
        let mut log = UndoLog::in_memory();
        let held = hold_absent(folder.path(), &[], &mut log).unwrap();
        std::fs::write(at("configs/mise.toml"), "").unwrap();
        symlink("configs", at(".github")).unwrap();
        symlink("/nowhere", at("mise")).unwrap();
        drop(held);
        assert_eq!(log.unwind(), Vec::<String>::new());
        let told = log.told();
        let names = told[0].split_once(": ").unwrap().1.split_once(". ").unwrap().0;
        assert_eq!((told.len(), names), (1, "`mise`, `.config/mise.toml`"), "{told:?}");
    }

    #[test]
    fn a_killed_run_is_told_of_too() {
        let folder = tempfile::Builder::new().prefix("a\nb \u{1b}").tempdir().unwrap();
        let mut log = UndoLog::in_memory();
        let held = hold_absent(folder.path(), &[], &mut log).unwrap();
        let text: String = log.entries.iter().map(crate::undo::Undo::line).collect();
        std::fs::create_dir(folder.path().join(".husky")).unwrap();
        drop(held);
        drop(log);
        let mut log = UndoLog::recover(&text);
        assert_eq!(log.unwind(), Vec::<String>::new());
        let told = log.told();
        assert!(told.len() == 1 && told[0].contains("`.husky`") && told[0].contains("a\\nb"), "{told:?}");
        assert!(!told[0].contains(char::is_control), "{told:?}");
    }

    #[test]
    fn what_a_shut_folder_hides_is_told_as_such() {
        if rustix::process::geteuid().is_root() {
            return; // Root sees into every folder.
        }
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join(".hg")).unwrap();
        std::fs::create_dir(folder.path().join("x")).unwrap();
        let mut log = UndoLog::in_memory();
        let held = hold_absent(folder.path(), &[], &mut log).unwrap();
        let shut = |mode| {
            std::fs::set_permissions(folder.path().join(".hg"), PermissionsExt::from_mode(mode)).unwrap();
        };
        shut(0);
        drop(held);
        let told = {
            log.unwind();
            log.told()
        };
        shut(0o700);
        assert!(told.iter().any(|told| told.contains("cannot be seen: `.hg/sharedpath`")), "{told:?}");
    }

    #[test]
    fn what_could_not_be_made_at_first_is_told_if_it_was_made() {
        use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};

        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir(at(".git")).unwrap();
        let folders =
            [folder.path().to_path_buf(), at(".git")].map(|path| std::fs::File::open(path).unwrap());
        let flags = ioctl_getflags(&folders[0]).unwrap_or(IFlags::empty());
        // Only root may, and not on every file system.
        if folders.iter().any(|folder| ioctl_setflags(folder, flags | IFlags::IMMUTABLE).is_err()) {
            folders.iter().for_each(|folder| _ = ioctl_setflags(folder, flags));
            return;
        }
        let mut log = UndoLog::in_memory();
        let held = hold_absent(folder.path(), &[], &mut log);
        folders.iter().for_each(|folder| ioctl_setflags(folder, flags).unwrap());
        let held = held.unwrap();
        assert!(held.names.is_empty(), "{:?}", held.names);
        for name in [".envrc", ".git/commondir", "refs"] {
            std::fs::write(at(name), "").unwrap();
        }
        drop(held);
        assert_eq!(log.unwind(), Vec::<String>::new());
        let told = log.told().concat();
        for (name, is_told) in
            [("`.envrc`", true), ("`.git/commondir`", true), ("refs", false), (".vscode", false)]
        {
            assert_eq!(told.contains(name), is_told, "{name}: {told}");
        }
    }
}
