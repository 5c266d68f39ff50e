//! The repositories of a workspace that its command may write: its `.git`, and the workspace itself if it is a bare one. The identity
//! of each is recorded when a run begins, so that the cleanup after the run touches no other repository that is in its place by then.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::bare::is_bare;
use super::held::Held;
use super::placeholder::is_free;
use crate::file_id::FileId;
use crate::open_file::lookup;
use crate::source;

/// A repository, as the undo log records it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repository {
    pub(crate) path: PathBuf,
    pub(crate) being: FileId,
    pub(crate) layout: Layout,
}

/// Which entries of its folder belong to a repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// All of them: it is a `.git`.
    Whole,
    /// Those with git's names. Others are the user's own, such as working trees in a bare repository.
    Bare,
}

/// A repository that was opened before the command ran. The descriptor stays valid, whatever happens to its name and mode.
#[derive(Debug)]
pub(crate) struct OpenRepository {
    pub(crate) repository: Repository,
    pub(crate) opened: Arc<OwnedFd>,
}

impl OpenRepository {
    /// Opens the repositories of a workspace that are not left to the command (`--open .git`).
    pub(super) fn all(workspace: &Path, root: &Arc<OwnedFd>, open: &[PathBuf]) -> io::Result<Vec<Self>> {
        let git = Path::new(".git");
        if open.iter().any(|path| path == git) {
            return Ok(Vec::new());
        }
        let mut all = Vec::new();
        // A placeholder is no repository.
        if !is_free(root.as_fd(), git)?
            && let Some(opened) = own(root.as_fd())?
        {
            all.push(Self::of(workspace.join(git), Arc::new(opened), Layout::Whole)?);
        }
        if is_bare(root.as_fd(), Held::Any).map_err(io::Error::other)? {
            all.push(Self::of(workspace.into(), Arc::clone(root), Layout::Bare)?);
        }
        Ok(all)
    }

    fn of(path: PathBuf, opened: Arc<OwnedFd>, layout: Layout) -> io::Result<Self> {
        let being = FileId::lasting(opened.as_fd())?;
        Ok(Self { repository: Repository { path, being, layout }, opened })
    }
}

/// Opens the workspace's `.git`, if it is a directory.
fn own(root: BorrowedFd<'_>) -> rustix::io::Result<Option<OwnedFd>> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    match lookup(root, ".git", flags) {
        Ok(opened) => Ok(Some(opened)),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
        Err(errno) => Err(errno),
    }
}

impl Repository {
    /// Opens the repository by its path. Returns `None` if it is gone, or another one is there.
    pub(super) fn find(&self) -> io::Result<Option<OwnedFd>> {
        match source::open_if_there(&self.path).map_err(io::Error::other)? {
            Some(opened) if source::is_directory(opened.as_fd())? => {
                Ok(self.being.is_still(opened.as_fd())?.then_some(opened))
            }
            _ => Ok(None),
        }
    }
}

/// The folders of a repository that git and common tools write into: gitrepository-layout(5).
const FOLDERS: [&str; 13] = [
    "annex",
    "info",
    "lfs",
    "logs",
    "objects",
    "rebase-apply",
    "rebase-merge",
    "refs",
    "reftable",
    "rr-cache",
    "sequencer",
    "svn",
    "NOTES_MERGE_WORKTREE",
];

impl Layout {
    /// Whether a folder at the top belongs to the repository.
    pub(super) fn has(self, name: &OsStr) -> bool {
        match self {
            Self::Whole => true,
            // Some file systems ignore case.
            Self::Bare => FOLDERS.iter().any(|folder| name.eq_ignore_ascii_case(folder)),
        }
    }
}
