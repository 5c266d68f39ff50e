//! Protected paths: what the host would later execute or trust is read-only inside, whether it is there or not.
//!
//! A name that is not there is held by an empty directory on the host for as long as the run lasts; the directory is
//! locked by its run, so that of several runs in one workspace the last takes it away. Git does not see empty
//! directories, so nothing of this enters a commit.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use policy::MountMode;
use rustix::fs::{AtFlags, FileType, FlockOperation, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;
use sys::mount::{self, Depth, Flags};

use crate::error::Error;
use crate::source;
use crate::undo::{Undo, UndoLog};
use crate::vigil::Vigil;

const DATA: &str = include_str!("../../../profiles/protected.txt");

/// One protected path.
struct Row {
    path: PathBuf,
    when_absent: WhenAbsent,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum WhenAbsent {
    HoldByDirectory,
    HoldByFile,
    HoldByEmptyFile,
    /// It is enough to hold one of these.
    HoldOne,
    /// Where one of those is held.
    HoldWithOne,
    Leave,
}

/// How one can tell a placeholder: nobody may write to it.
const DIRECTORY_MODE: u32 = 0o500;
const FILE_MODE: u32 = 0o400;
/// What a file that holds a name says: in `.git/commondir`, that the repository is its own.
const DOT: &[u8] = b".\n";

fn rows() -> impl Iterator<Item = Row> {
    DATA.lines().filter_map(|line| {
        let mut words = line.split('#').next()?.split_whitespace();
        let when_absent = match words.next()? {
            "hold" => WhenAbsent::HoldByDirectory,
            "file" => WhenAbsent::HoldByFile,
            "void" => WhenAbsent::HoldByEmptyFile,
            "one" => WhenAbsent::HoldOne,
            "with" => WhenAbsent::HoldWithOne,
            _ => WhenAbsent::Leave,
        };
        Some(Row { path: words.next()?.into(), when_absent })
    })
}

/// Whether this machine would execute or trust a path, seen from the top of a workspace or of a repository, or something below it.
pub(crate) fn is_protected(path: &Path) -> bool {
    // A repository as a whole is not: what matters of it has rows of its own.
    let counts = |row: &Row| row.path != Path::new(".git") && row.when_absent != WhenAbsent::HoldOne;
    let listed = |path: &Path| rows().filter(counts).any(|row| lies_in(path, &row.path));
    listed(path) || repositories(path).any(|(_, within)| listed(&within))
}

/// Every repository on the way to a path: where it is, and the path as it would be if that were the workspace's own.
pub(crate) fn repositories(path: &Path) -> impl Iterator<Item = (PathBuf, PathBuf)> {
    let parts: Vec<_> = path.components().collect();
    let found = (0..parts.len()).filter(|at| is_git(parts[*at].as_os_str())).collect::<Vec<_>>();
    found.into_iter().map(move |at| (parts[..=at].iter().collect(), parts[at..].iter().collect()))
}

/// Whether a name is that of a repository. There are file systems to which capital letters are the same.
pub(crate) fn is_git(name: &OsStr) -> bool {
    name.eq_ignore_ascii_case(".git")
}

/// Whether a path is a row's, or below it; in a repository capital letters are the same, as they are in its name.
fn lies_in(path: &Path, row: &Path) -> bool {
    let within_git = row.components().next().is_some_and(|first| is_git(first.as_os_str()));
    let mut parts = path.components();
    row.components().all(|of_row| {
        parts.next().is_some_and(|part| {
            part == of_row || within_git && part.as_os_str().eq_ignore_ascii_case(of_row.as_os_str())
        })
    })
}

/// Refuses to open what is not protected: a name that is written wrong would be believed to be open.
pub(crate) fn refuse_unknown(open: &[PathBuf]) -> Result<(), Error> {
    match open.iter().find(|path| !rows().any(|row| row.path == **path)) {
        None => Ok(()),
        Some(unknown) => Err(Error::Refused {
            what: format!("`{}` is not a protected path, so it cannot be opened", unknown.display()),
            remedy: Some(format!(
                "the protected paths are {}",
                rows().map(|row| row.path.display().to_string()).collect::<Vec<_>>().join(", ")
            )),
        }),
    }
}

/// The rows that hold in a run that opens some.
fn rows_but(open: &[PathBuf]) -> impl Iterator<Item = Row> {
    let is_open = |row: &Row| open.contains(&row.path);
    let none_of_them = rows().any(|row| row.when_absent == WhenAbsent::HoldOne && is_open(&row));
    rows().filter(move |row| !(is_open(row) || none_of_them && row.when_absent == WhenAbsent::HoldOne))
}

/// The rows of which something is there to be covered: of those of which one is held, that one.
fn rows_there(root: BorrowedFd<'_>, open: &[PathBuf]) -> impl Iterator<Item = Row> {
    rows_but(open)
        .filter(move |row| row.when_absent != WhenAbsent::HoldOne || is_placeholder(root, &row.path))
}

/// Refuses a workspace in which something is a link that would have to be protected: what it leads to may be written by another name,
/// and the link be replaced.
fn refuse_links(root: BorrowedFd<'_>, open: &[PathBuf]) -> Result<(), Error> {
    for Row { path, .. } in rows_there(root, open) {
        if let Err(error) = source::open_beneath(root, &path) {
            return Err(Error::Refused {
                what: format!("`{}` cannot be protected: {error}", path.display()),
                remedy: Some(format!(
                    "put a file or folder of its own in its place, or let the command have it as it is: --open {}",
                    path.display()
                )),
            });
        }
    }
    Ok(())
}

/// What keeps this run's placeholders, and tells when what is protected is replaced.
#[derive(Debug)]
pub(crate) struct Held {
    #[expect(dead_code, reason = "holding the descriptors is what they are for")]
    locks: Vec<OwnedFd>,
    pub(crate) vigil: Vigil,
}

/// Holds every absent name that must not appear. Runs on the host's side, before the sandbox is made.
pub(crate) fn hold_absent(workspace: &Path, open: &[PathBuf], undo: &mut UndoLog) -> Result<Held, Error> {
    let root = source::open(workspace)?;
    refuse_links(root.as_fd(), open)?;
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
        if is_needed && !free.iter().any(below) && is_free(root.as_fd(), &row.path) {
            free.push(row);
        }
    }
    // Before any of them is made.
    undo.push_all(free.iter().map(|row| Undo::Placeholder(workspace.join(&row.path))));
    let owner = owner_to_be(root.as_fd());
    let mut held = Vec::new();
    for row in free {
        let locked = hold(root.as_fd(), &row, owner).map_err(|errno| Error::Source {
            path: workspace.join(&row.path),
            why: format!("its name could not be held: {}", std::io::Error::from(errno)),
        });
        held.extend(locked?);
    }
    let paths: Vec<PathBuf> = rows_there(root.as_fd(), open).map(|row| row.path).collect();
    let vigil = Vigil::begin(root.as_fd(), paths.iter().map(PathBuf::as_path));
    let vigil = vigil.map_err(|error| Error::Refused {
        what: format!("what is protected in {} cannot be watched: {error}", workspace.display()),
        remedy: Some("switch fs.dir-notify-enable on, or use --workspace-mode overlay".into()),
    })?;
    Ok(Held { locks: held, vigil })
}

/// Whether a name is not there, or another run holds it.
fn is_free(root: BorrowedFd<'_>, path: &Path) -> bool {
    match rustix::fs::statat(root, path, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => matches!(stat.st_mode & 0o777, DIRECTORY_MODE | FILE_MODE) && is_placeholder(root, path),
        Err(_) => true,
    }
}

/// How often a name is tried for that other runs in the workspace let go of at the same moment.
const TRIES: usize = 64;

/// Holds one name; nothing where it is there, or nobody can make it.
fn hold(root: BorrowedFd<'_>, row: &Row, owner: Option<(Uid, Gid)>) -> rustix::io::Result<Option<OwnedFd>> {
    for _ in 0..TRIES {
        let made = match row.when_absent {
            WhenAbsent::HoldByFile => make_file(root, &row.path, DOT),
            WhenAbsent::HoldByEmptyFile => make_file(root, &row.path, b""),
            _ => rustix::fs::mkdirat(root, &row.path, Mode::from_raw_mode(DIRECTORY_MODE)),
        };
        let locked = match made {
            Ok(()) => give(root, &row.path, owner).and_then(|()| lock(root, &row.path)),
            Err(Errno::EXIST) if is_placeholder(root, &row.path) => lock(root, &row.path),
            // It is there, or its parent is not, or nobody can write here: then the agent cannot make it either.
            Err(Errno::EXIST | Errno::NOENT | Errno::NOTDIR | Errno::ROFS | Errno::ACCESS | Errno::PERM) => {
                return Ok(None);
            }
            Err(errno) => return Err(errno),
        };
        match locked {
            // Another run may have taken it away before the lock was ours: then it holds nothing.
            Ok(locked) if rustix::fs::fstat(&locked)?.st_nlink > 0 => return Ok(Some(locked)),
            Ok(_) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno),
        }
    }
    Err(Errno::BUSY)
}

