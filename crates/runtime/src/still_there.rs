//! What can be asked only of a run that is over, and why something of a killed run remains.

use std::fmt;

/// What can be asked only of a run that is over.
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

/// Why something of a killed run remains.
#[derive(Debug, thiserror::Error)]
pub enum StillThere {
    /// Its process lives, though nobody holds its lock: nothing may be taken away.
    #[error("its process goes on, and this state directory is a copy")]
    ProcessAlive,
    /// It cannot be taken away, or nobody has tried yet.
    #[error("{0}")]
    Because(String),
}
