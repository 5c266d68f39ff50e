//! Finds the policy file of a workspace. Its approval is stored under its path, so the file that counts is the one in the folder that a
//! run opens as its workspace, and no link leads to it: where two runs share a folder above, the command of one could lead the other to
//! another project, whose policy the person approved.

use std::path::{Path, PathBuf};

use sandbox::Caller;

use crate::error::Error;
use crate::settings::SettingsRequest;

/// The name of a project's file.
pub(crate) const PROJECT: &str = "lockgate.toml";

/// The policy file of a workspace.
pub(crate) struct ProjectFile {
    /// The workspace as a run opens it.
    named: PathBuf,
    /// Where that folder is, every link resolved once.
    folder: PathBuf,
}

impl ProjectFile {
    pub(crate) fn of(workspace: Option<&Path>, caller: &Caller) -> Self {
        let named: PathBuf = caller.workspace(workspace).components().collect();
        let folder = named.canonicalize().unwrap_or_else(|_| named.clone());
        Self { named, folder }
    }

    /// Returns its one path, however the workspace was named.
    pub(crate) fn path(&self) -> PathBuf {
        self.folder.join(PROJECT)
    }

    /// Refuses a workspace that is, or was while it was looked for, behind a link.
    pub(crate) fn refuse_link(&self) -> Result<(), Error> {
        match self.named == self.folder {
            true => Ok(()),
            false => Err(sandbox::Error::behind_link(&self.named, Some(&self.folder)).into()),
        }
    }
}

/// Returns the path of a workspace's own file.
///
/// # Errors
/// When a link leads to the workspace: no run has such a one, and another project's file must not be taken for its own.
pub fn project_file(workspace: Option<&Path>, caller: &Caller) -> Result<PathBuf, Error> {
    let project = ProjectFile::of(workspace, caller);
    project.refuse_link()?;
    Ok(project.path())
}

/// Returns the nearest project file above the workspace, if the workspace has none and no file was named. It is not read.
#[must_use]
pub fn project_above(request: &SettingsRequest, caller: &Caller) -> Option<PathBuf> {
    if request.policy.is_some() || request.no_project {
        return None;
    }
    // A home cannot be a workspace.
    let home = caller.home.as_ref().map(|home| home.join(PROJECT));
    let own = ProjectFile::of(request.workspace.as_deref(), caller).path();
    let mut found =
        own.parent()?.ancestors().map(|folder| folder.join(PROJECT)).filter(|path| path.is_file());
    found.next().filter(|path| *path != own && Some(path) != home.as_ref())
}
