//! The names of the list that did not exist when a run began, and that nothing held: the command may make them. Which of them were made is
//! told at the end. Removes nothing: that the command made one may be what it was run for.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{OFlags, ResolveFlags};
use rustix::io::Errno;

use super::applying::rows_in;
use super::held::Held;
use super::placeholder::is_placeholder;
use super::row::{Row, rows};
use super::told::shown;
use super::top_names::TopNames;
use crate::error::Error;
use crate::file_id::FileId;
use crate::open_file::lookup_with;
use crate::source;

/// The names of one workspace that nothing holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unheld {
    /// The workspace.
    pub(crate) workspace: PathBuf,
    /// Its identity: another folder may be at its path by the end.
    pub(crate) being: FileId,
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
        let being = FileId::lasting(root).map_err(|source| Error::Open { path: workspace.into(), source })?;
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
        Ok(Self { workspace: workspace.into(), being, names })
    }

    /// Returns the names as one word of a log. Those of the list have neither blanks nor commas.
    pub(crate) fn word(&self) -> String {
        self.names.iter().map(|name| name.display().to_string()).collect::<Vec<_>>().join(",")
    }

    /// Reads that word. What is not on the list is left out.
    pub(crate) fn read(word: &str, being: FileId, workspace: PathBuf) -> Self {
        let listed = |name: &str| {
            let mut all =
                rows().flat_map(|row| [Some(row.path), row.path.strip_prefix(".git").ok()]).flatten();
            all.find(|path| !name.is_empty() && *path == Path::new(name))
        };
        Self { workspace, being, names: word.split(',').filter_map(listed).collect() }
    }

    /// Returns sentences about those that exist now. `held` is the workspace, if it was kept open since the names were chosen.
    pub(crate) fn made(&self, held: Option<BorrowedFd<'_>>) -> Vec<String> {
        let found;
        match held {
            Some(root) => self.made_in(root),
            None => match self.find() {
                Ok(root) => {
                    found = root;
                    self.made_in(found.as_fd())
                }
                Err(why) => self.unseen(&why),
            },
        }
    }

    /// Opens the workspace by its path.
    fn find(&self) -> Result<OwnedFd, String> {
        let found = source::open_if_there(&self.workspace).map_err(|error| format!("failed to {error}"))?;
        let is_still = |found: &OwnedFd| self.being.is_still(found.as_fd());
        match found.map(|found| is_still(&found).map(|is_it| is_it.then_some(found))).transpose() {
            Ok(found) => found.flatten().ok_or_else(|| "it is not there any more, or another".into()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Says that a workspace cannot be looked at.
    fn unseen(&self, why: &str) -> Vec<String> {
        if self.names.is_empty() {
            return Vec::new();
        }
        let few: Vec<_> = self.names.iter().take(FEW).map(|name| format!("`{}`", name.display())).collect();
        let more = if self.names.len() > FEW { " and the like" } else { "" };
        vec![format!(
            "whether names that this machine would execute or trust were made in `{}` meanwhile cannot be seen: {why}. Wherever that \
             folder is now, look for {}{more} in it before you use it",
            shown(self.workspace.as_os_str()),
            few.join(", "),
        )]
    }

    /// Returns what the workspace is called, and its present place if it was moved.
    fn place(&self, root: BorrowedFd<'_>) -> String {
        let named = shown(self.workspace.as_os_str());
        match std::fs::read_link(format!("/proc/self/fd/{}", root.as_raw_fd())) {
            // A path with `..` is written otherwise.
            Ok(now) if now != self.workspace && self.find().is_err() => {
                format!("`{}` (moved there from `{named}`)", shown(now.as_os_str()))
            }
            _ => format!("`{named}`"),
        }
    }

    fn made_in(&self, root: BorrowedFd<'_>) -> Vec<String> {
        let top = TopNames::of(root);
        let looked_at = self.names.iter().copied().filter(|name| top.may_have(name));
        let looks: Vec<_> = looked_at.map(|name| (name, look(root, name))).collect();
        let which = |wanted: Look| {
            let mut found: Vec<&Path> = Vec::new();
            for (name, look) in &looks {
                let told = match look {
                    Look::Link if wanted == Look::There => first_link(root, name),
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
        let workspace = self.place(root);
        let made = which(Look::There).map(|names| {
            format!("made in {workspace} meanwhile: {names}. This machine would execute or trust that: look at it before you use it")
        });
        let unseen = which(Look::Unseen).map(|names| {
            format!(
                "whether any of these was made in {workspace} meanwhile cannot be seen: {names}. This machine would execute or trust \
                 them: open the folder (`chmod u+rwx`) and look"
            )
        });
        made.into_iter().chain(unseen).collect()
    }
}

/// How many names stand for all of them where none can be looked at.
const FEW: usize = 3;

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
    let found = |links: ResolveFlags| lookup_with(root, path, flags, ResolveFlags::BENEATH | links);
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

    use rustix::thread::{CapabilitySet, CapabilitySets};

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
    fn a_workspace_that_was_moved_is_looked_at_and_not_what_is_in_its_place() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().canonicalize().unwrap();
        let [workspace, moved] = ["workspace", "moved"].map(|name| folder.join(name));
        std::fs::create_dir(&workspace).unwrap();
        let mut log = UndoLog::in_memory();
        let held = hold_absent(&workspace, &[], &mut log).unwrap();
        let text: String = log.entries.iter().map(crate::undo::Undo::line).collect();
        std::fs::create_dir(workspace.join(".husky")).unwrap();
        std::fs::rename(&workspace, &moved).unwrap();
        std::fs::create_dir(&workspace).unwrap();
        std::fs::write(workspace.join(".exrc"), "").unwrap();
        // One that was killed has only the path.
        let told_by = |mut log: UndoLog| {
            log.entries.retain(|undo| matches!(undo, crate::undo::Undo::Unheld(_)));
            assert_eq!(log.unwind(), Vec::<String>::new());
            log.told().concat()
        };
        let told = told_by(UndoLog::recover(&text));
        assert!(told.contains("cannot be seen: it is not there any more, or another"), "{told}");
        assert!(told.contains(" and the like in it") && !told.contains("exrc"), "{told}");
        drop(held);
        let told = told_by(log);
        let place = format!("made in `{}` (moved there from `{}`)", moved.display(), workspace.display());
        assert!(told.contains(&place) && told.contains(": `.husky`. "), "{told}");
        // And where it is at its path still, that is enough.
        std::fs::remove_dir_all(&workspace).unwrap();
        std::fs::rename(&moved, &workspace).unwrap();
        let told = told_by(UndoLog::recover(&text));
        assert!(told.contains(&format!("made in `{}` meanwhile: `.husky`.", workspace.display())), "{told}");
        std::fs::remove_dir_all(workspace.join(".husky")).unwrap();
        let mut log = UndoLog::in_memory();
        let held = hold_absent(&workspace.join("../workspace"), &[], &mut log).unwrap();
        std::fs::create_dir(workspace.join(".husky")).unwrap();
        drop(held);
        let told = told_by(log);
        assert!(
            told.contains("/../workspace` meanwhile: `.husky`.") && !told.contains("moved there"),
            "{told}"
        );
    }

    #[test]
    fn what_a_shut_folder_hides_is_told_as_such() {
        // Root sees into every folder, by capabilities that this thread can do without.
        let own = rustix::thread::capabilities(None).unwrap();
        let none = CapabilitySets { effective: CapabilitySet::empty(), ..own };
        rustix::thread::set_capabilities(None, none).unwrap();
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
        if folders.iter().any(|folder| ioctl_setflags(folder, flags | IFlags::IMMUTABLE).is_err()) {
            folders.iter().for_each(|folder| _ = ioctl_setflags(folder, flags));
            return lockgate_needs::missing(
                "only root makes a folder immutable, and not on every file system",
            );
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
