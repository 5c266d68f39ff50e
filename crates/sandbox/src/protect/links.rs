//! Refuses a workspace in which a protected path has an unprotected alias: a symbolic link that leads to a writable place, or a hard link
//! by which the file can be written; and one with a named pipe there, which can be written into wherever it is read-only.

use std::ffi::OsStr;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Uid};
use rustix::io::Errno;

use super::applying::{open_left, rows_there};
use super::held::Held;
use super::placeholder::holder_unseen;
use super::row::{LEFT, Row, WhenAbsent};
use super::tree::{Shut, Walk};
use crate::error::Error;
use crate::source;

/// The most files and folders below protected paths that are looked at.
const MOST: usize = 100_000;

/// The repositories of submodules. Their objects are skipped: nobody executes them, and clones share them by hard links.
const REPOSITORIES: &str = "modules";
const OBJECTS: &str = "objects";

/// Returns the protected paths that exist in a workspace, and refuses one in which such a path has an alias.
pub(super) fn refuse_links(root: BorrowedFd<'_>, open: &[PathBuf]) -> Result<Vec<&'static Path>, Error> {
    let mut present = Vec::new();
    for row in rows_there(root, open, Held::Any)? {
        let Row { path, when_absent, .. } = row;
        let refused = |why: String| match holder_unseen(root, path) {
            Some(user) => of_another_user(path, user),
            None => Error::Refused {
                what: format!("`{}` cannot be protected: {why}", path.display()),
                remedy: Some(format!(
                    "put a file or folder of its own in its place, or let the command have it as it is: --open {}",
                    path.display()
                )),
            },
        };
        let found = match source::open_beneath(root, path) {
            Ok(Some(found)) => found,
            Ok(None) => continue,
            // Nothing is wrong with what is there.
            Err(error @ Error::Open { .. }) => return Err(error),
            Err(error) => return Err(refused(why_unopened(root, path, error))),
        };
        // Another run's placeholder is that run's to remove: holding any one of these rows is enough.
        if when_absent == WhenAbsent::HoldOne {
            continue;
        }
        present.push(path);
        // A repository as a whole is not covered: its protected paths have rows of their own.
        let unread = |errno| source::refused(path, errno);
        let whole = row.is_repository() && source::is_directory(found.as_fd()).map_err(unread)?;
        if whole || Held::Any.is(root, path)? {
            continue;
        }
        match second_name(root, found.as_fd(), path) {
            Ok(None) => {}
            Ok(Some(Other { path, how })) => {
                let path = path.display().to_string();
                return Err(refused(format!("`{}` {how}", path.escape_debug())));
            }
            Err(error) => {
                let of_this_machine =
                    Errno::from_io_error(&error).filter(|it| source::is_of_this_machine(*it));
                return Err(match of_this_machine {
                    Some(errno) => source::refused(path, errno),
                    None => refused(format!("it cannot be looked through: {error}")),
                });
            }
        }
    }
    Ok(present)
}

/// The error for what another user owns and this one may not look into: a placeholder of that user's run, as far as can be seen.
fn of_another_user(path: &Path, user: Uid) -> Error {
    let (path, user) = (path.display(), user.as_raw());
    Error::Refused {
        what: format!(
            "`{path}` cannot be protected: it is user {user}'s, and you may not look into it; it may be the placeholder by which a run of theirs keeps the name from its command"
        ),
        remedy: Some(format!(
            "if user {user} has a run here, start yours once that has ended; if theirs was killed, their next run here takes the placeholder away; if it is none, let the command have it as it is: --open {path}"
        )),
    }
}

/// Returns why a protected path of a workspace cannot be opened.
fn why_unopened(root: BorrowedFd<'_>, path: &Path, error: Error) -> String {
    let is_link = |part: &Path| {
        let stat = rustix::fs::statat(root, part, AtFlags::SYMLINK_NOFOLLOW);
        stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_symlink())
    };
    match error {
        _ if path.ancestors().any(is_link) => "it is, or leads through, a symbolic link".into(),
        Error::Source { why, .. } => why,
        other => other.to_string(),
    }
}

/// A protected file with an alias, or that no read-only mount protects.
struct Other {
    /// Its path in the workspace.
    path: PathBuf,
    /// The rest of the sentence after the path.
    how: &'static str,
}

const NAMES: &str = "is a file with more names than one (hard links), and could be written by another";
const PIPE: &str = "is a named pipe, into which the command could write all the same";
const LEADS: &str = "is a symbolic link to what the command could write, or make";

