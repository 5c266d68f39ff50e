//! Links in a repository. Git on this machine writes wherever they lead, and shows none of them: a reflog that is a link puts the command's
//! words into a file of the person's. A repository that has one is not shown for writing, so whatever is there at the end of a run was made
//! by it, and is taken away. Folders that are read-only inside are not looked at.

use std::ffi::OsString;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;

use super::is_directory;
use super::tree::{Found, Shut, Walk};
use crate::error::Error;
use crate::source;

/// How many files and folders are looked at.
const MOST: usize = 1_000_000;

/// What is read-only inside.
const COVERED: [&str; 3] = ["hooks", "modules", "worktrees"];

/// Objects are written beside where they are to be and moved there, so of those a link of their own leads nobody.
const OBJECTS: &str = "objects";

/// Refuses a workspace whose repository has a link.
pub(super) fn refuse_links_within(root: BorrowedFd<'_>, open: &[PathBuf]) -> Result<(), Error> {
    if open.iter().any(|path| path == Path::new(".git")) {
        return Ok(());
    }
    let refused = |why: String| {
        Error::Refused {
        what: format!("the repository in `.git` cannot be protected: {why}"),
        remedy: Some(
            "put a file or folder of its own in its place, use --workspace-mode overlay, or leave the repository to \
             the command as it is: --open .git"
                .into(),
        ),
    }
    };
    let Some(git) = repository(root).map_err(|errno| refused(io::Error::from(errno).to_string()))? else {
        return Ok(());
    };
    let mut found = None;
    walk(git.as_fd(), Shut::Refuse, &mut |link| {
        found = Some(link.path.clone());
        Ok(ControlFlow::Break(()))
    })
    .map_err(|error| refused(format!("it cannot be looked through: {error}")))?;
    match found {
        None => Ok(()),
        Some(path) => {
            let path = Path::new(".git").join(path).display().to_string();
            Err(refused(format!(
                "`{}` is a symbolic link, which git would write through",
                path.escape_debug()
            )))
        }
    }
}

/// Takes the links of a repository away, and tells of each where it led. One that stays keeps no other, and is the error.
pub(crate) fn take_away(git: &Path, told: &mut Vec<String>) -> io::Result<()> {
    let opened = match source::open_if_there(git).map_err(io::Error::other)? {
        Some(opened) if is_directory(opened.as_fd()) => opened,
        _ => return Ok(()),
    };
    let mut stays = Ok(());
    walk(opened.as_fd(), Shut::Open, &mut |link| {
        match take(link) {
            Ok(None) => {}
            Ok(Some(target)) => told.push(format!(
                "took away `{}`, a link to `{}` that was made meanwhile: git here would have written there",
                git.join(&link.path).display().to_string().escape_debug(),
                target.display().to_string().escape_debug(),
            )),
            Err(errno) => stays = Err(errno.into()),
        }
        Ok(ControlFlow::Continue(()))
    })?;
    stays
}

/// Takes one link away, and gives where it led; nothing where it is gone.
fn take(link: &Found<'_>) -> rustix::io::Result<Option<OsString>> {
    let Found { folder, name, .. } = link;
    let target = match rustix::fs::readlinkat(folder, *name, Vec::new()) {
        Err(Errno::NOENT) => return Ok(None),
        target => OsString::from_vec(target?.into_bytes()),
    };
    match rustix::fs::unlinkat(folder, *name, AtFlags::empty()) {
        // Its owner closed the folder behind it.
        Err(Errno::ACCESS) => {
            rustix::fs::fchmod(folder, Mode::RWXU)?;
            rustix::fs::unlinkat(folder, *name, AtFlags::empty())?;
        }
        Err(Errno::NOENT) => return Ok(None),
        done => done?,
    }
    Ok(Some(target))
}

/// The workspace's own repository, if it has one.
fn repository(root: BorrowedFd<'_>) -> rustix::io::Result<Option<OwnedFd>> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    match openat2(root, ".git", flags, Mode::empty(), ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS) {
        Ok(opened) => Ok(Some(opened)),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Visits every link.
fn walk(
    git: BorrowedFd<'_>,
    shut: Shut,
    visit: &mut dyn FnMut(&Found<'_>) -> io::Result<ControlFlow<()>>,
) -> io::Result<()> {
    let leaves = |path: &Path| {
        COVERED.iter().any(|covered| path == Path::new(covered)) || path.parent() == Some(Path::new(OBJECTS))
    };
    Walk { most: MOST, leaves: &leaves, shut }.visit(git, &mut |found| match found.kind {
        FileType::Symlink => visit(found),
        _ => Ok(ControlFlow::Continue(())),
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn a_link_in_a_repository_is_refused_and_taken_away_wherever_git_would_write() {
        let folder = tempfile::tempdir().unwrap();
        let workspace = folder.path().canonicalize().unwrap();
        let git = workspace.join(".git");
        for made in ["logs/refs/heads", "refs/heads", "objects/ab", "hooks", "modules"] {
            fs::create_dir_all(git.join(made)).unwrap();
        }
        let taken = |git: &Path| {
            let mut told = Vec::new();
            take_away(git, &mut told).unwrap();
            told
        };
        let mode = |name: &str| fs::metadata(git.join(name)).unwrap().permissions().mode() & 0o777;
        let refused = |open: &[PathBuf]| {
            let root = source::open(&workspace).unwrap();
            refuse_links_within(root.as_fd(), open).err().map(|error| error.to_string())
        };
        assert_eq!(refused(&[]), None);
        // These are covered, or lead nobody.
        for harmless in ["hooks/x", "modules/x", "objects/ab/cd"] {
            symlink("/etc/passwd", git.join(harmless)).unwrap();
        }
        assert_eq!((refused(&[]), taken(&git)), (None, Vec::new()));
        for planted in ["COMMIT_EDITMSG", "logs/HEAD", "logs/refs/heads/main", "refs/heads/x", "objects/cd"] {
            symlink("/home/somebody/.bashrc", git.join(planted)).unwrap();
            let why = refused(&[]).unwrap();
            assert!(why.contains(&format!("`.git/{planted}` is a symbolic link")), "{why}");
            assert_eq!(refused(&[".git".into()]), None);
            let told = taken(&git);
            assert!(told.len() == 1 && told[0].contains(planted) && told[0].contains(".bashrc"), "{told:?}");
            assert_eq!((refused(&[]), taken(&git)), (None, Vec::new()));
        }
        // A folder that is itself one, and one that was closed behind it.
        fs::remove_dir_all(git.join("logs")).unwrap();
        symlink("/home/somebody", git.join("logs")).unwrap();
        fs::create_dir(git.join("closed")).unwrap();
        symlink("/etc/passwd", git.join("closed/link")).unwrap();
        fs::set_permissions(git.join("closed"), fs::Permissions::from_mode(0o0)).unwrap();
        assert!(refused(&[]).is_some() && mode("closed") == 0);
        assert_eq!(taken(&git).len(), 2);
        assert!(
            git.join("closed").is_dir() && git.join("hooks/x").is_symlink() && !git.join("logs").is_symlink()
        );
        assert_eq!(taken(&workspace.join("none")), Vec::<String>::new());
    }
}
