//! Holds the protected names that do not exist in a workspace. Runs on the host, before the sandbox is made. Placeholders are made by
//! `held_name`, and never here. Refuses the run if something protected is made or removed meanwhile.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Gid, Uid};
use rustix::io::Errno;

use super::applying::rows_in;
use super::elsewhere::refuse_repository_inside;
use super::held::{Held, meddled};
use super::held_name::{self, HeldName, Patience};
use super::links::refuse_links;
use super::placeholder::{self, HeldPath, is_free, stat};
use super::planted::repositories_without_links;
use super::repository::OpenRepository;
use super::row::{Row, WhenAbsent, rows};
use super::spelling::{refuse_other_spellings, refuse_short_names};
use super::tables::refuse_tables;
use super::unheld::Unheld;
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
    /// The names that are held in it.
    pub(crate) names: Vec<PathBuf>,
}

/// Holds every absent name that must not appear. The undo log keeps the placeholders.
pub(crate) fn hold_absent(workspace: &Path, open: &[PathBuf], undo: &mut UndoLog) -> Result<Hold, Error> {
    let root = Arc::new(source::open(workspace)?);
    // Before anything else is looked at, so that what is there by the end was there all the time. What stands in its way is told below.
    let chosen = absent(root.as_fd(), open, &[]);
    let mut covered = refuse_links(root.as_fd(), open)?;
    refuse_repository_inside(workspace, open)?;
    let repositories = repositories_without_links(workspace, &root, open)?;
    let Names { free, .. } = chosen?;
    refuse_tables(root.as_fd(), &free)?;
    let (names, patience) = hold_all(workspace, &root, open, &free, repositories, undo)?;
    covered.extend(free.iter().map(|row| row.path));
    refuse_other_spellings(workspace, root.as_fd(), &covered)?;
    // What only another user's run holds goes with that run.
    let is_free = |path: &Path| free.iter().any(|row| row.path == path);
    let is_held = |path: &Path| names.iter().any(|held| held == path);
    let is_there = |path: &Path| matches!(stat(root.as_fd(), path), Ok(Some(_)));
    let is_theirs = |path: &Path| is_free(path) && !is_held(path) && is_there(path);
    let watched = covered.iter().map(|path| path.parent().filter(|_| is_theirs(path)).unwrap_or(path));
    let cover_watch =
        CoverWatch::begin(root.as_fd(), watched).map_err(|error| unwatched(workspace, &error))?;
    refuse_short_names(workspace, cover_watch.strange_directories())?;
    for held in &undo.held {
        // Somebody's own lock may have gone since. Without this run's, another run that ends removes the placeholder.
        if patience.gave_up {
            held.lock_again().map_err(|errno| unheld(&held.path, errno))?;
        }
        // Removed before the watch began, and so not watched.
        if !held.is_there().map_err(|errno| unheld(&held.path, errno))? {
            return Err(meddled(&held.path));
        }
    }
    // Whatever is done from here on, the watch sees.
    let now = absent(root.as_fd(), open, &names)?;
    refuse_changed(workspace, &free, &now.free)?;
    // There at both looks, and not between, when the covers were chosen or the watch began.
    let is_watched = |path: &&Path| covered.contains(path) && cover_watch.knows(path);
    if let Some(path) = now.taken.into_iter().find(|path| !is_watched(path)) {
        return Err(meddled(&workspace.join(path)));
    }
    Ok(Hold { cover_watch, workspace: root, names })
}

