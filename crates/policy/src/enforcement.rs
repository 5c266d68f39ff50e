//! Whether a run goes on without a limit that cannot be enforced.

use crate::choice::Choice;

/// What happens if a limit cannot be enforced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enforcement {
    /// The run is refused.
    Required,
    /// The run goes on without the limit, and says so.
    BestEffort,
}

impl Choice for Enforcement {
    const ALL: &'static [Self] = &[Self::Required, Self::BestEffort];

    fn as_str(self) -> &'static str {
        match self {
            Self::Required => "required",
            Self::BestEffort => "best-effort",
        }
    }
}