/// Finds a file at or below a path that has a hard link or is a named pipe, or a symbolic link there that leads to an unprotected place.
fn second_name(root: BorrowedFd<'_>, found: BorrowedFd<'_>, path: &Path) -> io::Result<Option<Other>> {
    let stat = rustix::fs::fstat(found)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => {}
        FileType::Fifo => return Ok(Some(Other { path: path.to_path_buf(), how: PIPE })),
        _ => return Ok((stat.st_nlink > 1).then(|| Other { path: path.to_path_buf(), how: NAMES })),
    }
    let is_left = open_left(root).is_some();
    // The root's path with its links resolved.
    let root = std::fs::read_link(format!("/proc/self/fd/{}", root.as_raw_fd()))?;
    let skips = path.ends_with(REPOSITORIES);
    let leaves =
        |within: &Path| skips && within.ends_with(OBJECTS) || is_left && path.join(within) == Path::new(LEFT);
    let mut other = None;
    Walk { most: MOST, leaves: &leaves, shut: Shut::Refuse }.visit(found, &mut |entry| {
        let how = match entry.kind {
            FileType::Directory => return Ok(ControlFlow::Continue(())),
            FileType::Fifo => Some(PIPE),
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

/// Whether a link in a folder of the workspace leads into the workspace, and not to what is protected with it. A target that does not exist
/// is judged by where it would be made.
fn leads_to_writable(root: &Path, covered: &Path, place: &Path, target: &Path) -> bool {
    let mut named = root.join(place);
    let mut is_plain = true;
    for part in target.components() {
        match part {
            Component::RootDir | Component::Prefix(_) => named = PathBuf::from("/"),
            Component::CurDir => {}
            Component::ParentDir => {
                // If the path so far contains a link, its `..` may be elsewhere.
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
        true if named.starts_with(&within) => real != named || named.starts_with(root.join(LEFT)),
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
            Ok(_) => None,
        }
    }

    #[test]
    fn too_few_open_files_are_no_reason_to_protect_less() {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join(".vscode/a/b/c/d/e/f")).unwrap();
        let root = source::open(folder.path()).unwrap();
        let limit = getrlimit(Resource::Nofile);
        // Descriptors are numbered from the lowest that is free.
        for more in 1..6 {
            let least = u64::try_from(root.as_raw_fd()).unwrap() + more;
            setrlimit(Resource::Nofile, Rlimit { current: Some(least), ..limit }).unwrap();
            let error = refuse_links(root.as_fd(), &[]).map(drop);
            setrlimit(Resource::Nofile, limit).unwrap();
            assert!(matches!(error, Err(Error::Open { .. })), "{more}: {error:?}");
        }
        refuse_links(root.as_fd(), &[]).unwrap();
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
        // An unprotected file may have hard links, and the objects that clones share are not executed.
        assert_eq!(link("plain", "other"), None);
        assert_eq!(link(".git/modules/sub/objects/aa/bb", "other"), None);
        assert!(link("plain", ".envrc").is_some());
    }

    #[test]
    fn a_named_pipe_at_or_below_what_is_protected_is_refused() {
        let pipe = |path: &'static str| {
            refused(move |folder| {
                let path = folder.join(path);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                let mode = rustix::fs::Mode::RWXU;
                rustix::fs::mknodat(rustix::fs::CWD, path, FileType::Fifo, mode, 0).unwrap();
            })
        };
        for path in [".profile", ".mcp.json", ".envrc", ".vscode/deep/x", ".git/hooks/deep/x"] {
            let why = pipe(path).unwrap_or_default();
            assert!(why.contains(&format!("`{path}` is a named pipe")), "{path}: {why}");
        }
        // Elsewhere, and in what is left to the command.
        for path in ["x", "src/x", ".claude/worktrees/one/x"] {
            assert_eq!(pipe(path), None, "{path}");
        }
    }

    #[test]
    fn what_lies_in_checkouts_is_no_reason_to_refuse_and_a_link_to_them_is() {
        let make = |link: Option<&'static str>| {
            refused(move |folder| {
                let one = folder.join(LEFT).join("one");
                std::fs::create_dir_all(&one).unwrap();
                std::fs::write(folder.join(".claude/settings.json"), "").unwrap();
                std::fs::hard_link(folder.join("plain"), one.join("linked")).unwrap();
                std::os::unix::fs::symlink("../../../plain", one.join("link")).unwrap();
                if let Some(target) = link {
                    std::os::unix::fs::symlink(target, folder.join(".claude/skills")).unwrap();
                }
            })
        };
        assert_eq!(make(None), None);
        assert_eq!(make(Some("settings.json")), None);
        for target in ["worktrees", "worktrees/one/linked", "worktrees/absent"] {
            assert!(make(Some(target)).is_some_and(|why| why.contains("`.claude/skills`")), "{target}");
        }
        // What is protected has no second name there.
        let why = refused(|folder| {
            std::fs::create_dir_all(folder.join(LEFT)).unwrap();
            std::fs::write(folder.join(".claude/settings.json"), "").unwrap();
            std::fs::hard_link(folder.join(".claude/settings.json"), folder.join(LEFT).join("x")).unwrap();
        });
        assert!(why.is_some_and(|why| why.contains(".claude/settings.json")));
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
        // Beside it, where nothing can be made either; and outside.
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