/// Holds the free names, and returns those that are held: nobody inside can make the others. Also returns what is left of the patience.
fn hold_all(
    workspace: &Path,
    root: &Arc<OwnedFd>,
    open: &[PathBuf],
    free: &[Row],
    repositories: Vec<OpenRepository>,
    undo: &mut UndoLog,
) -> Result<(Vec<PathBuf>, Patience), Error> {
    let to_tell = Unheld::of(workspace, root.as_fd(), open, free)?;
    let being = to_tell.being;
    // Recorded before any of them is made. Links are last, so that they are removed first: that also opens a repository which the
    // command has closed by its mode.
    let placeholders = free.iter().map(|row| Undo::Placeholder(workspace.join(row.path)));
    let links = repositories.iter().map(|it| Undo::PlantedLinks(it.repository.clone()));
    undo.push_all([Undo::Unheld(to_tell)].into_iter().chain(placeholders).chain(links));
    undo.repositories.extend(repositories);
    undo.workspaces.push((being, Arc::clone(root)));
    let owner = placeholder::owner_to_be(root).map_err(|errno| source::refused(workspace, errno))?;
    undo.placeholders.of(root);
    let (mut names, mut not_held) = (Vec::new(), Vec::new());
    let mut patience = Patience::new();
    for row in free {
        let path = workspace.join(row.path);
        match hold(root, row, owner, undo, &mut patience).map_err(|errno| unheld(&path, errno))? {
            Some((parent, opened)) => {
                undo.held.push(HeldName { path, parent, opened });
                names.push(row.path.to_path_buf());
            }
            None if row.when_absent.counts_alone() => not_held.push(row.path),
            None => {}
        }
    }
    // Nobody can make them now. Somebody may change that while the run goes on, as by `chattr -i`.
    if !not_held.is_empty() {
        undo.push_all([Undo::Unheld(Unheld { workspace: workspace.into(), being, names: not_held })]);
    }
    Ok((names, patience))
}

fn unwatched(workspace: &Path, error: &std::io::Error) -> Error {
    let remedy = match Errno::from_io_error(error) {
        Some(Errno::MFILE) => "raise the limit of open files: `ulimit -n`",
        Some(Errno::ACCESS) => {
            "let yourself read the workspace, and the folders in it that hold what is protected: `chmod u+r`"
        }
        _ => "switch fs.dir-notify-enable on, or use --workspace-mode overlay",
    };
    let what = format!("what is protected in {} cannot be watched: {error}", workspace.display());
    Error::Refused { what, remedy: Some(remedy.into()) }
}

/// Refuses a workspace in which somebody made or removed something protected since its names were chosen.
fn refuse_changed(workspace: &Path, chosen: &[Row], now: &[Row]) -> Result<(), Error> {
    let [chosen, now] = [chosen, now].map(|rows| rows.iter().map(|row| row.path).collect::<BTreeSet<_>>());
    // The first is the outermost.
    match chosen.symmetric_difference(&now).next() {
        None => Ok(()),
        Some(path) => Err(meddled(&workspace.join(path))),
    }
}

fn hold(
    root: &Arc<OwnedFd>,
    row: &Row,
    owner: Option<(Uid, Gid)>,
    undo: &mut UndoLog,
    patience: &mut Patience,
) -> rustix::io::Result<Option<(Arc<OwnedFd>, OwnedFd)>> {
    let Some(name) = row.path.file_name() else { return Ok(None) };
    let Some(parent) = placeholder::parent_of(root, row.path)? else { return Ok(None) };
    let Some(kind) = row.when_absent.kind() else { return Ok(None) };
    let place = HeldPath { parent: &parent, name, kind, owner };
    let opened = held_name::hold(&place, &mut undo.placeholders, patience)?;
    Ok(opened.map(|opened| (parent, opened)))
}

fn unheld(path: &Path, errno: Errno) -> Error {
    match errno {
        Errno::EXIST => meddled(path),
        Errno::ACCESS => Error::Refused {
            what: format!(
                "`{}` cannot be kept from the command: its folder is read-only by its mode alone, which its owner can change",
                path.display()
            ),
            remedy: Some("make the folder writable for you (chmod u+wx), or use --workspace-mode ro".into()),
        },
        held_name::KEEPS_NO_ATTRIBUTES => Error::Refused {
            what: format!(
                "`{}` cannot be kept from the command: its file system lets nobody write there, does not keep the modes, owners or numbers of files, or has no locks",
                path.display()
            ),
            remedy: Some("use --workspace-mode overlay or ro, or a folder on another file system".into()),
        },
        Errno::MFILE | Errno::NFILE => Error::Refused {
            what: format!(
                "`{}` cannot be kept from the command: {}",
                path.display(),
                std::io::Error::from(errno)
            ),
            remedy: Some(
                "allow more open files: `ulimit -n 1024`; the hard limit may have to be raised first".into(),
            ),
        },
        errno => {
            let why = match errno {
                Errno::BUSY => {
                    "somebody on this machine removes it again and again; start the run again".into()
                }
                errno => std::io::Error::from(errno).to_string(),
            };
            Error::Source { path: path.into(), why: format!("its name could not be held: {why}") }
        }
    }
}

