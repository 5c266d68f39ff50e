//! An image as a sandbox needs it: where its layers are, and what it says of the command.

use std::path::{Path, PathBuf};

/// A root file system that is laid over the layers of an image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RootImage {
    /// The directories of its layers, bottom first: on this machine, and of nobody else's making.
    pub layers: Vec<PathBuf>,
    /// Its environment.
    pub environment: Vec<(String, String)>,
    /// Directories of its own in which it keeps things.
    pub volumes: Vec<PathBuf>,
    /// The id of its user; 0 where it names none.
    pub uid: u32,
    /// The id of its group.
    pub gid: u32,
    /// Its user's name.
    pub user: Option<String>,
    /// Whether its files are kept with their owners, in ids that are lent to the caller.
    pub owners_kept: bool,
    /// Its user's home.
    pub home: Option<PathBuf>,
}

impl RootImage {
    /// The home of its user; none where that is root, who nobody is inside.
    pub(crate) fn home(&self) -> Option<&Path> {
        self.home.as_deref().filter(|_| self.uid != 0)
    }

    /// The name of its user; none where that is root.
    pub(crate) fn user(&self) -> Option<&str> {
        self.user.as_deref().filter(|_| self.uid != 0)
    }
}
