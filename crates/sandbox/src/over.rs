//! Why a sandbox is over although its command has not ended.

use crate::failure::Failure;

/// Why a sandbox is over although its command has not ended.
pub(crate) enum Over {
    /// A step failed.
    Failed(Failure),
    /// The command cannot be executed, with this error number.
    NotExecuted { errno: i32 },
    /// The parent or the sidecar is gone.
    Abandoned,
}

impl From<Failure> for Over {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}