/// The names of a workspace that must not appear.
struct Names {
    /// Those to be held: they are free, in a folder that is there.
    free: Vec<Row>,
    /// Those that are there.
    taken: Vec<&'static Path>,
}

/// Looks at the names that must not appear. Those that this run is known to hold are free.
fn absent(root: BorrowedFd<'_>, open: &[PathBuf], held: &[PathBuf]) -> Result<Names, Error> {
    let (mut free, mut taken): (Vec<Row>, _) = (Vec::new(), Vec::new());
    let mut folders: Vec<(&Path, bool)> = Vec::new();
    for row in rows_in(root, open, Held::Any)?.into_iter().filter(|row| row.when_absent != WhenAbsent::Leave)
    {
        // Names below a placeholder need none, because it cannot be written into.
        let below = |above: &Row| row.path.parent() == Some(above.path);
        let is_one_held = free.iter().any(|other| other.when_absent == WhenAbsent::HoldOne);
        let is_needed = match row.when_absent {
            WhenAbsent::HoldOne => !is_one_held,
            WhenAbsent::HoldWithOne => is_one_held,
            _ => true,
        };
        if !is_needed || free.iter().any(below) {
            continue;
        }
        let refused = |errno| source::refused(row.path, errno);
        if !held.iter().any(|held| held == row.path) && !is_free(root, row.path).map_err(refused)? {
            // None of these is covered.
            if row.when_absent != WhenAbsent::HoldOne {
                taken.push(row.path);
            }
        } else if is_in_a_folder(root, row.path, &mut folders).map_err(refused)? {
            free.push(row);
        }
    }
    Ok(Names { free, taken })
}

/// Whether the folder of a name is there, and is no placeholder of another run's. Remembers what it has looked at.
fn is_in_a_folder(
    root: BorrowedFd<'_>,
    path: &'static Path,
    known: &mut Vec<(&'static Path, bool)>,
) -> rustix::io::Result<bool> {
    let Some(folder) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) else {
        return Ok(true);
    };
    if let Some((_, is_there)) = known.iter().find(|(at, _)| *at == folder) {
        return Ok(*is_there);
    }
    // Only a row's folder is ever a placeholder; another, whatever its mode, can be opened by its owner.
    let is_there = match rows().any(|row| row.path == folder && row.when_absent != WhenAbsent::Leave) {
        true => !is_free(root, folder)?,
        false => stat(root, folder)?.is_some(),
    };
    known.push((folder, is_there));
    Ok(is_there)
}

