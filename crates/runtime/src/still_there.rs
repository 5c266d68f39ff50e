//! What is asked of a run that must be over for it, and why what a killed run left is still there.

use std::fmt;

/// What is asked of a run, and can only be done once it is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Its record is to be removed.
    Remove,
    /// Its changes are to be applied.
    Apply,
    /// Its changes are to be discarded.
    Discard,
}

impl fmt::Display for Act {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Remove => "remove",
            Self::Apply => "apply",
            Self::Discard => "discard",
        })
    }
}

/// Why what a killed run left is still there.
#[derive(Debug, thiserror::Error)]
pub enum StillThere {
    /// Its process lives, though nobody holds its lock: nothing may be taken away.
    #[error("its process goes on, and this state directory is a copy")]
    ProcessAlive,
    /// It cannot be taken away, or nobody has tried yet.
    #[error("{0}")]
    Because(String),
}
