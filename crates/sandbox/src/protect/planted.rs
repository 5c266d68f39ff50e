//! Links in a repository. Git writes wherever they lead when it is used here, and shows none of them: a reflog that is a link writes words
//! of the command's into a file of the person's. A repository that has one is not shown for writing, so whatever is there at the end of a
//! run was made by it, and is taken away. What covers of their own lie on is not looked at.

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

/// Takes the links of a repository away, and says of each where it led.
pub(crate) fn take_away(git: &Path) -> io::Result<Vec<String>> {
    let opened = match source::open_if_there(git).map_err(io::Error::other)? {
        Some(opened) if is_directory(opened.as_fd()) => opened,
        _ => return Ok(Vec::new()),
    };
    let mut taken = Vec::new();
    walk(opened.as_fd(), Shut::Open, &mut |link| {
        let Found { folder, name, path, .. } = link;
        let target = rustix::fs::readlinkat(folder, *name, Vec::new())?;
        match rustix::fs::unlinkat(folder, *name, AtFlags::empty()) {
            // Its owner closed the folder behind it.
            Err(Errno::ACCESS) => {
                rustix::fs::fchmod(folder, Mode::RWXU)?;
                rustix::fs::unlinkat(folder, *name, AtFlags::empty())?;
            }
            Err(Errno::NOENT) => return Ok(ControlFlow::Continue(())),
            done => done?,
        }
        let target = OsString::from_vec(target.into_bytes());
        taken.push(format!(
            "took away `{}`, a link to `{}` that was made meanwhile: git here would have written there",
            git.join(path).display().to_string().escape_debug(),
            target.display().to_string().escape_debug(),
        ));
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(taken)
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
        assert_eq!((refused(&[]), take_away(&git).unwrap()), (None, Vec::new()));
        for planted in ["COMMIT_EDITMSG", "logs/HEAD", "logs/refs/heads/main", "refs/heads/x", "objects/cd"] {
            symlink("/home/somebody/.bashrc", git.join(planted)).unwrap();
            let why = refused(&[]).unwrap();
            assert!(why.contains(&format!("`.git/{planted}` is a symbolic link")), "{why}");
            assert_eq!(refused(&[".git".into()]), None);
            let taken = take_away(&git).unwrap();
            assert!(
                taken.len() == 1 && taken[0].contains(planted) && taken[0].contains(".bashrc"),
                "{taken:?}"
            );
            assert_eq!((refused(&[]), take_away(&git).unwrap()), (None, Vec::new()));
        }
        // A folder that is itself one, and one that was closed behind it.
        fs::remove_dir_all(git.join("logs")).unwrap();
        symlink("/home/somebody", git.join("logs")).unwrap();
        fs::create_dir(git.join("closed")).unwrap();
        symlink("/etc/passwd", git.join("closed/link")).unwrap();
        fs::set_permissions(git.join("closed"), fs::Permissions::from_mode(0o0)).unwrap();
        assert!(refused(&[]).is_some() && mode("closed") == 0);
        assert_eq!(take_away(&git).unwrap().len(), 2);
        assert!(
            git.join("closed").is_dir() && git.join("hooks/x").is_symlink() && !git.join("logs").is_symlink()
        );
        assert_eq!(take_away(&workspace.join("none")).unwrap(), Vec::<String>::new());
    }
}