/// Who is to own what root makes in somebody's folder: they, and so the run. Nobody where it is theirs anyway.
fn owner_to_be(root: BorrowedFd<'_>) -> Option<(Uid, Gid)> {
    let (uid, gid) = source::owner(root).ok()?;
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    let own = (rustix::process::geteuid(), rustix::process::getegid());
    (own.0.is_root() && own != (uid, gid)).then_some((uid, gid))
}

fn give(root: BorrowedFd<'_>, path: &Path, owner: Option<(Uid, Gid)>) -> rustix::io::Result<()> {
    let Some((uid, gid)) = owner else { return Ok(()) };
    rustix::fs::chownat(root, path, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)
}

/// Makes the file that holds a name.
fn make_file(root: BorrowedFd<'_>, path: &Path, content: &[u8]) -> rustix::io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(root, path, flags, Mode::from_raw_mode(FILE_MODE))?;
    if content.is_empty() { Ok(()) } else { rustix::io::write(&file, content).map(drop) }
}

/// What can be opened to be looked at: never a device or a pipe that would wait.
const LOOK: OFlags = OFlags::RDONLY.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

fn is_placeholder(root: BorrowedFd<'_>, path: &Path) -> bool {
    rustix::fs::openat(root, path, LOOK, Mode::empty()).is_ok_and(|opened| is_ours(&opened))
}

