//! Holds the protected names that do not exist in a workspace. Runs on the host, before the sandbox is made. Placeholders are made by
//! `held_name`, and never here.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, Gid, Uid};
use rustix::io::Errno;

use super::held_name::{self, HeldName};
use super::links::refuse_links;
use super::placeholder::{self, HeldPath, Kind, is_placeholder};
use super::{Row, WhenAbsent, refuse_repository_inside, repositories_without_links, rows_in};
use crate::cover_watch::CoverWatch;
use crate::error::Error;
use crate::source;
use crate::undo::{Undo, UndoLog};

/// A workspace in which every name that must not appear is held.
#[derive(Debug)]
pub(crate) struct Hold {
    /// Watches the covers of protected paths.
    pub(crate) cover_watch: CoverWatch,
    /// The opened folder. The workspace that is shown must be the same one.
    pub(crate) workspace: Arc<OwnedFd>,
}

/// Holds every absent name that must not appear. The undo log keeps the placeholders.
pub(crate) fn hold_absent(workspace: &Path, open: &[PathBuf], undo: &mut UndoLog) -> Result<Hold, Error> {
    let root = Arc::new(source::open(workspace)?);
    let mut covered = refuse_links(root.as_fd(), open)?;
    refuse_repository_inside(workspace, open)?;
    let repositories = repositories_without_links(workspace, &root, open)?;
    let free = absent(root.as_fd(), open);
    let links = repositories.iter().map(|it| Undo::PlantedLinks(it.repository.clone()));
    // Recorded before any of them is made. Links are last, so that they are removed first: that also opens a repository which the
    // command has closed by its mode.
    undo.push_all(free.iter().map(|row| Undo::Placeholder(workspace.join(row.path))).chain(links));
    undo.repositories.extend(repositories);
    let owner = placeholder::owner_to_be(&root);
    undo.placeholders.of(&root);
    for row in free {
        let path = workspace.join(row.path);
        let locked = hold(&root, &row, owner, undo).map_err(|errno| unheld(&path, errno))?;
        undo.held.extend(locked.map(|(parent, opened)| HeldName { path, parent, opened }));
        covered.push(row.path);
    }
    let cover_watch = CoverWatch::begin(root.as_fd(), covered).map_err(|error| {
        let remedy = match error.raw_os_error() == Some(Errno::MFILE.raw_os_error()) {
            true => "raise the limit of open files: `ulimit -n`",
            false => "switch fs.dir-notify-enable on, or use --workspace-mode overlay",
        };
        let what = format!("what is protected in {} cannot be watched: {error}", workspace.display());
        Error::Refused { what, remedy: Some(remedy.into()) }
    })?;
    Ok(Hold { cover_watch, workspace: root })
}

fn hold(
    root: &Arc<OwnedFd>,
    row: &Row,
    owner: Option<(Uid, Gid)>,
    undo: &mut UndoLog,
) -> rustix::io::Result<Option<(Arc<OwnedFd>, OwnedFd)>> {
    let Some(name) = row.path.file_name() else { return Ok(None) };
    let Some(parent) = placeholder::parent_of(root, row.path)? else { return Ok(None) };
    let place = HeldPath { parent: &parent, name, kind: kind(row.when_absent), owner };
    let opened = held_name::hold(&place, &mut undo.placeholders)?;
    Ok(opened.map(|opened| (parent, opened)))
}

fn unheld(path: &Path, errno: Errno) -> Error {
    match errno {
        Errno::ACCESS => Error::Refused {
            what: format!(
                "`{}` cannot be kept from the command: its folder is read-only by its mode alone, which its owner can change",
                path.display()
            ),
            remedy: Some("make the folder writable for you (chmod u+w), or use --workspace-mode ro".into()),
        },
        errno => {
            let why = match errno {
                Errno::BUSY => "somebody keeps it locked".into(),
                errno => std::io::Error::from(errno).to_string(),
            };
            Error::Source { path: path.into(), why: format!("its name could not be held: {why}") }
        }
    }
}

