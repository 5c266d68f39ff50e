//! The repositories of a workspace that its command may write: its `.git`, and itself where it is a bare one. Each is noted as it was when a
//! run began, so that once the run is over nothing is done to another that somebody has put in its place.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;

use super::hold::is_free;
use super::{is_bare, is_directory};
use crate::file_id::FileId;
use crate::source;

/// A repository as a log has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repository {
    pub(crate) path: PathBuf,
    pub(crate) being: FileId,
    pub(crate) layout: Layout,
}

/// What belongs to a repository of what is in its folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// All of it: it is a `.git`.
    Whole,
    /// What git has names for: others are somebody's own, as are working trees that lie in a bare repository.
    Bare,
}

/// A repository that is open since before the command ran: it stays the same, whatever becomes of its name and its mode.
#[derive(Debug)]
pub(crate) struct OpenRepository {
    pub(crate) repository: Repository,
    pub(crate) opened: Arc<OwnedFd>,
}

impl OpenRepository {
    /// Those of a workspace that are not left to the command.
    pub(super) fn all(workspace: &Path, root: &Arc<OwnedFd>, open: &[PathBuf]) -> io::Result<Vec<Self>> {
        let git = Path::new(".git");
        if open.iter().any(|path| path == git) {
            return Ok(Vec::new());
        }
        let mut all = Vec::new();
        // A placeholder holds nothing.
        if !is_free(root.as_fd(), git)
            && let Some(opened) = own(root.as_fd())?
        {
            all.push(Self::of(workspace.join(git), Arc::new(opened), Layout::Whole)?);
        }
        if is_bare(root.as_fd()) {
            all.push(Self::of(workspace.into(), Arc::clone(root), Layout::Bare)?);
        }
        Ok(all)
    }

    fn of(path: PathBuf, opened: Arc<OwnedFd>, layout: Layout) -> io::Result<Self> {
        let being = FileId::of(opened.as_fd())?;
        Ok(Self { repository: Repository { path, being, layout }, opened })
    }
}

/// The workspace's own repository, if it has one.
fn own(root: BorrowedFd<'_>) -> rustix::io::Result<Option<OwnedFd>> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    match openat2(root, ".git", flags, Mode::empty(), ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS) {
        Ok(opened) => Ok(Some(opened)),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
        Err(errno) => Err(errno),
    }
}

impl Repository {
    /// Finds it again by its path; nothing where that is gone, or another's.
    pub(super) fn find(&self) -> io::Result<Option<OwnedFd>> {
        match source::open_if_there(&self.path).map_err(io::Error::other)? {
            Some(opened) if is_directory(opened.as_fd()) => {
                Ok(FileId::of(opened.as_fd())?.is_still(self.being).then_some(opened))
            }
            _ => Ok(None),
        }
    }
}

/// The folders of a repository that git, and what is usually used with it, writes into: gitrepository-layout(5).
const FOLDERS: [&str; 15] = [
    "annex",
    "branches",
    "info",
    "lfs",
    "logs",
    "objects",
    "rebase-apply",
    "rebase-merge",
    "refs",
    "reftable",
    "remotes",
    "rr-cache",
    "sequencer",
    "svn",
    "NOTES_MERGE_WORKTREE",
];

impl Layout {
    /// Whether a folder at the top is of the repository.
    pub(super) fn has(self, name: &OsStr) -> bool {
        match self {
            Self::Whole => true,
            // There are file systems to which capital letters are the same.
            Self::Bare => FOLDERS.iter().any(|folder| name.eq_ignore_ascii_case(folder)),
        }
    }
}
