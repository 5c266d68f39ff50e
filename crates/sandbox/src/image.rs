//! An image as a sandbox uses it: the directories of its layers, and its configuration.

use std::path::{Component, Path, PathBuf};

/// The layers and configuration of an image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RootImage {
    /// The directories of its layers, bottom first: on this machine, and made by this program.
    pub layers: Vec<PathBuf>,
    /// Its environment.
    pub environment: Vec<(String, String)>,
    /// The directories that it declares as volumes.
    pub volumes: Vec<PathBuf>,
    /// The id of its user; 0 if it names none.
    pub uid: u32,
    /// The id of its group.
    pub gid: u32,
    /// The ids of the further groups of its user.
    pub groups: Vec<u32>,
    /// Its user's name.
    pub user: Option<String>,
    /// Whether its files keep their owners, in subordinate ids of the caller.
    pub owners_kept: bool,
    /// Its user's home.
    pub home: Option<PathBuf>,
    /// The directory that its own command starts in.
    pub directory: Option<PathBuf>,
    /// Its own program, if that is a path.
    pub program: Option<PathBuf>,
}

impl RootImage {
    /// Returns the home of its user. `None` for root, whom no command is inside, and for one that leads upwards.
    pub(crate) fn home(&self) -> Option<&Path> {
        self.home.as_deref().filter(|home| self.uid != 0 && leads_down(home))
    }

    /// Returns the directories that only root may enter in it, maybe, and without which nobody else could begin its command.
    pub(crate) fn closed(&self) -> impl Iterator<Item = &Path> {
        let of_program = self.program.as_deref().and_then(Path::parent);
        let closed = self.directory.as_deref().into_iter().chain(of_program);
        closed.filter(|path| self.uid == 0 && leads_down(path))
    }

    /// Returns the name of its user. `None` for root.
    pub(crate) fn user(&self) -> Option<&str> {
        self.user.as_deref().filter(|_| self.uid != 0)
    }
}

/// Whether a path goes into one directory after another, and never back.
fn leads_down(path: &Path) -> bool {
    !path.components().any(|part| part == Component::ParentDir)
}
