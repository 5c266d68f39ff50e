//! Which of the protected names are held in one workspace: those that are not there. Runs on the host's side, before the sandbox
//! is made; what holds a name is a placeholder, and this file never makes one itself.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use rustix::fs::AtFlags;

use super::placeholder::{self, Kind, Place, is_placeholder};
use super::{Row, WhenAbsent, refuse_links, rows_but, rows_there};
use crate::error::Error;
use crate::source;
use crate::undo::{Undo, UndoLog};
use crate::vigil::Vigil;

/// Holds every absent name that must not appear, and tells when what is protected is replaced. The log keeps what holds them.
pub(crate) fn hold_absent(workspace: &Path, open: &[PathBuf], undo: &mut UndoLog) -> Result<Vigil, Error> {
    let root = source::open(workspace)?;
    refuse_links(root.as_fd(), open)?;
    let free = absent(root.as_fd(), open);
    // Before any of them is made.
    undo.push_all(free.iter().map(|row| Undo::Placeholder(workspace.join(&row.path))));
    let owner = placeholder::owner_to_be(root.as_fd());
    for row in free {
        let place = Place { root: root.as_fd(), path: &row.path, kind: kind(row.when_absent), owner };
        let locked = placeholder::hold(&place, &mut undo.stock).map_err(|errno| Error::Source {
            path: workspace.join(&row.path),
            why: format!("its name could not be held: {}", std::io::Error::from(errno)),
        })?;
        undo.held.extend(locked.map(|locked| (workspace.join(&row.path), locked)));
    }
    let paths: Vec<PathBuf> = rows_there(root.as_fd(), open).map(|row| row.path).collect();
    Vigil::begin(root.as_fd(), paths.iter().map(PathBuf::as_path)).map_err(|error| Error::Refused {
        what: format!("what is protected in {} cannot be watched: {error}", workspace.display()),
        remedy: Some("switch fs.dir-notify-enable on, or use --workspace-mode overlay".into()),
    })
}

/// The rows whose names are to be held.
fn absent(root: BorrowedFd<'_>, open: &[PathBuf]) -> Vec<Row> {
    let mut free: Vec<Row> = Vec::new();
    for row in rows_but(open).filter(|row| row.when_absent != WhenAbsent::Leave) {
        // A placeholder's own children need none: it cannot be written into.
        let below = |above: &Row| row.path.parent() == Some(&above.path);
        let is_one_held = free.iter().any(|other| other.when_absent == WhenAbsent::HoldOne);
        let is_needed = match row.when_absent {
            WhenAbsent::HoldOne => !is_one_held,
            WhenAbsent::HoldWithOne => is_one_held,
            _ => true,
        };
        if is_needed && !free.iter().any(below) && is_free(root, &row.path) {
            free.push(row);
        }
    }
    free
}

/// Whether a name is not there, or another run holds it.
fn is_free(root: BorrowedFd<'_>, path: &Path) -> bool {
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
    fn what_held_a_name_is_used_again() {
        use std::os::unix::fs::{DirEntryExt, MetadataExt, PermissionsExt};

        let (folder, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let stock = state.path().join("stock");
        let log = || UndoLog::in_memory().with_stock(stock.clone());
        let (mut undo, name) = (log(), folder.path().join(".idea"));
        let inode = || std::fs::metadata(&name).map(|it| (it.ino(), it.permissions().mode() & 0o7777)).ok();
        hold_absent(folder.path(), &[], &mut undo).unwrap();
        let first = inode().unwrap();
        assert_eq!((undo.unwind(), inode()), (Vec::new(), None));
        let stocked = || std::fs::read_dir(&stock).unwrap().count();
        let count = stocked();
        assert!(count > 5, "{count}");
        // The same ones, whole; two runs at once need as many more, and what is somebody's own by then is not taken.
        let (mut undo, mut beside) = (log(), log());
        hold_absent(folder.path(), &[], &mut undo).unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        hold_absent(elsewhere.path(), &[], &mut beside).unwrap();
        assert_eq!((stocked(), first.1), (0, 0o500));
        let inodes =
            |at: &Path| std::fs::read_dir(at).unwrap().map(|it| it.unwrap().ino()).collect::<Vec<_>>();
        assert!(inodes(folder.path()).contains(&first.0));
        std::fs::remove_dir(&name).unwrap();
        std::fs::create_dir(&name).unwrap();
        std::fs::set_permissions(elsewhere.path().join(".envrc"), PermissionsExt::from_mode(0o700)).unwrap();
        std::fs::write(elsewhere.path().join(".envrc/mine"), "").unwrap();
        std::fs::set_permissions(elsewhere.path().join(".envrc"), PermissionsExt::from_mode(0o500)).unwrap();
        assert_eq!((undo.unwind(), beside.unwind()), (Vec::new(), Vec::new()));
        assert!(name.is_dir() && elsewhere.path().join(".envrc/mine").exists());
        assert_eq!(stocked(), 2 * count - 2);
        // A run that is killed has its own removed, and what cannot be moved is made.
        hold_absent(elsewhere.path(), &[], &mut log()).unwrap();
        assert!(elsewhere.path().join(".git").exists());
        let lines = format!("placeholder {}\n", elsewhere.path().join(".git").display());
        assert_eq!(
            (UndoLog::recover(&lines).unwind(), elsewhere.path().join(".git").exists()),
            (Vec::new(), false)
        );
    }
}