/// An empty directory that nobody can write into, or a file that nobody can write and that holds a dot or nothing, is one of ours.
fn is_ours(opened: &OwnedFd) -> bool {
    let Ok(stat) = rustix::fs::fstat(opened) else { return false };
    match (FileType::from_raw_mode(stat.st_mode), stat.st_mode & 0o777) {
        (FileType::Directory, DIRECTORY_MODE) => rustix::fs::Dir::read_from(opened)
            .is_ok_and(|entries| entries.flatten().all(|e| matches!(e.file_name().to_bytes(), b"." | b".."))),
        (FileType::RegularFile, FILE_MODE) => {
            let mut content = [0; 8];
            rustix::io::pread(opened, &mut content, 0).is_ok_and(|read| read == 0 || content[..read] == *DOT)
        }
        _ => false,
    }
}

fn lock(root: BorrowedFd<'_>, path: &Path) -> rustix::io::Result<OwnedFd> {
    let directory = rustix::fs::openat(root, path, LOOK, Mode::empty())?;
    rustix::fs::flock(&directory, FlockOperation::LockShared)?;
    Ok(directory)
}

/// Takes a placeholder away, unless another run still holds it.
pub(crate) fn release(path: &Path) -> std::io::Result<()> {
    let opened = match rustix::fs::open(path, LOOK, Mode::empty()) {
        Ok(opened) => opened,
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(()),
        Err(errno) => return Err(errno.into()),
    };
    let stat = rustix::fs::fstat(&opened)?;
    let directory = FileType::from_raw_mode(stat.st_mode).is_dir();
    // A directory with something in it cannot be removed anyway, so it need not be read.
    let ours = if directory { stat.st_mode & 0o777 == DIRECTORY_MODE } else { is_ours(&opened) };
    if !ours {
        return Ok(()); // somebody's own by now
    }
    match rustix::fs::flock(&opened, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => return Ok(()),
        Err(errno) => return Err(errno.into()),
    }
    let removed = if directory { rustix::fs::rmdir(path) } else { rustix::fs::unlink(path) };
    match removed {
        Ok(()) | Err(Errno::NOENT | Errno::NOTEMPTY) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Makes every protected path below the workspace read-only, inside.
pub(crate) fn protect(workspace: BorrowedFd<'_>, open: &[PathBuf]) -> Result<(), (PathBuf, std::io::Error)> {
    if !open.iter().any(|path| path == Path::new(".git")) {
        pin_git(workspace).map_err(|e| (".git".into(), e))?;
    }
    for row in rows_there(workspace, open) {
        if row.path == Path::new(".git") {
            continue;
        }
        let found = match source::open_beneath(workspace, &row.path) {
            Ok(Some(found)) => found,
            Ok(None) => continue,
            Err(error) => return Err((row.path.clone(), std::io::Error::other(error.to_string()))),
        };
        cover(found.as_fd(), Flags::READ_ONLY).map_err(|e| (row.path.clone(), e))?;
    }
    Ok(())
}

/// Every protected path of a workspace that is there, and whether it is read-only, for an engine that is to show it so.
pub(crate) fn present(workspace: &Path, open: &[PathBuf]) -> Result<Vec<(PathBuf, MountMode)>, Error> {
    let root = source::open(workspace)?;
    let mut found = Vec::new();
    refuse_links(root.as_fd(), open)?;
    for row in rows_there(root.as_fd(), open) {
        let whole_repository = row.path == Path::new(".git");
        match source::open_beneath(root.as_fd(), &row.path) {
            // As in `pin_git`: it stays writable, as a mount point, so that it cannot be renamed away.
            Ok(Some(git))
                if whole_repository
                    && is_directory(git.as_fd())
                    && !is_placeholder(root.as_fd(), &row.path) =>
            {
                found.push((workspace.join(row.path), MountMode::ReadWrite));
            }
            Ok(Some(_)) => found.push((workspace.join(row.path), MountMode::ReadOnly)),
            Ok(None) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// A repository that is there stays writable but cannot be renamed away: it becomes a mount point of its own. A
/// placeholder is read-only.
fn pin_git(workspace: BorrowedFd<'_>) -> std::io::Result<()> {
    let git = Path::new(".git");
    match source::open_beneath(workspace, git) {
        // A file leads to a repository elsewhere (a linked worktree, a submodule): where it leads is not the agent's to say.
        Ok(Some(found)) if is_placeholder(workspace, git) || !is_directory(found.as_fd()) => {
            cover(found.as_fd(), Flags::READ_ONLY)
        }
        Ok(Some(found)) => cover(found.as_fd(), Flags::NO_SUID),
        _ => Ok(()),
    }
}

fn is_directory(found: BorrowedFd<'_>) -> bool {
    rustix::fs::fstat(found).is_ok_and(|s| FileType::from_raw_mode(s.st_mode).is_dir())
}

/// Mounts a file or directory over itself with more flags.
fn cover(found: BorrowedFd<'_>, flags: Flags) -> std::io::Result<()> {
    let tree = mount::clone_tree(found, c"", Depth::Recursive)?;
    mount::set_flags(tree.as_fd(), flags.and(Flags::NO_SUID).and(Flags::NO_DEV))?;
    mount::attach(tree.as_fd(), found, c"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repository_is_one_whatever_its_letters() {
        for (path, expected) in [
            (".git/config", true),
            (".GIT/Config", true),
            ("sub/.Git/hooks/x", true),
            (".git/objects/x", false),
            ("head", false),
        ] {
            assert_eq!(is_protected(Path::new(path)), expected, "{path}");
        }
    }

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
}