#[cfg(test)]
mod tests {
    use super::super::kind::Kind;
    use std::time::Duration;

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
    fn a_file_of_ones_own_that_looks_like_another_names_placeholder_stays() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join(".git")).unwrap();
        let own = [".envrc", "lockgate.toml", ".mcp.json", "refs", "commondir"];
        let own = own.map(|name| folder.path().join(name));
        let make = |path: &PathBuf| {
            use std::os::unix::fs::OpenOptionsExt;
            std::fs::OpenOptions::new().write(true).create_new(true).mode(0o400).open(path).unwrap();
        };
        own.iter().for_each(make);
        let mut undo = UndoLog::in_memory();
        let hold = hold_absent(folder.path(), &[], &mut undo).unwrap();
        for path in &own {
            let name = Path::new(path.file_name().unwrap());
            assert!(!hold.names.iter().any(|held| held == name), "{name:?}");
            // Covered, but for the parts of a bare repository.
            assert_eq!(hold.cover_watch.knows(name), name != "refs", "{name:?}");
        }
        drop(hold);
        assert_eq!(undo.unwind(), Vec::<String>::new());
        // Nor does the log of a killed run take them for placeholders.
        let killed: String = own.iter().map(|path| Undo::Placeholder(path.clone()).line()).collect();
        assert_eq!(UndoLog::recover(&killed).unwind(), Vec::<String>::new());
        assert!(own.iter().all(|path| path.is_file()), "{own:?}");
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
        assert_eq!((undo.unwind(), inode(), first.1), (Vec::new(), None, 0o555));
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
        assert_eq!(std::fs::read(&commondir).unwrap(), b"./.\n");
        assert_eq!((undo.unwind(), commondir.exists()), (Vec::new(), false));
        let kept = caches().into_iter().flat_map(|at| std::fs::read_dir(at).unwrap());
        assert!(kept.into_iter().all(|it| it.unwrap().file_type().unwrap().is_dir()));
    }

    /// Does something as a user of this number, who has no other rights.
    fn as_user<T: Send>(user: u32, act: impl FnOnce() -> T + Send) -> T {
        let (uid, gid) = (Uid::from_raw(user), Gid::from_raw(user));
        let done = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                rustix::thread::set_thread_groups(&[]).unwrap();
                rustix::thread::set_thread_res_gid(gid, gid, gid).unwrap();
                rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
                act()
            });
            thread.join()
        });
        done.unwrap()
    }

    /// Makes a folder with a repository for one user, of such a mode.
    fn repository_of(user: u32, mode: u32) -> tempfile::TempDir {
        use std::os::unix::fs::{PermissionsExt, chown};

        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join(".git")).unwrap();
        for path in [folder.path(), &folder.path().join(".git")] {
            chown(path, Some(user), Some(user)).unwrap();
            std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
        }
        folder
    }

    const USERS: [u32; 2] = [61_001, 61_002];

    #[test]
    fn runs_of_several_users_hold_the_same_names_until_the_last_of_them_ends() {
        if !rustix::process::geteuid().is_root() {
            return lockgate_needs::missing("only root acts as other users");
        }
        let folder = repository_of(USERS[0], 0o777);
        let at = |name: &str| folder.path().join(name);
        let names = [".git/hooks", ".git/commondir", ".git/config.worktree", "lockgate.toml"].map(at);
        let are_there = || names.iter().all(|name| name.exists());
        // Whoever begins may end first.
        for (first, last) in [(0, 1), (1, 0)] {
            let mut logs = [UndoLog::in_memory(), UndoLog::in_memory()];
            let holds: Vec<_> = [first, last]
                .into_iter()
                .map(|user| {
                    as_user(USERS[user], || hold_absent(folder.path(), &[], &mut logs[user])).unwrap()
                })
                .collect();
            assert_eq!(holds[0].names, holds[1].names);
            // Anybody may read the repository meanwhile.
            let read = as_user(65_534, || {
                (std::fs::read(&names[1]).unwrap(), std::fs::read_dir(&names[3]).unwrap().count())
            });
            assert_eq!(read, (b"./.\n".to_vec(), 0));
            assert_eq!(as_user(USERS[first], || logs[first].unwind()), Vec::<String>::new());
            assert!(are_there() && holds[1].cover_watch.broken(Duration::ZERO).is_empty());
            assert!(as_user(USERS[last], || std::fs::write(names[0].join("pre-commit"), "")).is_err());
            assert_eq!(as_user(USERS[last], || logs[last].unwind()), Vec::<String>::new());
            assert!(names.iter().all(|name| !name.exists()), "{last}");
        }
        // What a killed run left goes with the next, whoever's that is.
        as_user(USERS[0], || hold_absent(folder.path(), &[], &mut UndoLog::in_memory()).map(drop)).unwrap();
        let mut log = UndoLog::in_memory();
        assert!(are_there());
        as_user(USERS[1], || hold_absent(folder.path(), &[], &mut log).map(drop)).unwrap();
        assert_eq!(as_user(USERS[1], || log.unwind()), Vec::<String>::new());
        assert!(!names[0].exists());
    }

    #[test]
    fn whoever_may_only_read_holds_nothing_and_is_told_whose_a_name_is_that_they_may_not() {
        use std::os::unix::fs::PermissionsExt;

        if !rustix::process::geteuid().is_root() {
            return lockgate_needs::missing("only root acts as other users");
        }
        let folder = repository_of(USERS[0], 0o755);
        let hooks = folder.path().join(".git/hooks");
        let mut logs = [UndoLog::in_memory(), UndoLog::in_memory()];
        let [_own, theirs] = [0, 1]
            .map(|user| as_user(USERS[user], || hold_absent(folder.path(), &[], &mut logs[user])).unwrap());
        assert!(theirs.names.is_empty() && hooks.exists());
        assert_eq!(as_user(USERS[0], || logs[0].unwind()), Vec::<String>::new());
        assert!(theirs.cover_watch.broken(Duration::ZERO).is_empty() && !hooks.exists());
        assert_eq!(as_user(USERS[1], || logs[1].unwind()), Vec::<String>::new());
        // In a sticky folder only who made it takes it away.
        std::fs::set_permissions(folder.path().join(".git"), PermissionsExt::from_mode(0o1777)).unwrap();
        as_user(USERS[0], || hold_absent(folder.path(), &[], &mut UndoLog::in_memory()).map(drop)).unwrap();
        let mut log = UndoLog::in_memory();
        as_user(USERS[1], || hold_absent(folder.path(), &[], &mut log).map(drop)).unwrap();
        let told = as_user(USERS[1], || log.unwind());
        assert!(told.iter().any(|it| it.contains(".git/hooks: user 61001 made it")), "{told:?}");
        // The ACL of the folder may have closed it.
        std::fs::set_permissions(&hooks, PermissionsExt::from_mode(0o500)).unwrap();
        let refused = || {
            let begun =
                as_user(USERS[1], || hold_absent(folder.path(), &[], &mut UndoLog::in_memory()).map(drop));
            let error = begun.unwrap_err();
            (error.to_string(), error.remedy().unwrap())
        };
        let (what, remedy) = refused();
        assert!(
            what.contains("it may be the placeholder") && remedy.contains("user 61001"),
            "{what} {remedy}"
        );
        assert!(remedy.contains("--open .git/hooks"), "{remedy}");
        // What has a folder in it is none.
        std::fs::create_dir(hooks.join("deep")).unwrap();
        let (what, remedy) = refused();
        assert!(!what.contains("placeholder") && remedy.contains("--open .git/hooks"), "{what} {remedy}");
        std::fs::remove_dir(hooks.join("deep")).unwrap();
        // Its own user takes it away, as that of an earlier release.
        let mut log = UndoLog::in_memory();
        as_user(USERS[0], || hold_absent(folder.path(), &[], &mut log).map(drop)).unwrap();
        assert_eq!(as_user(USERS[0], || log.unwind()), Vec::<String>::new());
        assert!(!hooks.exists());
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
    fn what_is_made_or_removed_while_names_are_held_refuses_the_run() {
        let chosen = |at: &Path| absent(source::open(at).unwrap().as_fd(), &[], &[]).unwrap().free;
        for (there, made, told) in [
            ("src", ".git", ".git"),
            (".git", ".git/hooks", ".git/hooks"),
            ("src", ".hg", ".hg/hgrc"),
            ("src", ".envrc", ".envrc"),
        ] {
            let folder = tempfile::tempdir().unwrap();
            std::fs::create_dir(folder.path().join(there)).unwrap();
            let before = chosen(folder.path());
            std::fs::create_dir(folder.path().join(made)).unwrap();
            let after = chosen(folder.path());
            assert!(refuse_changed(folder.path(), &before, &before).is_ok());
            for (before, now) in [(&before, &after), (&after, &before)] {
                let error = refuse_changed(folder.path(), before, now).unwrap_err().to_string();
                let told = format!("`{}`", folder.path().join(told).display());
                assert!(error.contains(&told) && error.contains("while the run began"), "{made}: {error}");
            }
        }
        // What has a chosen name by now, and is no placeholder.
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join(".git")).unwrap();
        let parent = Arc::new(source::open(folder.path()).unwrap());
        let place = HeldPath { parent: &parent, name: ".git".as_ref(), kind: Kind::Directory, owner: None };
        let held = held_name::hold(&place, &mut UndoLog::in_memory().placeholders, &mut Patience::new());
        assert_eq!(held.map(drop), Err(Errno::EXIST));
    }

    #[test]
    fn a_name_that_cannot_be_looked_at_is_neither_free_nor_somebodys() {
        use std::os::unix::fs::{DirBuilderExt, symlink};

        let folder = tempfile::tempdir().unwrap();
        let root = source::open(folder.path()).unwrap();
        let long = "x".repeat(300);
        assert_eq!(is_free(root.as_fd(), Path::new(&long)), Err(Errno::NAMETOOLONG));
        assert_eq!(placeholder::is_placeholder(&root, Path::new(&long)), Err(Errno::NAMETOOLONG));
        // A descriptor that cannot be read by.
        std::fs::DirBuilder::new().mode(0o500).create(folder.path().join(".idea")).unwrap();
        let unread = source::open(&folder.path().join(".idea")).unwrap();
        assert_eq!(placeholder::kind_of(&unread), Err(Errno::BADF));
        std::fs::write(folder.path().join("HEAD"), "").unwrap();
        symlink(&long, folder.path().join("objects")).unwrap();
        // Without `refs` it is no repository, whatever leads where.
        let begin = |open: &[PathBuf]| {
            let mut undo = UndoLog::in_memory();
            let begun = hold_absent(folder.path(), open, &mut undo).map(drop);
            assert!(undo.unwind().is_empty());
            begun
        };
        begin(&[]).unwrap();
        std::fs::create_dir(folder.path().join("refs")).unwrap();
        let error = begin(&[]).unwrap_err();
        let told = folder.path().join("objects").display().to_string();
        assert!(
            error.to_string().contains(&told) && error.remedy().unwrap().contains("--open .git"),
            "{error}"
        );
        begin(&[".git".into()]).unwrap();
    }

    #[test]
    fn a_placeholder_that_comes_and_goes_is_always_free() {
        use std::os::unix::fs::DirBuilderExt;
        use std::sync::atomic::{AtomicBool, Ordering};

        let folder = tempfile::tempdir().unwrap();
        let (root, name) = (source::open(folder.path()).unwrap(), folder.path().join("refs"));
        let is_over = AtomicBool::new(false);
        let taken = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    std::fs::DirBuilder::new().mode(0o500).create(&name).unwrap();
                    std::fs::remove_dir(&name).unwrap();
                }
            });
            let taken = (0..20_000).filter(|_| is_free(root.as_fd(), Path::new("refs")) != Ok(true)).count();
            is_over.store(true, Ordering::Relaxed);
            taken
        });
        assert_eq!(taken, 0);
        // What the user has by that mode is theirs, once there is something in it.
        std::fs::create_dir_all(name.join("heads")).unwrap();
        std::fs::set_permissions(&name, std::os::unix::fs::PermissionsExt::from_mode(0o500)).unwrap();
        assert_eq!(is_free(root.as_fd(), Path::new("refs")), Ok(false));
        std::fs::set_permissions(&name, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    }

    #[test]
    fn what_only_another_run_holds_may_go_with_it() {
        use std::os::unix::fs::DirBuilderExt;

        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("refs")).unwrap();
        let theirs = folder.path().join("HEAD");
        std::fs::DirBuilder::new().mode(0o500).create(&theirs).unwrap();
        let hold = hold_absent(folder.path(), &[], &mut UndoLog::in_memory()).unwrap();
        assert!(hold.names.contains(&"objects".into()) && !hold.names.contains(&"HEAD".into()));
        std::fs::remove_dir(&theirs).unwrap();
        assert!(hold.cover_watch.broken(Duration::ZERO).is_empty());
        std::fs::remove_dir(folder.path().join("objects")).unwrap();
        assert_eq!(hold.cover_watch.broken(Duration::ZERO), [Path::new("objects")]);
    }

    #[test]
    fn many_locks_that_somebody_keeps_are_waited_for_together() {
        use std::os::unix::fs::DirBuilderExt;

        let folder = tempfile::tempdir().unwrap();
        let names = [".vscode", ".idea", ".envrc", "lockgate.toml"].map(|name| folder.path().join(name));
        let mut locked = Vec::new();
        for name in &names {
            std::fs::DirBuilder::new().mode(0o500).create(name).unwrap();
            let theirs = std::fs::File::open(name).unwrap();
            rustix::fs::flock(&theirs, rustix::fs::FlockOperation::LockExclusive).unwrap();
            locked.push(theirs);
        }
        let mut undo = UndoLog::in_memory();
        let begun = std::time::Instant::now();
        let hold = hold_absent(folder.path(), &[], &mut undo).unwrap();
        assert!(begun.elapsed() < std::time::Duration::from_secs(3), "{:?}", begun.elapsed());
        assert!(names.iter().all(|name| hold.names.iter().any(|held| folder.path().join(held) == *name)));
        // A lock that is had late keeps another run from removing it.
        drop(locked);
        undo.held.iter().for_each(|held| held.lock_again().unwrap());
        let mut other = UndoLog::in_memory();
        hold_absent(folder.path(), &[], &mut other).unwrap();
        assert!(other.unwind().is_empty() && hold.cover_watch.broken(Duration::ZERO).is_empty());
        assert!(undo.unwind().is_empty() && names.iter().all(|name| !name.exists()));
    }

    #[test]
    fn a_repository_that_only_another_run_holds_has_nothing_to_hold_in_it() {
        let folder = tempfile::tempdir().unwrap();
        let (mut first, mut second) = (UndoLog::in_memory(), UndoLog::in_memory());
        let one = hold_absent(folder.path(), &[], &mut first).unwrap();
        let other = hold_absent(folder.path(), &[".git".into()], &mut second).unwrap();
        let of_git = |hold: &Hold| hold.names.iter().filter(|name| name.starts_with(".git")).count();
        assert_eq!((of_git(&one), of_git(&other)), (1, 0));
        assert!(first.unwind().is_empty() && other.cover_watch.broken(Duration::ZERO).is_empty());
    }

    #[test]
    fn whoever_makes_a_name_while_it_is_held_is_held_off_refused_or_watched() {
        use std::sync::atomic::{AtomicBool, Ordering};

        let folder = tempfile::tempdir().unwrap();
        let name = folder.path().join(".envrc");
        let is_over = AtomicBool::new(false);
        let make = || std::fs::write(&name, "").is_ok();
        std::thread::scope(|scope| {
            let begun = std::time::Instant::now();
            for _ in 0..200 {
                if begun.elapsed().as_secs() >= 2 {
                    break;
                }
                is_over.store(false, Ordering::Relaxed);
                let theirs = scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        make();
                        std::thread::yield_now();
                        let _ = std::fs::remove_file(&name);
                    }
                });
                let mut undo = UndoLog::in_memory();
                let hold = hold_absent(folder.path(), &[], &mut undo);
                is_over.store(true, Ordering::Relaxed);
                theirs.join().unwrap();
                match hold {
                    Ok(hold) if hold.names.contains(&".envrc".into()) => {
                        assert!(
                            name.is_dir() && !make() && hold.cover_watch.broken(Duration::ZERO).is_empty()
                        );
                    }
                    // It was theirs all the time, and has been removed since.
                    Ok(hold) => assert_eq!(hold.cover_watch.broken(Duration::ZERO), [Path::new(".envrc")]),
                    Err(error) => assert!(error.to_string().contains(".envrc"), "{error}"),
                }
                assert!(undo.unwind().is_empty());
            }
        });
    }

    #[test]
    fn a_lock_that_somebody_keeps_is_not_waited_for_without_end() {
        use std::os::unix::fs::DirBuilderExt;

        let folder = tempfile::tempdir().unwrap();
        let name = folder.path().join(".vscode");
        std::fs::DirBuilder::new().mode(0o500).create(&name).unwrap();
        let theirs = std::fs::File::open(&name).unwrap();
        rustix::fs::flock(&theirs, rustix::fs::FlockOperation::LockExclusive).unwrap();
        let held = || {
            let mut undo = UndoLog::in_memory();
            let hold = hold_absent(folder.path(), &[], &mut undo).unwrap();
            assert!(
                undo.held.iter().any(|it| it.path == name)
                    && hold.cover_watch.broken(Duration::ZERO).is_empty()
            );
            undo
        };
        // It stays while it is locked, and the next run takes it away.
        assert_eq!((held().unwind(), name.exists()), (Vec::new(), true));
        drop(theirs);
        assert_eq!((held().unwind(), name.exists()), (Vec::new(), false));
    }

    #[test]
    fn a_folder_that_may_not_be_read_is_not_told_as_a_setting_of_the_kernels() {
        let remedy = |errno: Errno| unwatched(Path::new("/w"), &errno.into()).remedy().unwrap();
        assert!(remedy(Errno::ACCESS).contains("chmod u+r"));
        assert!(remedy(Errno::INVAL).contains("fs.dir-notify-enable"));
        assert!(remedy(Errno::MFILE).contains("ulimit -n"));
    }

    #[test]
    fn too_few_open_files_are_told_with_the_limit() {
        let error = unheld(Path::new(".envrc"), Errno::MFILE);
        assert!(error.to_string().contains(".envrc"), "{error}");
        assert!(error.remedy().unwrap().contains("ulimit -n"));
    }
}
