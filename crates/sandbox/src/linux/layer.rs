//! Opens the layers of an image as detached mount trees.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use sys::mount::{self, Depth};

use super::owners::{Owners, unmapped};
use crate::error::Error;
use crate::source;

/// Opens a layer as a detached tree.
pub(super) fn open(path: &Path) -> Result<OwnedFd, Error> {
    let opened = source::open(path)?;
    mount::clone_private_tree(opened.as_fd(), c"", Depth::One)
        .map_err(|source| Error::Mount { path: path.into(), source })
}

/// Opens a layer as a detached tree, with its owners mapped to those inside. Only root can.
pub(super) fn open_mapped(path: &Path, owners: &mut Owners) -> Result<OwnedFd, Error> {
    let opened = source::open(path)?;
    let tree = open(path)?;
    match owners.map_all(tree.as_fd(), opened.as_fd()) {
        Ok(()) => Ok(tree),
        Err(error) => Err(unmapped(path, error).of_the_store()),
    }
}
