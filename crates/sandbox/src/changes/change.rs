//! A path that a run changed, and one that is left out. Only says what it is: `walk` finds them.

use std::path::{Path, PathBuf};

/// One path that changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Relative to the workspace.
    pub path: PathBuf,
    /// How it changed.
    pub what: What,
    /// Why it cannot be applied: the workspace changed as well.
    pub conflict: Option<&'static str>,
    /// The outermost path at or above it that this machine would execute or trust.
    pub protected: Option<PathBuf>,
}

impl Change {
    /// Whether it is at or below one of some named paths. So is every change if no path is named.
    #[must_use]
    pub fn is_chosen(&self, named: &[PathBuf]) -> bool {
        named.is_empty() || named.iter().any(|named| self.path.starts_with(named))
    }

    /// Whether this machine would execute or trust it, and nobody has named it or a protected folder around it.
    #[must_use]
    pub fn is_withheld(&self, named: &[PathBuf]) -> bool {
        let takes =
            |named: &PathBuf, outermost: &Path| self.path.starts_with(named) && named.starts_with(outermost);
        self.protected.as_ref().is_some_and(|outermost| !named.iter().any(|named| takes(named, outermost)))
    }
}

/// How a path changed. Modes are those of stat(2): file type and permissions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// It is new.
    Made {
        /// Its mode.
        mode: u32,
    },
    /// Its content or its executable bit is different.
    Changed {
        /// The mode it had.
        from: u32,
        /// The mode it has.
        to: u32,
    },
    /// It is gone.
    Gone {
        /// The mode it had.
        mode: u32,
    },
}

impl What {
    /// Returns the mode it has; the mode it had if it is gone.
    #[must_use]
    pub fn mode(&self) -> u32 {
        match self {
            Self::Made { mode } | Self::Gone { mode } | Self::Changed { to: mode, .. } => *mode,
        }
    }
}

/// Something that was written and cannot be applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// Relative to the workspace.
    pub path: PathBuf,
    /// Why.
    pub why: &'static str,
}
