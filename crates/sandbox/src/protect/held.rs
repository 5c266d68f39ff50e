//! Which names of a workspace count as held. Only tells it; `hold` holds them.

use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use super::placeholder::is_placeholder;
use crate::error::Error;
use crate::source;

/// Which names of a workspace count as held.
#[derive(Clone, Copy)]
pub(crate) enum Held<'a> {
    /// Those with a placeholder, whichever run's it is.
    Any,
    /// Those that this run holds, whatever somebody has put there since.
    These(&'a [PathBuf]),
}

impl Held<'_> {
    pub(super) fn is(self, root: BorrowedFd<'_>, path: &Path) -> Result<bool, Error> {
        match self {
            Self::Any => is_placeholder(root, path).map_err(|errno| source::refused(path, errno)),
            Self::These(names) => Ok(names.iter().any(|name| name == path)),
        }
    }
}

/// The error for a protected name that was made or removed while a run began.
pub(super) fn meddled(path: &Path) -> Error {
    Error::Refused {
        what: format!("`{}` is protected, and was made or removed while the run began", path.display()),
        remedy: Some("start it again".into()),
    }
}