/// Returns the rows whose names are to be held.
fn absent(root: BorrowedFd<'_>, open: &[PathBuf]) -> Vec<Row> {
    let mut free: Vec<Row> = Vec::new();
    for row in rows_in(root, open).into_iter().filter(|row| row.when_absent != WhenAbsent::Leave) {
        // Names below a placeholder need none, because it cannot be written into.
        let below = |above: &Row| row.path.parent() == Some(above.path);
        let is_one_held = free.iter().any(|other| other.when_absent == WhenAbsent::HoldOne);
        let is_needed = match row.when_absent {
            WhenAbsent::HoldOne => !is_one_held,
            WhenAbsent::HoldWithOne => is_one_held,
            _ => true,
        };
        if is_needed && !free.iter().any(below) && is_free(root, row.path) {
            free.push(row);
        }
    }
    free
}

/// Whether a name does not exist, or only as another run's placeholder.
pub(super) fn is_free(root: BorrowedFd<'_>, path: &Path) -> bool {
    match rustix::fs::statat(root, path, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => placeholder::may_be(&stat) && is_placeholder(root, path),
        Err(_) => true,
    }
}

fn kind(when_absent: WhenAbsent) -> Kind {
    match when_absent {
        WhenAbsent::HoldByFile => Kind::Dot,
        WhenAbsent::HoldByEmptyFile => Kind::Void,
        WhenAbsent::HoldByDirectory | WhenAbsent::HoldOne | WhenAbsent::HoldWithOne | WhenAbsent::Leave => {
            Kind::Directory
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_names_are_held_and_released() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join(".vscode")).unwrap();
        let mut undo = UndoLog::in_memory();
        let held = hold_absent(folder.path(), &[], &mut undo).unwrap();
        assert!(folder.path().join(".git").is_dir() && folder.path().join("lockgate.toml").is_dir());
        assert!(!folder.path().join(".git/hooks").exists());
        let repository = tempfile::tempdir().unwrap();
        std::fs::create_dir(repository.path().join(".git")).unwrap();
        let mut third = UndoLog::in_memory();
        let kept = hold_absent(repository.path(), &[], &mut third).unwrap();
        let of_worktree = repository.path().join(".git/config.worktree");
        assert_eq!(std::fs::read(&of_worktree).unwrap(), b"");
        drop(kept);
        assert_eq!((third.unwind(), of_worktree.exists()), (Vec::new(), false));
        let mut second = UndoLog::in_memory();
        let other = hold_absent(folder.path(), &[], &mut second).unwrap();
        drop(held);
        undo.unwind();
        assert!(folder.path().join(".git").is_dir(), "the second run still holds it");
        drop(other);
        second.unwind();
        let left: Vec<_> =
            std::fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, [".vscode"]);
    }

    #[test]
    fn what_held_a_name_is_used_again_in_the_same_workspace() {
        use std::os::unix::fs::{MetadataExt, PermissionsExt};

        let (folder, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let cache = state.path().join("stock");
        let log = || UndoLog::in_memory().with_placeholder_cache(cache.clone());
        let (mut undo, name) = (log(), folder.path().join(".idea"));
        let inode = || std::fs::metadata(&name).map(|it| (it.ino(), it.permissions().mode() & 0o7777)).ok();
        hold_absent(folder.path(), &[], &mut undo).unwrap();
        let first = inode().unwrap();
        assert_eq!((undo.unwind(), inode(), first.1), (Vec::new(), None, 0o500));
        let caches = || std::fs::read_dir(&cache).unwrap().map(|it| it.unwrap().path()).collect::<Vec<_>>();
        let cached = |at: &Path| std::fs::read_dir(at).unwrap().count();
        let own = caches().pop().unwrap();
        let count = cached(&own);
        assert!(count > 5, "{count}");
        // Not another workspace's: a run over a folder above may have one open, and could write into it there.
        let elsewhere = tempfile::tempdir().unwrap();
        let mut beside = log();
        hold_absent(elsewhere.path(), &[], &mut beside).unwrap();
        assert_eq!(cached(&own), count);
        // The same ones come back, except those that are the user's own by the end, and those with something in them.
        let mut undo = log();
        hold_absent(folder.path(), &[], &mut undo).unwrap();
        let inodes =
            std::fs::read_dir(folder.path()).unwrap().map(|it| it.unwrap().metadata().unwrap().ino());
        assert!(cached(&own) == 0 && inodes.into_iter().any(|inode| inode == first.0));
        std::fs::remove_dir(&name).unwrap();
        std::fs::create_dir(&name).unwrap();
        let written = folder.path().join(".envrc");
        for mode in [0o700, 0o500] {
            std::fs::set_permissions(&written, PermissionsExt::from_mode(mode)).unwrap();
            let _ = std::fs::write(written.join("mine"), "");
        }
        assert_eq!((undo.unwind(), beside.unwind()), (Vec::new(), Vec::new()));
        assert!(name.is_dir() && written.join("mine").exists() && !elsewhere.path().join(".git").exists());
        assert_eq!((cached(&own), caches().len()), (count - 2, 2));
        // Files are never cached, because they may have a hard link.
        std::fs::create_dir(elsewhere.path().join(".git")).unwrap();
        let mut undo = log();
        hold_absent(elsewhere.path(), &[], &mut undo).unwrap();
        let commondir = elsewhere.path().join(".git/commondir");
        assert_eq!(std::fs::read(&commondir).unwrap(), b".\n");
        assert_eq!((undo.unwind(), commondir.exists()), (Vec::new(), false));
        let kept = caches().into_iter().flat_map(|at| std::fs::read_dir(at).unwrap());
        assert!(kept.into_iter().all(|it| it.unwrap().file_type().unwrap().is_dir()));
    }

    #[test]
    fn what_a_killed_run_held_is_removed_and_no_link_is_followed() {
        use std::os::unix::fs::{DirBuilderExt, PermissionsExt, symlink};

        let (folder, victim) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let undo = |name: &str| {
            let line =
                format!("placeholder {}\n", folder.path().canonicalize().unwrap().join(name).display());
            UndoLog::recover(&line).unwind()
        };
        let empty = |at: &Path| std::fs::DirBuilder::new().mode(0o500).create(at).unwrap();
        empty(&folder.path().join(".git"));
        assert_eq!((undo(".git"), folder.path().join(".git").exists()), (Vec::new(), false));
        empty(&victim.path().join("hooks"));
        symlink(victim.path(), folder.path().join(".git")).unwrap();
        assert_eq!((undo(".git/hooks"), victim.path().join("hooks").exists()), (Vec::new(), true));
        // A name behind a link counts as absent.
        let root = Arc::new(source::open(&folder.path().canonicalize().unwrap()).unwrap());
        assert!(placeholder::parent_of(&root, Path::new(".git/hooks")).unwrap().is_none());
        // The owner can change the mode of a read-only folder, and the command has the owner's rights.
        if !rustix::process::geteuid().is_root() {
            let closed = tempfile::tempdir().unwrap();
            std::fs::set_permissions(closed.path(), PermissionsExt::from_mode(0o555)).unwrap();
            let error = hold_absent(closed.path(), &[], &mut UndoLog::in_memory()).unwrap_err();
            assert!(matches!(error, Error::Refused { .. }), "{error}");
        }
    }

    #[test]
    fn a_lock_that_somebody_keeps_is_not_waited_for_without_end() {
        use std::os::unix::fs::DirBuilderExt;

        let folder = tempfile::tempdir().unwrap();
        let name = folder.path().join(".vscode");
        std::fs::DirBuilder::new().mode(0o500).create(&name).unwrap();
        let theirs = std::fs::File::open(&name).unwrap();
        rustix::fs::flock(&theirs, rustix::fs::FlockOperation::LockExclusive).unwrap();
        let error = hold_absent(folder.path(), &[], &mut UndoLog::in_memory()).unwrap_err();
        assert!(error.to_string().contains("keeps it locked"), "{error}");
    }
}
